"""Many paths at once are the same paths."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from zipplan.planner.topology import build_cluster, load_machine


@pytest.mark.parametrize(
    ("name", "nodes", "ranks"), [("hgx-h100", 3, 8), ("hgx-h100", 40, 2), ("a6000x8-200g", 2, 5), ("loopback", 1, 4)]
)
def test_paths_agree_with_path(name: str, nodes: int, ranks: int) -> None:
    cluster = build_cluster(load_machine(name), nodes=nodes, ranks_per_node=ranks)
    pairs = [(a, b) for a in range(cluster.ranks) for b in range(cluster.ranks) if a != b]
    links, owner = cluster.paths(np.array([a for a, _ in pairs]), np.array([b for _, b in pairs]))
    found: list[Counter[int]] = [Counter() for _ in pairs]
    for link, pair in zip(links.tolist(), owner.tolist(), strict=True):
        found[pair][link] += 1
    assert found == [Counter(cluster.path(a, b)) for a, b in pairs]
