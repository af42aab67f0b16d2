"""What a rank's codec costs on hosts and GPUs."""

from __future__ import annotations

import pytest

from zipplan.planner.collectives import all_gather
from zipplan.planner.costs import GPU_LAUNCH, Rates
from zipplan.planner.topology import build_cluster, load_machine


def test_ranks_on_one_host_share_its_cores() -> None:
    """Two cores: two ranks have one each, four have half of one, and no rank has more than one."""
    one, two, four = (Rates.of(build_cluster(load_machine("loopback"), ranks_per_node=n)) for n in (1, 2, 4))
    assert one == two
    assert four.encode == pytest.approx(two.encode / 2)
    assert four.decode == pytest.approx(two.decode / 2)


def test_gpu_codecs_stay_below_the_roofline_of_memory() -> None:
    """One pass reads 2 bytes and writes 1.4 per element: at most 0.59 of the memory's bandwidth."""
    for name in ("hgx-a100", "hgx-h100", "a6000x8-200g"):
        cluster = build_cluster(load_machine(name))
        assert cluster.gpu is not None
        for codec in ("window", "cascade"):
            assert 0 < Rates.of(cluster, codec).encode < 0.59 * (cluster.gpu.hbm_bandwidth or 0)


def test_a_stage_pays_its_launch_and_its_bytes() -> None:
    cluster = build_cluster(load_machine("hgx-h100"))
    rates = Rates.of(cluster)
    schedule = all_gather.zipped(1, 8, "window")
    encode, decode = schedule.stages[0], schedule.stages[-1]
    assert rates.duration(encode, schedule, 0) == GPU_LAUNCH
    one = rates.duration(encode, schedule, 10**9) - GPU_LAUNCH
    assert one == pytest.approx(1e21 / rates.encode)
    assert rates.duration(decode, schedule, 10**9) - GPU_LAUNCH == pytest.approx(8e21 / rates.decode)
