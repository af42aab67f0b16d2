"""What a collective takes from the compute that runs beside it: SMs and memory bandwidth.

NCCL holds one SM for each channel as long as its kernel runs, and shares it with nobody
(https://github.com/NVIDIA/nccl/issues/689). Every byte that a GPU sends or receives is stored, read back and copied:
up to three times its memory traffic (https://github.com/NVIDIA/nccl/issues/1428). Compute that wants all of the GPU
runs at the share of the scarcer of the two. In that issue, 300 GB/s on an A100 left GEMMs at 0.57 of their speed and
attention at 0.55; this gives 0.56.

Codec kernels have blocks for every SM. On a stream of high priority, as collectives' streams are, their blocks go first
(CUDA C++ Programming Guide, stream priorities), so compute waits for them; with a smaller `codec` share (a green
context, as UCCL-Zip uses, arXiv 2604.17172 §5.4.5) compute keeps the rest and the codec is so much slower beside it.
"""

from __future__ import annotations

from dataclasses import dataclass

from zipplan.planner.schedule import Op, Schedule
from zipplan.planner.simulate import Timeline
from zipplan.planner.topology import Cluster
from zipplan.planner.transport import Transport
from zipplan.planner.units import PS_PER_SECOND

MEMORY_PER_BYTE = 3.0


@dataclass(frozen=True, slots=True)
class Cost:
    """A collective alone on the GPU: ps, `codec` ps of them in codec kernels.

    taken: share of compute's speed that its transfers cost, mean over `ps`. codec_share: SMs for its codec kernels
    while compute runs too.
    """

    ps: int
    codec: int = 0
    taken: float = 0.0
    codec_share: float = 1.0

    def beside_compute(self) -> tuple[float, float]:
        """(its own speed, the speed of compute) while both run; 1 is the speed of either alone."""
        if self.ps == 0:
            return 1.0, 1.0
        coding = self.codec / self.ps
        longer = 1 + coding * (1 / self.codec_share - 1)
        return 1 / longer, max(0.0, 1 - (self.taken + coding) / longer)


@dataclass(frozen=True, slots=True)
class Shares:
    """SMs that codec kernels get beside compute, and that transfers hold (None: their channels)."""

    codec: float = 1.0
    transport: float | None = None

    def cost(self, schedule: Schedule, timeline: Timeline, transport: Transport) -> Cost:
        """Of one simulated collective, seen from rank 0."""
        cluster = transport.cluster
        if timeline.time == 0 or cluster.gpu is None:  # threads of a CPU: nothing is known
            return Cost(timeline.time)
        exchanges = {s.name: s for s in schedule.stages if s.op is Op.EXCHANGE}
        codec, held = 0, 0.0
        for span in timeline.spans:
            if span.rank == 0 and span.stage in exchanges:
                group = schedule.group(exchanges[span.stage].axis, 0)
                share = transport.sms(group) / cluster.gpu.sms if self.transport is None else self.transport
                held += min(1.0, share) * (span.end - span.start) if len(group) > 1 else 0.0
            elif span.rank == 0:
                codec += span.end - span.start
        memory = MEMORY_PER_BYTE * _through(cluster, timeline) / (cluster.gpu.hbm_bandwidth / PS_PER_SECOND)
        wire = max(0, timeline.time - codec)
        return Cost(timeline.time, min(codec, timeline.time), min(max(held, memory), wire) / timeline.time, self.codec)


def _through(cluster: Cluster, timeline: Timeline) -> float:
    """Bytes that leave rank 0, or reach it where that is more."""
    device = f"n0/{cluster.device_of(0)}"
    out = sum(float(timeline.link_bytes[link.index]) for link in cluster.links if link.src == device)
    into = sum(float(timeline.link_bytes[link.index]) for link in cluster.links if link.dst == device)
    return max(out, into)
