"""Folding by symmetry changes the work, never the answer."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zipplan.planner import network
from zipplan.planner.collectives import candidates
from zipplan.planner.costs import Rates, wire
from zipplan.planner.fold import fold
from zipplan.planner.network import Paths, max_min
from zipplan.planner.profiles import parse_profile
from zipplan.planner.schedule import Collective
from zipplan.planner.simulate import Timeline, simulate
from zipplan.planner.topology import build_cluster, load_machine
from zipplan.planner.topology.model import Override
from zipplan.planner.transport import Transport


@pytest.mark.parametrize(("name", "nodes"), [("hgx-h100", 8), ("hgx-h100", 3), ("a6000x8-200g", 4), ("lab", 7)])
@pytest.mark.parametrize("collective", Collective)
def test_folded_and_unfolded_agree_to_the_picosecond(
    name: str, nodes: int, collective: Collective, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = build_cluster(load_machine(name), nodes=nodes)
    sent = wire("window", "bf16", parse_profile("gaussian"))

    def timelines(fold_from: int) -> list[Timeline]:
        monkeypatch.setattr(network, "FOLD_FROM", fold_from)
        transport, rates = Transport(cluster), Rates.of(cluster)
        schedules = candidates(collective, cluster.nodes, cluster.ranks_per_node, ("window",))
        return [simulate(s, cluster, 3 << 20, sent, transport, rates) for s in schedules]

    for folded, plain in zip(timelines(0), timelines(10**9), strict=True):
        assert folded.time == plain.time
        assert folded.stage_times() == plain.stage_times()
        assert (folded.link_busy == plain.link_busy).all()


@pytest.mark.parametrize(
    ("name", "nodes"),
    [("hgx-h100", 8), ("hgx-h100", 3), ("a6000x8-200g", 4), ("gh200-quad", 5), ("dgx-1v", 2), ("lab", 7)],
)
@pytest.mark.parametrize("collective", Collective)
def test_one_rank_stands_for_all(name: str, nodes: int, collective: Collective) -> None:
    """Where every rank is simulated, each takes as long as the one that stood for it."""
    cluster = build_cluster(load_machine(name), nodes=nodes)
    sent, transport, rates = wire("window", "bf16", parse_profile("gaussian")), Transport(cluster), Rates.of(cluster)
    alike = 0
    for schedule in candidates(collective, cluster.nodes, cluster.ranks_per_node, ("window",)):
        for size in (5000, 3 << 20):
            plain = simulate(schedule, cluster, size, sent, transport, rates, folded=False)
            one = simulate(schedule, cluster, size, sent, transport, rates)
            assert one.time == plain.time
            assert one.stage_times() == plain.stage_times()
            assert one.carried == plain.carried
            assert (one.link_busy == plain.link_busy).all()
            assert one.link_bytes == pytest.approx(plain.link_bytes, rel=1e-12)
            alike += {span.rank for span in one.spans} == {0}
    assert alike


def test_ranks_of_unlike_nodes_are_all_simulated() -> None:
    """A node with a slower NVLink ends its part later than the others, and that shows on every rank of it."""
    healthy = load_machine("hgx-h100")
    slow = Override(node=1, link="gpu0-nvswitch0", bandwidth="100GB/s", source="a test")
    machine = healthy.model_copy(update={"override": (slow,)})
    cluster = build_cluster(machine, nodes=2)
    sent, transport, rates = wire("window", "bf16", parse_profile("gaussian")), Transport(cluster), Rates.of(cluster)
    (schedule,) = (s for s in candidates(Collective.ALL_REDUCE, 2, 8, ("window",)) if s.name == "zipped-across-nodes")
    found = simulate(schedule, cluster, 64 << 20, sent, transport, rates)
    assert {span.rank for span in found.spans} == set(range(16))


@given(
    ways=st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=4, unique=True), min_size=1, max_size=12),
    capacity=st.lists(st.sampled_from([1.0, 2.0, 7.5]), min_size=6, max_size=6),
    kinds=st.lists(st.integers(0, 1), min_size=12, max_size=12),
)
def test_classes_are_equitable_and_rates_equal(ways: list[list[int]], capacity: list[float], kinds: list[int]) -> None:
    """On any network: members of a class meet equally many members of every other class, and get equal rates."""
    paths = Paths(*_flat(ways), np.array(kinds[: len(ways)]))
    caps = np.array(capacity)
    by = fold(paths.links, paths.owner, paths.kind, caps)
    plain = max_min(paths.links, paths.owner, paths.count, caps)
    classes = max_min(by.links, by.owner, by.classes, caps[by.link_member], by.flows_per_link)
    assert classes[by.flow_class].tolist() == plain.tolist()


def _flat(ways: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:  # type: ignore[type-arg]
    return np.concatenate([np.array(w) for w in ways]), np.repeat(np.arange(len(ways)), [len(w) for w in ways])


def test_a_symmetric_all_to_all_folds_to_a_few_classes() -> None:
    """4,032 flows on 8 × 8 H100: inside a node, same rail, another rail."""
    cluster = build_cluster(load_machine("hgx-h100"), nodes=8)
    src, dst = np.divmod(np.arange(64 * 64), 64)
    links, owner = cluster.paths(src[src != dst], dst[src != dst])
    by = fold(links, owner, np.zeros(64 * 63, dtype=np.int64), cluster.bandwidths.astype(float))
    assert by.classes <= 16
