"""What a lowered exchange costs: start, steps, bytes on the wire, and the chunk that is still on its way at the end.

    time = start + Σ steps + bytes / rate + fill

The wire is left to the network (flows on links, stretched to what the protocol reaches). Fill is the time that chunks
need to pass through the algorithm's stages while the wire is silent: one chunk in a ring (its last receive overlaps
nothing), one for every hop of a tree, `depth` in the switch (copy in, reduce, copy out run one behind the other).
"""

from __future__ import annotations

from dataclasses import dataclass

from zipplan.planner.transport.constants import Constants, Protocol
from zipplan.planner.transport.ways import Way
from zipplan.planner.units import PS_PER_SECOND


@dataclass(frozen=True, slots=True)
class Price:
    """One way with one protocol at one size; ps. stretch: (inside, across), wire bytes per byte of payload."""

    protocol: str
    launch: float
    latency: float
    wire: float
    stretch: tuple[float, float]

    @property
    def total(self) -> float:
        """ps when nothing else is on the links."""
        return self.launch + self.latency + self.wire


def price(way: Way, constants: Constants, protocol: Protocol, sent: float, extra: float = 0.0) -> Price:
    """For `sent` bytes from each rank; `extra`: ps added to the start."""
    tree = way.algorithm in ("tree", "nvlstree", "collnetchain", "collnetdirect")
    step = protocol.tree if tree else protocol.ring
    near, far = step[0] + way.hop[0], step[1] + way.hop[1]
    share = protocol.share
    start = protocol.base[tree]
    if way.algorithm in ("tree", "collnetchain"):
        share = share[0] * constants.tree_share, share[1] * (constants.tree_across if way.steps.across > 2 else 1.0)
    if way.algorithm == "direct" and way.steps.peers == 1:
        share = share[0] * constants.one_peer, share[1]
    if way.algorithm.startswith("nvls"):
        assert constants.switch is not None  # only offered where the switch reduces
        inside = constants.switch.share * (constants.switch.tree_share if way.steps.across else 1.0)
        share = inside, share[1]
        start, near = constants.switch.latency, float(way.hop[0])
    if constants.sharp is not None and way.algorithm in constants.sharp.network and way.steps.across:
        near = constants.sharp.inside.get(way.algorithm, near - way.hop[0]) + way.hop[0]
        far = constants.sharp.network[way.algorithm] + way.hop[1]
        share = share[0], constants.sharp.share
    rate = way.wire(*share)
    limit = max(m / p for m, p in zip(way.moved, protocol.peak, strict=True)) * PS_PER_SECOND
    slow = max(1.0, limit / rate)
    wire = sent * rate * slow
    fill, chunk = _fill(way, constants, protocol.whole, sent, wire)
    if constants.overlaps and way.algorithm == "ring":
        far = max(0.0, far - chunk / 2)  # a chunk is two slices: the second is sent while the first travels
    launch = start + constants.start + extra
    return Price(
        protocol.name,
        launch,
        way.steps.inside * near + way.steps.across * far + fill,
        wire,
        (slow / share[0], slow / share[1]),
    )


def _fill(way: Way, constants: Constants, whole: bool, sent: float, wire: float) -> tuple[float, float]:
    """(time of the chunks that pass while the wire is silent, time of one chunk), ps.

    whole: a GPU hands on whole chunks (Simple); LL and LL128 flag every line, so only the network waits for chunks.
    """
    steps = way.steps
    message = steps.message * sent
    channels = min(constants.channels, 2 * steps.rails) if steps.rails else constants.channels
    if way.algorithm in ("ring", "direct", "pat"):
        if not constants.ring_chunk:
            return 0.0, 0.0
        one = wire / (steps.pieces * max(1.0, message / (channels * constants.ring_chunk)))
        return (one if whole and constants.drifts else 0.0), one
    depth = steps.across + (steps.inside if whole else 0)
    if not way.algorithm.startswith("nvls"):
        if not constants.tree_chunk:
            return 0.0, 0.0
        chunks = message / (channels * constants.tree_chunk)
        one = wire / max(1.0, chunks, min(depth, 8 * chunks))
        return depth * one, one
    assert constants.switch is not None
    chunks = max(1.0, message / constants.switch.chunk(message))
    one = wire / chunks
    return (constants.switch.depth + 2 * steps.across) * one + (chunks - 1) * constants.switch.sync, one
