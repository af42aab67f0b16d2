"""The examples that need ranks, as their own first lines say to run them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = [pytest.mark.multi, pytest.mark.timeout(170)]

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_planned_collectives(torchrun: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path) -> None:
    """Plans, moves compressed bytes, reports ratio and fallback."""
    words = ["--topology", "loopback", "--size", "1M,16M", "-o", "plan.json"]
    zipplan = [sys.executable, "-c", "from zipplan.planner.cli import main; main()"]
    subprocess.run([*zipplan, "plan", *words], cwd=tmp_path, check=True, timeout=60, capture_output=True)
    done = torchrun(str(EXAMPLES / "planned_collectives.py"), str(tmp_path / "plan.json"))
    assert done.returncode == 0, done.stderr
    first, second, third, last = done.stdout.splitlines()
    assert first.startswith("all_gather of bf16: zipped-x4, ratio 1.")
    assert second.startswith("all_reduce of bf16: two-shot-x4, ratio 1.")
    assert third.startswith("all_reduce of int64: native, ratio 1.00")
    assert last == "all_reduce of int64 ran natively: the plan has no table for all_reduce of int64"


@pytest.fixture(scope="module")
def lab_plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The plan that the first lines of the training examples make."""
    folder = tmp_path_factory.mktemp("lab")
    zipplan = [sys.executable, "-c", "from zipplan.planner.cli import main; main()"]
    words = ["plan", "--topology", "lab", "--nodes", "4", "--size", "64K,4M", "-o", "plan.json"]
    subprocess.run([*zipplan, *words], cwd=folder, check=True, timeout=60, capture_output=True)
    return folder / "plan.json"


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        (
            "train_fsdp2.py",
            ["2 modules hooked: 0, 2", "not hooked: (root): it holds no", "bit-identical: yes", "weights: zipped"],
        ),
        ("train_ddp.py", ["equal on all ranks: yes", "all_reduce of bf16 gradients: two-shot"]),
        ("route_tokens.py", ["rank 2: 0 tokens arrived", "all_to_all of bf16 tokens gradients: zipped-uneven"]),
    ],
)
def test_training_examples(
    torchrun: Callable[..., subprocess.CompletedProcess[str]], lab_plan: Path, name: str, parts: list[str]
) -> None:
    """Each says of itself that its results are right, and what was compressed."""
    assert len((EXAMPLES / name).read_text().splitlines()) < 60
    done = torchrun(str(EXAMPLES / name), str(lab_plan))
    assert done.returncode == 0, done.stderr
    for part in parts:
        assert part in done.stdout


def test_an_unchanged_program(torchrun: Callable[..., subprocess.CompletedProcess[str]], lab_plan: Path) -> None:
    """The process group takes its plan from the environment and reports at the end."""
    environment = {"ZIPPLAN_PLAN": str(lab_plan), "ZIPPLAN_LOG": "info"}
    done = torchrun(str(EXAMPLES / "train_unchanged.py"), env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("loss ") == 4
    assert done.stderr.count("zipplan: report of rank 0: plan ") == 1
    assert "all_reduce of bf16: two-shot" in done.stderr
    assert "native: broadcast of any, " in done.stderr
