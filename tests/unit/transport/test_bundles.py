"""All pairs of many ranks are bundled onto few: what that changes, and what it does not."""

from __future__ import annotations

import numpy as np
import pytest

from zipplan.planner.schedule import Exchange
from zipplan.planner.settings import Settings
from zipplan.planner.topology import Cluster, build_cluster, load_machine
from zipplan.planner.transport import direct
from zipplan.planner.transport.ways import Way


def both(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> tuple[Way, Way]:
    """All pairs one by one, and bundled."""
    everyone = range(cluster.ranks)
    monkeypatch.setattr(direct, "MOST_FLOWS", 10**9)
    pairs = direct.direct(cluster, Exchange.ALL_TO_ALL, everyone)
    monkeypatch.setattr(direct, "MOST_FLOWS", 1)
    return pairs, direct.direct(cluster, Exchange.ALL_TO_ALL, everyone)


def by_link(way: Way, cluster: Cluster) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.bincount(way.paths.links, way.share[way.paths.owner], len(cluster.bandwidths))


@pytest.mark.parametrize("name", ["hgx-h100", "a6000x8-200g", "gh200-quad", "mi250-16", "gb200-nvl72"])
def test_nodes_and_ports_carry_what_they_do_with_all_pairs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = load_machine(name)
    cluster = build_cluster(machine, nodes=-(-300 // machine.node[0].ranks))
    pairs, bundled = both(cluster, monkeypatch)
    assert bundled.paths.count < pairs.paths.count
    ports = [link.index for link in cluster.links if link.kind != "fabric"]
    assert by_link(bundled, cluster)[ports] == pytest.approx(by_link(pairs, cluster)[ports])


@pytest.mark.parametrize("times", [1, 4])
def test_the_busiest_link_is_as_busy_within_a_fiftieth(times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal where the fabric is not oversubscribed, since then the ports decide."""
    machine = Settings.read([f"fabric.oversubscription={times}"]).machine(load_machine("hgx-h100"))
    pairs, bundled = both(build_cluster(machine, nodes=64), monkeypatch)
    assert bundled.wire(1.0, 1.0) == pytest.approx(pairs.wire(1.0, 1.0), rel=1e-9 if times == 1 else 0.02)
