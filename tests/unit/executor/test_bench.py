"""The bench's command line, without ranks."""

from __future__ import annotations

import subprocess
import sys

import pytest

from zipplan.executor.agree import _ranges
from zipplan.executor.bench import read_sizes, run
from zipplan.planner.bandwidth import bus_factor
from zipplan.planner.errors import ConfigError
from zipplan.planner.schedule import Collective, Exchange


def bench(*words: str, before: str = "") -> subprocess.CompletedProcess[str]:
    """Run the module in a process of its own, after `before`."""
    code = f"{before}\nimport sys, runpy\nsys.argv = ['bench', *{words!r}]\n"
    code += "runpy.run_module('zipplan.executor.bench', run_name='__main__')"
    environment = {"PATH": "/usr/bin:/bin"}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, env=environment)


def test_outside_torchrun() -> None:
    """One message with the command to run, exit 2, and torch is not even loaded."""
    done = bench("--plan", "my plan.json", "--json", before="import sys; sys.modules['torch'] = None")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "zipplan: error: bench needs several ranks and RANK is not set; start it with torchrun: "
        "torchrun --nproc-per-node 4 -m zipplan.executor.bench --plan 'my plan.json' --json\n"
    )


def test_without_torch() -> None:
    """F125: the extra to install."""
    world = ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"]
    missing = f"import os, sys; sys.modules['torch'] = None; os.environ.update(dict.fromkeys({world}, '0'))"
    done = bench("--plan", "plan.json", before=missing)
    assert done.returncode == 2
    assert done.stderr == "zipplan: error: rank 0: zipplan.executor needs torch: pip install 'zipplan[torch]'\n"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("-b", "16Q"), "cannot read '16Q'"),
        (("-b", "2M", "-e", "1M"), "-b 2M -e 1M: expected 0 < begin ≤ end"),
        (("-b", "0"), "expected 0 < begin ≤ end"),
        (("--iters", "0"), "'-n' / '--iters'"),
        (("--no-such",), "--no-such"),
    ],
)
def test_bad_options(words: tuple[str, ...], text: str) -> None:
    """One message, exit 2."""
    world = ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"]
    done = bench("--plan", "p", *words, before=f"import os; os.environ.update(dict.fromkeys({world}, '0'))")
    assert (done.returncode, done.stdout) == (2, "")
    assert text in done.stderr
    assert done.stderr.count("\n") == 1


def test_two_ranks_on_one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """F100: told at once, by every rank of the host, before NCCL would."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    for rank in "01":
        monkeypatch.setenv("LOCAL_RANK", rank)
        with pytest.raises(ConfigError, match=r"2 ranks and 1 GPUs on this host, .* use --backend gloo"):
            run({"backend": "nccl", "timeout": 1}, [])


@pytest.mark.parametrize(
    ("name", "usage", "example"),
    [
        ("bench", "zipplan.executor.bench [OPTIONS]", "zipplan.executor.bench --plan plan.json"),
        ("run", "zipplan.executor.run_plan [OPTIONS] PLAN", "zipplan.executor.run_plan plan.json"),
        ("calibrate", "zipplan.executor.calibrate [OPTIONS]", "zipplan.executor.calibrate -o cal.json"),
    ],
)
def test_help_says_how_ranks_are_started(name: str, usage: str, example: str) -> None:
    """Usage and example are one form, also where `zipplan NAME --help` asks."""
    command = [sys.executable, "-m", "zipplan.planner.cli", name, "--help"]
    text = " ".join(subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.split())
    assert text.startswith(f"Usage: torchrun --nproc-per-node R -m {usage} ")
    assert f"Example: torchrun --nproc-per-node 4 -m {example}" in text


def test_sizes() -> None:
    """-b, -e, -f as nccl-tests has them; one of the two ends alone is one size."""
    assert list(read_sizes("1K", "16K", 4)) == [1024, 4096, 16384]
    assert list(read_sizes("1K", "15K", 4)) == [1024, 4096]
    assert list(read_sizes(None, "1MB", 2)) == list(read_sizes("1MB", None, 2)) == [10**6]
    assert list(read_sizes(None, None, 2)) == []
    with pytest.raises(ConfigError, match="begin"):
        list(read_sizes("2", "1", 2))


def test_bus_factors() -> None:
    """nccl-tests doc/PERFORMANCE.md; one rank has no bus."""
    assert bus_factor(Collective.ALL_REDUCE, 4) == 1.5
    assert bus_factor(Collective.ALL_GATHER, 4) == 0.75
    assert bus_factor(Collective.ALL_TO_ALL, 1) == bus_factor(Exchange.BROADCAST, 1) == 0
    assert bus_factor(Exchange.BROADCAST, 8) == bus_factor(Exchange.SEND_RECV, 8) == 1


@pytest.mark.parametrize("ranks", [2, 4, 7])
@pytest.mark.parametrize("collective", Collective)
def test_native_calls_count_what_busbw_counts(collective: Collective, ranks: int) -> None:
    """Bytes sent by a rank are the message times the bus factor; an all-gather's input is one part of its message."""
    pytest.importorskip("torch")
    from zipplan.executor.native import wire_bytes

    sent = 840 // ranks if collective is Collective.ALL_GATHER else 840
    assert wire_bytes(Exchange(collective), sent, ranks) == pytest.approx(840 * bus_factor(collective, ranks))


@pytest.mark.parametrize(
    ("ranks", "text"), [([0], "0"), ([0, 2, 3], "0,2-3"), ([1, 2, 3, 5, 7, 8], "1-3,5,7-8"), ([4, 6], "4,6")]
)
def test_ranks_are_written_as_ranges(ranks: list[int], text: str) -> None:
    """'0,2-3' in messages about thousands of ranks."""
    assert _ranges(ranks) == text
