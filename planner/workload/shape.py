"""Parameters and floating-point operations of a transformer, layer by layer.

Operations follow the usual count (PaLM, arXiv 2204.02311, appendix B): 2 per weight and token forward, twice that
backward, and 2 · heads · head_size · sequence per token for causal attention scores and their use.
"""

from __future__ import annotations

from dataclasses import dataclass

from zipplan.planner.workload.model import Model, Workload


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights of one layer: attention with norms and router, dense feed-forward and shared experts, routed experts."""

    attention: int
    dense: int
    routed: int

    @property
    def replicated(self) -> int:
        """Weights that every data-parallel rank holds."""
        return self.attention + self.dense

    @property
    def all(self) -> int:
        """All weights."""
        return self.attention + self.dense + self.routed


def layers(model: Model) -> tuple[Layer, ...]:
    """Every layer, first to last."""
    experts, hidden = model.experts, model.hidden
    attention = model.attention.parameters(hidden) + 2 * hidden
    dense = Layer(attention, 3 * hidden * model.feed_forward, 0)
    if experts is None:
        return (dense,) * model.layers
    one = 3 * hidden * experts.width
    sparse = Layer(attention + hidden * experts.count, experts.shared * one, experts.count * one)
    first = min(experts.dense_layers, model.layers)
    return (dense,) * first + (sparse,) * (model.layers - first)


def embedding(model: Model) -> int:
    """Weights of the input embedding."""
    return model.vocabulary * model.hidden


def head(model: Model) -> int:
    """Weights of the output projection and the last norm; tied ones count with the embedding."""
    return model.hidden + (0 if model.tied_embeddings else embedding(model))


def parameters(model: Model) -> int:
    """All weights."""
    return sum(layer.all for layer in layers(model)) + embedding(model) + head(model)


def adapter_parameters(workload: Workload) -> int:
    """Weights of one layer's adapters on q and v; 0 without adapters."""
    if workload.adapters is None:
        return 0
    model, attention = workload.model, workload.model.attention
    outputs = attention.head_size * (attention.heads + attention.kv_heads)
    return workload.adapters.rank * (2 * model.hidden + outputs)


@dataclass(frozen=True, slots=True)
class Operations:
    """Forward operations of one layer and micro-batch on one rank of a tensor-parallel group, in floating point."""

    attention: float
    dense: float
    routed: float

    @property
    def all(self) -> float:
        """All of them."""
        return self.attention + self.dense + self.routed


def operations(workload: Workload, layer: Layer) -> Operations:
    """Forward operations of one layer, split over the tensor-parallel ranks."""
    model, tokens = workload.model, workload.batch.tokens
    per_token = tokens / workload.parallel.tensor
    scores = 2 * model.attention.heads * model.attention.head_size * workload.batch.sequence
    active = layer.routed * model.experts.active / model.experts.count if model.experts else 0
    return Operations(per_token * (2 * layer.attention + scores), per_token * 2 * layer.dense, per_token * 2 * active)


def head_operations(workload: Workload) -> float:
    """Forward operations of the output projection."""
    return 2.0 * embedding(workload.model) * workload.batch.tokens / workload.parallel.tensor
