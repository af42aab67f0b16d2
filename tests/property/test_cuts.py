"""Cut bounds against every cut of small machines, and against what the simulator takes."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zipplan.planner.collectives import NATIVE
from zipplan.planner.costs import Rates, wire
from zipplan.planner.errors import ConfigError
from zipplan.planner.profiles import parse_profile
from zipplan.planner.schedule import Collective
from zipplan.planner.simulate import simulate
from zipplan.planner.topology import Cluster, build_cluster, load_machine, parse_machine
from zipplan.planner.topology.model import Override
from zipplan.planner.transport import Transport
from zipplan.planner.trees import cut_bound, two_phase_bound
from zipplan.planner.trees.cut import BOUNDED

PS = 10**12


@st.composite
def machines(draw: st.DrawFn) -> Cluster:
    """One or two nodes of two or three GPUs on two CPUs, with NVLinks here and there, some of them one way only."""
    count, nodes = draw(st.integers(2, 3)), draw(st.integers(1, 2))
    rate = st.integers(1, 40)
    rows = [f'a = "gpu{g}"\nb = "cpu{g % 2}"\nkind = "pcie"\nbandwidth = "{draw(rate)}GB/s"\n' for g in range(count)]
    rows.append(f'a = "cpu0"\nb = "cpu1"\nkind = "cpu"\nbandwidth = "{draw(rate)}GB/s"\n')
    rows.append(f'a = "nic0"\nb = "cpu{draw(st.integers(0, 1))}"\nkind = "pcie"\nbandwidth = "{draw(rate)}GB/s"\n')
    pairs = [(a, b) for a in range(count) for b in range(a)]
    for a, b in draw(st.lists(st.sampled_from(pairs), max_size=4)):
        way = str(draw(st.booleans())).lower()
        rows.append(f'a = "gpu{a}"\nb = "gpu{b}"\nkind = "nvlink"\nbandwidth = "{draw(rate)}GB/s"\none_way = {way}\n')
    links = "".join(f'[[node.link]]\n{row}source = "test"\n' for row in rows)
    text = (
        'schema = 1\nname = "m"\nsource = "test"\n[gpu]\nmodel = "V100"\n'
        f'[[node]]\nranks = {count}\nsource = "test"\n{links}'
        f'[[node.nic]]\nname = "nic0"\nbandwidth = "{draw(rate)}GB/s"\nsource = "test"\n'
        '[fabric]\nkind = "switch"\nsource = "test"\n'
    )
    return build_cluster(parse_machine(text, "m"), nodes=nodes)


def every_cut(cluster: Cluster) -> Iterator[tuple[set[int], int]]:
    """(ranks on the sending side, bytes/s out of it) of every cut that parts ranks from ranks."""
    links = [link for link in cluster.links if link.kind != "nic" or cluster.nodes > 1]
    devices = sorted({end for link in links for end in (link.src, link.dst)})
    device = [f"n{cluster.node_of(r)}/{cluster.device_of(r)}" for r in range(cluster.ranks)]
    number = {name: i for i, name in enumerate(devices)}
    ends = [(number[link.src], number[link.dst], link.bandwidth) for link in links]
    for side in product((False, True), repeat=len(devices)):
        ranks = {r for r in range(cluster.ranks) if side[number[device[r]]]}
        if 0 < len(ranks) < cluster.ranks:
            yield ranks, sum(rate for a, b, rate in ends if side[a] and not side[b])


@given(machines(), st.data())
@settings(max_examples=60)
def test_the_bound_is_the_tightest_of_all_cuts(cluster: Cluster, data: st.DataObject) -> None:
    cuts, count = list(every_cut(cluster)), cluster.ranks
    root = data.draw(st.integers(0, count - 1))
    gather = max(Fraction(len(ranks) * PS, rate * count) for ranks, rate in cuts)
    scatter = max(Fraction((count - len(ranks)) * PS, rate * count) for ranks, rate in cuts)
    assert cut_bound(cluster, "all_gather").ps_per_byte == gather
    assert cut_bound(cluster, "reduce_scatter").ps_per_byte == scatter
    assert two_phase_bound(cluster) == gather + scatter
    assert cut_bound(cluster, "broadcast", root).ps_per_byte == max(Fraction(PS, r) for s, r in cuts if root in s)
    whole = max(Fraction(PS, rate) for _, rate in cuts)
    reduced = cut_bound(cluster, "all_reduce")
    assert reduced.ps_per_byte >= whole if reduced.parts else reduced.ps_per_byte == whole


@given(machines(), st.sampled_from(BOUNDED))
@settings(max_examples=60)
def test_the_cut_that_is_named_gives_the_bound(cluster: Cluster, collective: str) -> None:
    bound = cut_bound(cluster, collective)
    cut = bound.cut
    if cut is None:
        assert bound.parts > 1
        return
    assert cut.bandwidth == sum(cluster.links[i].bandwidth for i in cut.links)
    others = cluster.ranks - len(cut.ranks)
    senders, receivers = (others, len(cut.ranks)) if cut.into else (len(cut.ranks), others)
    share = {"all_gather": Fraction(senders, cluster.ranks), "reduce_scatter": Fraction(receivers, cluster.ranks)}
    assert bound.ps_per_byte == share.get(collective, Fraction(1)) * PS / cut.bandwidth


def test_large_clusters_are_bound_by_plain_cuts_and_say_so() -> None:
    small, large = (build_cluster(load_machine("hgx-h100"), nodes=n) for n in (16, 64))
    assert [cut_bound(c, "all_gather").exact for c in (small, large)] == [True, False]
    # Each node may send 8 x 50 GB/s; all but it hold (N - 8)/N of the message.
    assert cut_bound(large, "all_gather").ps_per_byte == Fraction((512 - 8) * PS, 512 * 400 * 10**9)


def test_nodes_that_can_change_places_are_looked_at_once() -> None:
    """The answer is that of looking at every rank (an override makes every node its own kind)."""
    machine = load_machine("dgx-1v")
    same = tuple(Override(node=n, link="gpu0-gpu1", bandwidth="25GB/s", source="test") for n in range(4))
    alike, apart = (build_cluster(m, nodes=4) for m in (machine, machine.model_copy(update={"override": same})))
    assert len(set(apart.template_of.tolist())) > 1
    for collective in BOUNDED:
        assert cut_bound(alike, collective).ps_per_byte == cut_bound(apart, collective).ps_per_byte


@pytest.mark.parametrize("name", ["dgx-1v", "mi250-8", "pcie-4090x8", "hgx-h100", "gh200-quad", "a6000x8-200g"])
@pytest.mark.parametrize("nodes", [1, 2])
def test_no_native_collective_is_simulated_faster_than_its_cut(name: str, nodes: int) -> None:
    cluster = build_cluster(load_machine(name), nodes=nodes)
    for collective in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER, Collective.ALL_REDUCE):
        schedule = NATIVE[collective](cluster.nodes, cluster.ranks_per_node, "raw")
        sent = wire("raw", "bf16", parse_profile("gaussian"))
        taken = simulate(schedule, cluster, 1 << 30, sent, Transport(cluster), Rates.of(cluster)).time
        assert taken >= cut_bound(cluster, collective).time_ps(1 << 30)


def test_one_rank_costs_nothing_and_bad_names_are_refused() -> None:
    alone = build_cluster(load_machine("dgx-1v"), gpus=[3])
    assert cut_bound(alone, "all_gather").time_ps(1 << 30) == 0
    with pytest.raises(ConfigError, match="all_gather"):
        cut_bound(alone, "all_gathr")
    with pytest.raises(ConfigError, match="0 to 0"):
        cut_bound(alone, "broadcast", 1)
