"""The calibration file: lines through measurements, what is refused, what plan and simulate take from it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from click.testing import CliRunner

from zipplan.planner.calibration import Calibration, Curve, ExchangeCurve, StageCurve, fit
from zipplan.planner.cli import cli
from zipplan.planner.errors import ConfigError
from zipplan.planner.profiles import parse_profile
from zipplan.planner.schedule import Axis, Collective, Exchange, Op
from zipplan.planner.search import Search
from zipplan.planner.settings import Settings
from zipplan.planner.topology import build_cluster, load_machine

SIZES = [1 << n for n in range(14, 22)]
FIXED, SLOPE = 250e6, 10_000.0  # ps; ps per byte, 100 MB/s


def line(fixed: float = FIXED, slope: float = SLOPE) -> Curve:
    return fit([(n, fixed + slope * n) for n in SIZES])


def made(ranks: int = 2, **changes: object) -> Calibration:
    """Exchanges at 250 µs + 100 MB/s, codec stages at 20 µs + 2 GB/s."""
    fields = {
        "made_by": "a test",
        "transport": "gloo",
        "nodes": ranks,
        "ranks_per_node": 1,
        "links": (),
        "exchanges": tuple(ExchangeCurve(exchange=e, axis=Axis.WORLD, curve=line()) for e in (Exchange.ALL_GATHER,)),
        "stages": tuple(
            StageCurve(codec="window", dtype="bf16", op=op, curve=line(20e6, 500.0)) for op in (Op.ENCODE, Op.DECODE)
        ),
    }
    return Calibration.model_validate({**fields, **changes})


def search(calibration: Calibration | None, *changes: str, ranks: int = 2) -> Search:
    settings = Settings(Settings.read(changes).values, calibration)
    cluster = build_cluster(settings.machine(load_machine("lab")), nodes=ranks)
    return Search(cluster, Collective.ALL_GATHER, "bf16", parse_profile("gaussian"), "window", settings=settings)


def test_a_line_is_found_again() -> None:
    curve = line()
    assert curve.fixed_ps == pytest.approx(FIXED)
    assert curve.rate == pytest.approx(1e8)
    assert curve.error < 1e-9


def test_the_error_is_that_of_points_the_fit_has_not_seen() -> None:
    """F116: only held-out points are off, so a fit that had seen them would bend."""
    points = [(n, (FIXED + SLOPE * n) * (1.5 if i % 3 == 1 else 1.0)) for i, n in enumerate(SIZES)]
    curve = fit(points)
    assert curve.error == pytest.approx(1 / 3)
    curves = (ExchangeCurve(exchange=Exchange.ALL_GATHER, axis=Axis.WORLD, curve=curve),)
    assert made(exchanges=curves).warnings() == ["all_gather on world: t = a + n/b misses held-out points by up to 33%"]
    assert made().warnings() == []


@pytest.mark.parametrize("ps", [0.0, -1.0, math.nan, math.inf, 1.0])
def test_times_that_cannot_be_are_refused(ps: float) -> None:
    """F078: zero, negative, not a number, and more than any memory moves; the message tells the bound."""
    with pytest.raises(ConfigError, match=r"cannot be: expected a time above 0 and at most 10 TB/s"):
        fit([(1 << 20, ps), *((n, FIXED + SLOPE * n) for n in SIZES)])


def test_faster_than_the_link_is_refused() -> None:
    """F078: 100 MB/s through a link of 50 MB/s."""
    with pytest.raises(
        ConfigError, match=r"all_gather at 100 MB/s for each rank is faster than the links of lab allow"
    ):
        search(made(), "link.nic.bandwidth=50MB/s").fastest(1 << 20, "raw")


def test_simulation_takes_the_measured_time() -> None:
    size = 1 << 21  # two ranks: each puts in half
    found = search(made()).fastest(size, "raw").time
    assert found == pytest.approx(FIXED + SLOPE * size / 2, rel=1e-6)
    planned = search(made())
    zipped = planned.run(next(s for s in planned.schedules if (s.name, s.codec) == ("zipped", "window")), size)
    ratio = zipped.wire.ratio
    expected = 2 * FIXED + SLOPE * size / 2 / ratio + 2 * 20e6 + 500 * (size / 2 + size)
    assert zipped.time == pytest.approx(expected, rel=1e-3)  # and a frame's header


def test_set_works_on_top_of_it() -> None:
    measured, twice = search(made()).rates["window"], search(made(), "codec.speed=2x").rates["window"]
    assert (twice.encode, twice.decode) == (2 * measured.encode, 2 * measured.decode)
    assert measured.encode == pytest.approx(2e9)


def test_another_job_is_refused() -> None:
    with pytest.raises(ConfigError, match="measured on 4 × 1 ranks with gloo, planned for 2 × 1 with gloo"):
        search(made(ranks=4))


def test_file_and_plan_name_it(tmp_path: Path) -> None:
    path = tmp_path / "cal.json"
    made().save(path)
    loaded = Calibration.load(path)
    assert loaded == made()
    plan = tmp_path / "plan.json"
    words = ["plan", "--topology", "lab", "--nodes", "2", "--collective", "all_gather", "--size", "1M"]
    done = CliRunner().invoke(cli, [*words, "--calibration", str(path), "-o", str(plan)])
    assert done.exit_code == 0, done.output
    assert json.loads(plan.read_text())["calibration"] == loaded.id
    assert json.loads(path.read_text())["hash"].startswith(loaded.id.removeprefix("calibration "))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: "", "not a whole JSON file"),
        (lambda text: "[]", "expected a zipplan calibration of schema 1"),
        (lambda text: text.replace('"schema": 1', '"schema": 9'), "expected a zipplan calibration of schema 1"),
        (lambda text: text.replace('"nodes": 2', '"nodes": 3'), "edited or damaged"),
        (lambda text: text[:-20], "not a whole JSON file"),
    ],
)
def test_damaged_files(tmp_path: Path, change: object, message: str) -> None:
    path = tmp_path / "cal.json"
    made().save(path)
    path.write_text(change(path.read_text()))  # type: ignore[operator]
    with pytest.raises(ConfigError, match=message):
        Calibration.load(path)


def test_missing_file_and_two_curves() -> None:
    with pytest.raises(ConfigError, match="cannot read: No such file"):
        Calibration.load("/nonexistent/cal.json")
    with pytest.raises(ValueError, match="two curves for exchange all_gather world"):
        made(exchanges=made().exchanges * 2)
