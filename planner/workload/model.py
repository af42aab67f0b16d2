"""A training workload as data: what a workload TOML file may say, checked strictly.

A step is `micro_batches` forward and backward passes and one gradient reduction. Everything else (parameters, floating
point operations, which collective of which size when) follows from the shape of the model and the parallelism.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from zipplan.planner.costs import ELEMENT_BYTES
from zipplan.planner.errors import ConfigError, nearest
from zipplan.planner.profiles import parse_profile
from zipplan.planner.units import parse_size, parse_time

Count = Annotated[int, Field(strict=True, ge=1)]
Source = Annotated[str, Field(min_length=3)]
Share = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]


def _dtype(name: object) -> object:
    if name not in ELEMENT_BYTES:
        raise ValueError(f"unknown dtype; {nearest(str(name), ELEMENT_BYTES)}")
    return name


def _profile(text: object) -> object:
    try:
        return parse_profile(text).text if isinstance(text, str) else text
    except ConfigError as error:
        raise ValueError(str(error).removeprefix("--profile: ")) from None


def _time(text: object) -> object:
    try:
        return parse_time(text) if isinstance(text, str) else text
    except ConfigError as error:
        raise ValueError(str(error)) from None


def _size(text: object) -> object:
    try:
        return parse_size(text) if isinstance(text, str) else text
    except ConfigError as error:
        raise ValueError(str(error)) from None


Dtype = Annotated[str, BeforeValidator(_dtype)]
ProfileName = Annotated[str, BeforeValidator(_profile)]
Picoseconds = Annotated[int, BeforeValidator(_time), Field(strict=True, gt=0)]
Bytes = Annotated[int, BeforeValidator(_size), Field(strict=True, gt=0)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Attention(_Strict):
    """Attention of one layer. With `kv_rank` it is latent attention (DeepSeek-V2, arXiv 2405.04434, §2.1)."""

    heads: Count
    kv_heads: Count
    head_size: Count
    query_rank: Count | None = None
    kv_rank: Count | None = None
    rope_size: Count | None = None

    @model_validator(mode="after")
    def _whole(self) -> Attention:
        latent = (self.query_rank, self.kv_rank, self.rope_size)
        if any(latent) and not all(latent):
            raise ValueError("latent attention needs query_rank, kv_rank and rope_size together")
        return self

    def parameters(self, hidden: int) -> int:
        """Weights of one layer."""
        if self.query_rank is None or self.kv_rank is None or self.rope_size is None:
            return 2 * hidden * self.head_size * (self.heads + self.kv_heads)
        query = self.query_rank * (hidden + self.heads * (self.head_size + self.rope_size))
        keys = hidden * (self.kv_rank + self.rope_size) + 2 * self.kv_rank * self.heads * self.head_size
        return query + keys + self.heads * self.head_size * hidden


class Experts(_Strict):
    """Mixture of experts: `active` of `count` gated experts of width `width` per token, and `shared` for all."""

    count: Count
    active: Count
    width: Count
    shared: Annotated[int, Field(strict=True, ge=0)] = 0
    dense_layers: Annotated[int, Field(strict=True, ge=0)] = 0  # the first layers have a dense feed-forward instead
    imbalance: Annotated[float, Field(ge=1)] = 1.0  # tokens of the busiest rank over the mean
    deduplicate: bool = False  # a token goes once to a rank, however many of its experts live there
    narrow: Share = 1.0  # width of what is sent over the hidden size (projected down before, up after)
    source: Source

    @model_validator(mode="after")
    def _fits(self) -> Experts:
        if self.active > self.count:
            raise ValueError(f"active = {self.active} experts per token of count = {self.count}")
        return self


class Model(_Strict):
    """Shape of a decoder-only transformer with gated feed-forward layers (three matrices)."""

    layers: Count
    hidden: Count
    vocabulary: Count
    feed_forward: Annotated[int, Field(strict=True, ge=0)] = 0
    tied_embeddings: bool = False
    attention: Attention
    experts: Experts | None = None

    @model_validator(mode="after")
    def _has_feed_forward(self) -> Model:
        dense = self.layers if self.experts is None else self.experts.dense_layers
        if dense and not self.feed_forward:
            raise ValueError(f"feed_forward is missing: {dense} layers have a dense feed-forward")
        return self


class Adapters(_Strict):
    """Low-rank adapters on the attention projections q and v; every other weight is frozen."""

    rank: Count
    source: Source


class Parallel(_Strict):
    """How ranks share the work; rank order: tensor fastest, then data (and expert), then pipeline.

    data: fsdp (shard everything over all data ranks), hsdp (shard over `shard` ranks, replicate over the rest),
    zero1 (Megatron's distributed optimizer: reduce-scatter, then all-gather, once a step), ddp (all-reduce in buckets).
    """

    data: Literal["fsdp", "hsdp", "zero1", "ddp"]
    tensor: Count = 1
    pipeline: Count = 1
    expert: Count | Literal["all"] = 1
    shard: Count | None = None
    bucket: Bytes = 25 << 20  # of ddp: bucket_cap_mb of torch.nn.parallel.DistributedDataParallel
    prefetch: bool = True  # gather the next block while this one computes
    source: Source

    @model_validator(mode="after")
    def _shard_for_hsdp(self) -> Parallel:
        if (self.data == "hsdp") != (self.shard is not None):
            raise ValueError("hsdp needs shard = ranks that share one copy; the other schemes have none")
        return self


class Batch(_Strict):
    """What one rank's pipeline sees in a step."""

    sequence: Count
    micro_batch: Count = 1
    micro_batches: Count = 1
    source: Source

    @property
    def tokens(self) -> int:
        """Tokens of one micro-batch."""
        return self.sequence * self.micro_batch


class Precision(_Strict):
    """Dtypes on the wire."""

    parameters: Dtype = "bf16"
    gradients: Dtype = "fp32"
    activations: Dtype = "bf16"


class Values(_Strict):
    """Shape of the values on the wire, as `--profile` names it."""

    parameters: ProfileName = "gaussian"
    gradients: ProfileName = "gaussian"
    activations: ProfileName = "gaussian"
    source: Source = "https://arxiv.org/abs/2604.27844 (§6.6: weights, activations and gradients near-Gaussian)"


class Compute(_Strict):
    """Time of computing: given, or from operations, the GPU's peak and the share of it that is reached."""

    recompute: Literal["none", "full"] = "none"
    micro_batch_time: Picoseconds | None = None  # forward and backward of one micro-batch on one rank
    peak: Annotated[float, Field(gt=0)] | None = None  # dense operations per second; else that of the GPU
    utilisation: Share | None = None  # else that of the GPU
    source: Source | None = None

    @model_validator(mode="after")
    def _sourced(self) -> Compute:
        if (self.micro_batch_time or self.peak or self.utilisation) and self.source is None:
            raise ValueError("source is missing: every table that brings a number names one")
        return self


class Workload(_Strict):
    """A whole workload file."""

    schema_: Annotated[Literal[1], Field(alias="schema")]
    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]*$")]
    summary: str
    source: Source
    model: Model
    parallel: Parallel
    batch: Batch
    precision: Precision = Precision()
    values: Values = Values()
    compute: Compute = Compute()
    adapters: Adapters | None = None
