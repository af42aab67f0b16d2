"""What a stage costs on one rank, and how many bytes an encoded slot has."""

from __future__ import annotations

from dataclasses import dataclass

from zipplan.planner.errors import ConfigError, nearest
from zipplan.planner.profiles import FORMATS, Profile, expected_bits
from zipplan.planner.schedule import Op, Payload, Schedule, Stage
from zipplan.planner.topology import Cluster
from zipplan.planner.units import PS_PER_SECOND, parse_time

ELEMENT_BYTES = {**{name: kind.bits // 8 for name, kind in FORMATS.items()}, "u8": 1}
CODECS = {name: ("window", "cascade") for name in FORMATS}
"""Codecs that can pay, by dtype; every other dtype travels raw."""

# One launch of a stage on a GPU: a kernel and the host's wait for it. 9.6 µs for a 2.9 µs kernel launched and waited
# for one by one: https://developer.nvidia.com/blog/cuda-graphs/
GPU_LAUNCH = parse_time("9.6us")
# One call into the compiled codec. Measured: median of 2,000 calls of zipplan.kernels.encode on 8 elements, 14.7 µs
# (decode 10.1 µs), one thread, 2-core x86 machine.
CPU_LAUNCH = parse_time("15us")
# One pass of the window codec reads 2 B and writes ~1.4 B per bf16 element: input rate ≤ 0.59 × memory bandwidth; 0.6
# of that roofline is the floor its CUDA kernels are built to. Cascade, with more work per element: 1,000 GB/s encode on
# an H200 (4,800 GB/s), likewise. Not yet measured on a GPU.
GPU_CODEC_SHARE = {"window": 0.59 * 0.60, "cascade": 1000 / 4800}
# A sum or a copy reads and writes every byte once.
GPU_COPY_SHARE = 0.5


SIZE_BYTES = 8.0
"""A size on the wire: one 64-bit integer for each slot."""


@dataclass(frozen=True)
class Wire:
    """Encoded size of one slot: static bytes follow from the raw bytes alone, dynamic bytes are expected ones."""

    codec: str
    static_share: float
    dynamic_share: float
    header: int = 0

    @property
    def ratio(self) -> float:
        """Raw bytes over encoded bytes of a large slot."""
        return 1 / (self.static_share + self.dynamic_share)

    def bytes(self, payload: Payload, raw: int) -> float:
        """Bytes that travel for a slot of `raw` bytes."""
        if payload is Payload.RAW or raw == 0:
            return float(raw)
        if payload is Payload.SIZES:
            return SIZE_BYTES
        return raw * self.static_share + self.header if payload is Payload.STATIC else raw * self.dynamic_share


def wire(codec: str, dtype: str, profile: Profile) -> Wire:
    """Expected encoded sizes. Raises ConfigError when the codec does not serve the dtype."""
    if codec == "raw":
        return Wire("raw", 1.0, 0.0)
    if codec not in CODECS.get(dtype, ()):
        names = ("raw", *CODECS.get(dtype, ()))
        raise ConfigError(f"--codec: {codec!r} does not serve {dtype}; {nearest(codec, names)}")
    static, dynamic = expected_bits(codec, dtype, profile)
    bits = FORMATS[dtype].bits
    return Wire(codec, (static + TILE_RECORD_BITS) / bits, dynamic / bits, FRAME_HEADER)


# docs/wire-format.md: a 64-byte header; a 16-byte record for each tile of 4,096 elements.
FRAME_HEADER = 64
TILE_RECORD_BITS = 16 * 8 / 4096


@dataclass(frozen=True)
class Rates:
    """Speed of one rank's codec engine: launch in ps, rates in raw bytes per second.

    Sums by sender: None where they are not known apart; then as `decode` and `copy`.
    """

    launch: int
    encode: float
    decode: float
    copy: float
    decode_reduce: float | None = None
    reduce: float | None = None

    @classmethod
    def of(cls, cluster: Cluster, codec: str = "window") -> Rates:
        """From the GPU's memory bandwidth, or the host's measured codec. Raises ConfigError when neither is known."""
        if cluster.gpu is not None:
            memory = float(cluster.gpu.hbm_bandwidth)
            rate = memory * GPU_CODEC_SHARE.get(codec, GPU_COPY_SHARE)
            return cls(GPU_LAUNCH, rate, rate, memory * GPU_COPY_SHARE)
        cpu = cluster.machine.cpu
        if cpu is None:
            raise ConfigError(f"machine {cluster.machine.name} has neither [gpu] nor [cpu]: codec speed is unknown")
        share = min(1.0, (cpu.cores or cluster.ranks) / cluster.ranks)
        encode, decode = (rate * share for rate in cpu.rates(codec))
        # A copy costs one read and one write; the window's decoder does that and more.
        return cls(CPU_LAUNCH, encode, decode, cpu.codec_decode * share)

    def duration(self, stage: Stage, schedule: Schedule, slot: int) -> float:
        """Picoseconds of a local stage on one rank, `slot` raw bytes per slot."""
        handled = schedule.buffer_slots[stage.src] * slot
        rate = {
            Op.ENCODE: self.encode,
            Op.DECODE: self.decode,
            Op.DECODE_REDUCE: self.decode_reduce or self.decode,
            Op.REDUCE: self.reduce or self.copy,
        }.get(stage.op, self.copy)
        return self.launch + handled / rate * PS_PER_SECOND
