"""`codec bench` prints what it promises, and the training example runs. Sizes are checked, speeds are not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from zipplan.kernels.bench import bench
from zipplan.planner.cli.codec import codec
from zipplan.planner.errors import ConfigError

EXAMPLES = Path(__file__).parents[3] / "examples"
# docs of the codec: bits per element to stay under, for one tensor of normal bf16 data
MOST_BITS = {"window": 11.25, "cascade": 10.75}


def test_bench_as_json() -> None:
    result = CliRunner().invoke(codec, ["bench", "--size", "1M", "--rounds", "1", "--json"], catch_exceptions=False)
    document = json.loads(result.stdout)
    assert document["schema"] == 1
    assert document["copy_GBps"] > 0
    rows = document["rows"]
    assert {r["dtype"] for r in rows} == {"bf16", "fp16", "fp32", "fp8_e4m3", "fp8_e5m2"}
    assert {r["profile"] for r in rows} == {"gaussian", "laplace", "swiglu", "relu", "update"}
    assert all(min(r["encode_GBps"], r["decode_GBps"]) > 0 for r in rows)
    for name, most in MOST_BITS.items():
        first = next(r for r in rows if (r["codec"], r["dtype"], r["profile"]) == (name, "bf16", "gaussian"))
        assert first["bits_per_element"] < most
        assert first["ratio"] == pytest.approx(16 / first["bits_per_element"], abs=1e-3)
    swiglu = next(r for r in rows if (r["codec"], r["profile"]) == ("cascade", "swiglu"))
    assert swiglu["ratio"] > 1.38
    assert next(r for r in rows if r["codec"] == "delta")["ratio"] > 5


def test_bench_as_a_table() -> None:
    result = CliRunner().invoke(codec, ["bench", "--size", "64K", "--rounds", "1"], catch_exceptions=False)
    assert "bits/element" in result.stdout
    assert "cpu-portable" in result.stdout


@pytest.mark.parametrize("threads", ["0", "two", "1,", "-1"])
def test_bench_refuses_thread_counts(threads: str) -> None:
    with pytest.raises(ConfigError, match=f"--threads: cannot read '{threads}'; expected numbers"):
        CliRunner().invoke(codec, ["bench", "--threads", threads], catch_exceptions=False)


def test_bench_of_next_to_nothing() -> None:
    assert bench(size=1, rounds=1)["size_bytes"] == 8192


@pytest.mark.timeout(120)
def test_training_example() -> None:
    """F129: examples run."""
    command = [sys.executable, str(EXAMPLES / "codec_on_training.py"), "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 12
    assert all("cascade 1." in line for line in lines)
