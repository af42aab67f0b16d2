"""What a stage costs on one rank, and how many bytes an encoded slot has."""

from __future__ import annotations

from dataclasses import dataclass

from zipplan.planner.errors import ConfigError, nearest
from zipplan.planner.profiles import Profile, window_bits
from zipplan.planner.schedule import Op, Payload, Schedule, Stage
from zipplan.planner.topology import Cluster
from zipplan.planner.units import PS_PER_SECOND, parse_time

ELEMENT_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4, "fp8_e4m3": 1, "fp8_e5m2": 1, "u8": 1}
CODECS = {"bf16": ("window",)}
"""Codecs that can pay, by dtype; every other dtype travels raw."""

# One launch of a stage on a GPU: a kernel and the host's wait for it. 9.6 µs for a 2.9 µs kernel launched and waited
# for one by one: https://developer.nvidia.com/blog/cuda-graphs/
GPU_LAUNCH = parse_time("9.6us")
# One call into a compiled library through ctypes, threads started: upper end of a few µs of call overhead and 15 µs
# per thread, as `python -m timeit` shows on a 2-core x86 machine. Only matters below 64 KiB.
CPU_LAUNCH = parse_time("20us")
# One pass of the window codec reads 2 B and writes ~1.4 B per bf16 element: input rate ≤ 0.59 × memory bandwidth.
# 0.6 of that roofline is the floor the CUDA codec is built to (docs/design.md); not yet measured on a GPU.
GPU_CODEC_SHARE = 0.59 * 0.60
# A sum or a copy reads and writes every byte once.
GPU_COPY_SHARE = 0.5


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
        return raw * self.static_share + self.header if payload is Payload.STATIC else raw * self.dynamic_share


def wire(codec: str, dtype: str, profile: Profile) -> Wire:
    """Expected encoded sizes. Raises ConfigError when the codec does not serve the dtype."""
    if codec == "raw":
        return Wire("raw", 1.0, 0.0)
    if codec not in CODECS.get(dtype, ()):
        names = ("raw", *CODECS.get(dtype, ()))
        raise ConfigError(f"--codec: {codec!r} does not serve {dtype}; {nearest(codec, names)}")
    static, dynamic = window_bits(profile)
    bits = 8 * ELEMENT_BYTES[dtype]
    return Wire(codec, (static + WINDOW_INDEX_BITS) / bits, dynamic / bits, FRAME_HEADER)


# docs/wire-format.md: a 64-byte header; per tile of 4,096 elements its base and its escape count.
FRAME_HEADER = 64
WINDOW_INDEX_BITS = 8 * 4 / 4096


@dataclass(frozen=True)
class Rates:
    """Speed of one rank's codec engine: launch in ps, rates in raw bytes per second."""

    launch: int
    encode: float
    decode: float
    copy: float

    @classmethod
    def of(cls, cluster: Cluster) -> Rates:
        """From the GPU's memory bandwidth, or the host's measured codec. Raises ConfigError when neither is known."""
        if cluster.gpu is not None:
            memory = float(cluster.gpu.hbm_bandwidth)
            codec = memory * GPU_CODEC_SHARE
            return cls(GPU_LAUNCH, codec, codec, memory * GPU_COPY_SHARE)
        cpu = cluster.machine.cpu
        if cpu is None:
            raise ConfigError(f"machine {cluster.machine.name} has neither [gpu] nor [cpu]: codec speed is unknown")
        share = min(1.0, (cpu.cores or cluster.ranks) / cluster.ranks)
        encode, decode = cpu.codec_encode * share, cpu.codec_decode * share
        # A copy costs one read and one write; the decoder does that and more.
        return cls(CPU_LAUNCH, encode, decode, decode)

    def duration(self, stage: Stage, schedule: Schedule, slot: int) -> float:
        """Picoseconds of a local stage on one rank, `slot` raw bytes per slot."""
        handled = schedule.buffer_slots[stage.src] * slot
        rate = {Op.ENCODE: self.encode, Op.DECODE: self.decode, Op.DECODE_REDUCE: self.decode}.get(stage.op, self.copy)
        return self.launch + handled / rate * PS_PER_SECOND
