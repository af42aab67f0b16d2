"""The codec speed at which compression breaks even, against the closed form (field case F030)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from zipplan.planner.profiles import parse_profile
from zipplan.planner.schedule import Collective
from zipplan.planner.search import Search
from zipplan.planner.settings import Settings
from zipplan.planner.topology import Cluster

G = 1 << 30


def test_break_even_codec_speed_grows_with_the_link(toy: Callable[..., Cluster]) -> None:
    """F030: 2 · link / (1 − 1/ratio) for one sender and one receiver: nine times the link needs nine times the codec.

    In an all-to-all of two ranks each codes all of it, twice, and sends half: 4 · link / (1 − 1/ratio).
    """
    ratio = Settings.read([f"codec.ratio={1 / 0.7}", "codec.launch=0ps"])
    speeds = []
    for link in (50, 450):
        search = Search(toy(2, wire=f"{link}GB/s"), Collective.ALL_TO_ALL, "bf16", parse_profile("gaussian"),
                        codec="window", settings=ratio)  # fmt: skip
        speeds.append(search.codec_break_even(search.decide(G)))
    assert speeds[0] == pytest.approx(2 * 333e9, rel=0.01)
    assert speeds[1] == pytest.approx(2 * 3000e9, rel=0.01)
