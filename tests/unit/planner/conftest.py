"""Small machines whose times can be worked out by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from zipplan.planner.topology import Cluster, build_cluster, parse_machine

TEXT = """
schema = 1
name = "toy"
summary = "hosts on one switch"
source = "made up for tests"

[cpu]
codec_encode = "{codec}"
codec_decode = "{codec}"
source = "made up for tests"

[transport]
kind = "gloo"
launch = "{launch}"
step_intra = "{step}"
step_inter = "{step}"
efficiency_intra = 1.0
efficiency_inter = 1.0
source = "made up for tests"

[[node]]
ranks = {ranks}
source = "made up for tests"

[[node.link]]
a = "rank{{*}}"
b = "nic{{*}}"
kind = "loopback"
bandwidth = "1000GB/s"
latency = "0ns"
source = "made up for tests"

[[node.link]]
a = "rank{{*}}"
b = "cpu{{{zeros}}}"
kind = "loopback"
bandwidth = "{inside}"
latency = "0ns"
source = "made up for tests"

[[node.nic]]
name = "nic{{*}}"
bandwidth = "{wire}"
latency = "{latency}"
source = "made up for tests"

[fabric]
kind = "switch"
latency = "0ns"
source = "made up for tests"
"""


@pytest.fixture
def toy() -> Callable[..., Cluster]:
    """toy(nodes, ranks): hosts with one NIC per rank on one switch; keyword arguments change a rate or a latency."""

    def make(
        nodes: int,
        ranks: int = 1,
        *,
        wire: str = "1GB/s",
        inside: str = "100GB/s",
        latency: str = "0ns",
        launch: str = "0ns",
        step: str = "0ns",
        codec: str = "10GB/s",
    ) -> Cluster:
        zeros = ",".join("0" * ranks)
        text = TEXT.format(**{**locals(), "ranks": ranks})
        return build_cluster(parse_machine(text, "toy"), nodes=nodes)

    return make
