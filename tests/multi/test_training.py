"""A small transformer on real text, raw and planned: the same losses where data only move."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [pytest.mark.multi, pytest.mark.timeout(170)]

Launch = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def rows(torchrun: Launch) -> dict[str, dict[str, Any]]:
    """Way to train → what came out, of three steps on four ranks."""
    done = torchrun("-m", "zipplan.executor.lab.train", "3", ranks=4)
    assert done.returncode == 0, done.stderr
    return {row["way"]: row for row in json.loads(done.stdout)}


@pytest.mark.parametrize("way", ["FSDP2", "MoE"])
def test_movement_changes_no_bit_of_a_loss(rows: dict[str, dict[str, Any]], way: str) -> None:
    """Parameters and tokens were compressed on their way, and the model learns."""
    row = rows[way]
    assert row["same_bits"]
    assert row["ratio"] > 1.3
    assert row["last_loss"] < row["first_loss"] < 6.5


def test_planned_sums_stay_near_fp32_sums(rows: dict[str, dict[str, Any]]) -> None:
    """Losses with gradients summed by plan, and by gloo in bf16, against those of sums in FP32."""
    raw, planned = rows["DDP"]["errors"]
    assert rows["DDP"]["ratio"] > 1.3
    assert raw < 0.02
    assert planned < 0.02
