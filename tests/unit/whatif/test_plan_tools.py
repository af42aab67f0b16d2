"""Around a plan file: its published schema, diff, the NCCL tuner export, sensitivity in explain."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner

from zipplan.planner.cli import cli
from zipplan.planner.cli.diff import differences
from zipplan.planner.cli.export import TOP, tuner_rows
from zipplan.planner.errors import PlanError, ZipplanError
from zipplan.planner.make import make_plan
from zipplan.planner.plan import Plan
from zipplan.planner.profiles import parse_profile
from zipplan.planner.schedule import Collective
from zipplan.planner.schema import plan_schema, text
from zipplan.planner.search import Search
from zipplan.planner.settings import Settings
from zipplan.planner.topology import build_cluster, load_machine
from zipplan.planner.units import short_size

ROOT = Path(__file__).parents[3]
K, M, G = 1 << 10, 1 << 20, 1 << 30


def plan_on(
    topology: str, nodes: int, collectives: list[Collective], sizes: list[int], *changes: str, dtype: str = "bf16"
) -> Plan:
    settings = Settings.read(changes)
    cluster = build_cluster(settings.machine(load_machine(topology)), nodes=nodes)
    return make_plan(cluster, collectives, sizes, dtype, parse_profile("gaussian"), settings=settings)


def zipplan(*args: object, code: int = 0) -> str:
    """Standard output of a command; errors as the command line would show them."""
    done = CliRunner().invoke(cli, [str(a) for a in args])
    if done.exit_code != code and done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == code, done.output
    return done.stdout


# ---- the schema


def test_the_published_schema_is_what_the_types_say() -> None:
    published = (ROOT / "docs" / "plan-schema.json").read_text(encoding="utf-8")
    assert published == text(), "make it again: python -m zipplan.planner.schema > docs/plan-schema.json"


def test_real_plans_fit_the_schema_and_broken_ones_do_not() -> None:
    check = jsonschema.Draft202012Validator(plan_schema())
    check.check_schema(plan_schema())
    document = plan_on("hgx-h100", 2, list(Collective), [64 * K, 64 * M]).document()
    assert list(check.iter_errors(document)) == []
    for path, value in ((("schema",), 1), (("topology", "nodes"), 0), (("entries",), []), (("new",), 1)):
        broken: Any = json.loads(json.dumps(document))
        at = broken
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = value
        assert list(check.iter_errors(broken)), path
    del document["hash"]
    assert list(check.iter_errors(document))


# ---- diff


def test_a_plan_equals_itself(tmp_path: Path) -> None:
    plan = plan_on("lab", 4, [Collective.ALL_GATHER], [K, 16 * M])
    plan.save(tmp_path / "a")
    assert list(differences(plan, Plan.load(tmp_path / "a"))) == []
    assert "same plan" in zipplan("diff", tmp_path / "a", tmp_path / "a")
    assert json.loads(zipplan("diff", tmp_path / "a", tmp_path / "a", "--json"))["same"] is True


def test_diff_names_machine_choices_and_times(tmp_path: Path) -> None:
    before = plan_on("lab", 4, [Collective.ALL_GATHER, Collective.ALL_REDUCE], [K, 16 * M])
    after = plan_on("lab", 4, [Collective.ALL_GATHER], [K, 64 * M], "link.nic.bandwidth=100Gb/s", "codec.speed=0.5x")
    before.save(tmp_path / "a")
    after.save(tmp_path / "b")
    answer = json.loads(zipplan("diff", tmp_path / "a", tmp_path / "b", "--json", code=1))
    found = {(d["where"].split(" ")[0], d["what"]): (d["a"], d["b"]) for d in answer["differences"]}
    assert found["plan", "calibration"] == ("machine file", "machine file codec.speed=0.5x")
    assert ("topology", "fingerprint") in found
    assert found["all_reduce", "table"] == ("present", None)
    assert found["all_gather", "size 64M"] == (None, "planned")
    assert found["all_gather", "size 16M"] == ("planned", None)
    assert "%" in found["all_gather", "time at 1K"][1]
    border = before.entries[0].choices[0].stop
    assert border
    (choice,) = (k for k in found if k[1].startswith("choice in"))
    assert found[choice][1] == "native"
    assert choice[1].endswith(", ∞)")
    shown = zipplan("diff", tmp_path / "a", tmp_path / "b", code=1)
    assert "calibration" in shown
    assert "all_reduce of bf16 (gaussian)" in shown


def test_diff_tells_where_only_a_border_moved() -> None:
    a, b = (plan_on("lab", 4, [Collective.ALL_GATHER], [K, M], f"codec.speed={f}") for f in ("1x", "0.5x"))
    low, high = a.entries[0].choices[0].stop, b.entries[0].choices[0].stop
    assert low
    assert high
    assert low < high
    (moved,) = (d for d in differences(a, b) if d.what.startswith("choice"))
    assert (moved.a, moved.b) == (a.entries[0].choices[1].label, "native")


def test_a_choice_that_wins_between_two_planned_sizes_gets_its_range() -> None:
    (entry,) = plan_on("lab", 4, [Collective.ALL_GATHER], [K, 64 * M]).entries
    assert [c.schedule.name for c in entry.choices] == ["native", "zipped", "zipped-x4"]
    (alone,) = plan_on("lab", 4, [Collective.ALL_GATHER], [K, M]).entries
    assert entry.choices[0].stop == pytest.approx(alone.choices[0].stop, rel=0.1)


# ---- export


def matching(rows: list[Any], collective: str, size: int) -> Any:
    """What NCCL's example plugin does: the first row whose limits, both inclusive, hold the size."""
    return next((r for r in rows if r.collective == collective and r.min_bytes <= size <= r.max_bytes), None)


def test_the_tuner_file_says_what_the_plan_predicted(tmp_path: Path) -> None:
    """Every uncompressed size has exactly the planned row, up to the top (F074: no hole, no 4 GiB limit)."""
    plan = plan_on("hgx-h100", 8, list(Collective), [4 * K, M, 64 * M, G])
    plan.save(tmp_path / "p")
    lines = zipplan("export", tmp_path / "p").splitlines()
    assert all(len(line) < 255 for line in lines)  # the plugin's MAX_LINE_LENGTH
    rows = [row for entry in plan.entries for row in tuner_rows(plan, entry)]
    assert [line for line in lines if line[0] != "#"] == [
        f"{r.collective},{r.min_bytes},{r.max_bytes},{r.algorithm},{r.protocol},-1,8,64,-1,-1" for r in rows
    ]
    names = {"all_gather": "allgather", "all_reduce": "allreduce", "reduce_scatter": "reducescatter"}
    seen = 0
    for entry in plan.entries:
        for choice in entry.choices:
            for point in choice.points:
                row = matching(rows, names.get(str(entry.collective), "none"), point.size_bytes)
                if choice.schedule.codec == "raw" and entry.collective != Collective.ALL_TO_ALL:
                    assert row is not None
                    (carried,) = point.carried.values()
                    assert row.algorithm.replace("_", "") == carried[0].lower()
                    assert row.protocol == carried[1].lower()
                    seen += 1
                else:
                    assert row is None
    assert seen >= 6
    for entry in plan.entries:
        mine = [r for r in rows if r.collective == names.get(str(entry.collective))]
        assert all(a.max_bytes < b.min_bytes for a, b in pairwise(mine))
        raw = [c for c in entry.choices if c.schedule.codec == "raw"] if mine else []
        covered = sum(r.max_bytes + 1 - r.min_bytes for r in mine)
        assert covered == sum((TOP + 1 if c.stop is None else c.stop) - c.start for c in raw)


def test_export_writes_a_file_or_json(tmp_path: Path) -> None:
    plan_on("hgx-h100", 1, [Collective.ALL_REDUCE], [M]).save(tmp_path / "p")
    assert "rows written" in zipplan("export", tmp_path / "p", "-o", tmp_path / "t.conf")
    assert (tmp_path / "t.conf").read_text() == zipplan("export", tmp_path / "p")
    (row,) = json.loads(zipplan("export", tmp_path / "p", "--json"))["rows"]
    assert (row["collective"], row["min_bytes"], row["max_bytes"], row["nRanks"]) == ("allreduce", 0, TOP, 8)


@pytest.mark.parametrize(
    ("topology", "collective", "words"),
    [("lab", Collective.ALL_GATHER, "only NCCL reads"), ("hgx-h100", Collective.ALL_TO_ALL, "nothing to export")],
)
def test_what_nccl_cannot_use_is_refused(tmp_path: Path, topology: str, collective: Collective, words: str) -> None:
    plan_on(topology, 2, [collective], [M]).save(tmp_path / "p")
    with pytest.raises(ZipplanError, match=words):
        zipplan("export", tmp_path / "p", "-o", tmp_path / "t")
    assert not (tmp_path / "t").exists()


# ---- simulate --links


def test_every_link_of_a_cube_mesh_tells_what_it_carried() -> None:
    """F109: bytes and busy time of every link; single and double NVLinks carry in proportion to what they can."""
    arguments = ("simulate", "--topology", "dgx-1v", "--collective", "all_gather", "--size", "64M")
    (row,) = json.loads(zipplan(*arguments, "--links", 1000, "--json"))["rows"]
    links = row["links"]
    assert {use["bandwidth_GBps"] for use in links if use["kind"] == "nvlink"} <= {25.0, 50.0}
    assert [use["full"] for use in links] == sorted((use["full"] for use in links), reverse=True)
    for use in links:
        assert 0 < use["full"] <= 1.0001
        assert use["bytes"] == pytest.approx(use["full"] * use["bandwidth_GBps"] * row["time_us"] * 1e3, rel=1e-2)
        assert use["busy_us"] <= row["time_us"] + 1e-3
    sent = sum(use["bytes"] for use in links if use["kind"] == "nvlink")
    assert sent >= 7 / 8 * (64 * M) * 8  # every rank gets seven eighths, over one link or more
    assert links[0]["link"] in zipplan(*arguments, "--links", 1)
    assert "links" not in json.loads(zipplan(*arguments, "--json"))["rows"][0]


# ---- explain


def test_a_codec_at_break_even_takes_as_long_as_native() -> None:
    """F030: the codec speed that explain prints, put into the simulator, gives native's time."""
    cluster = build_cluster(load_machine("a6000x8-200g"), nodes=4)
    for collective in Collective:
        search = Search(cluster, collective, "bf16", parse_profile("gaussian"), codec="window")
        decision = search.decide(64 * M)
        speed = search.codec_break_even(decision)
        results = [decision.best, *(r for r, _ in decision.others)]
        plain = (r for r in results if r.schedule.codec == "window" and r.schedule.chunks == 1)
        zipped = min(plain, key=lambda r: r.time)
        native = next(r for r in results if r.schedule.codec == "raw")
        if speed is None:
            free = Settings.read(["codec.speed=1000000x"])
            fast = Search(cluster, collective, "bf16", search.profile, codec="window", settings=free)
            assert fast.run(zipped.schedule, 64 * M).time >= native.time
            continue
        set_so = Settings.read([f"codec.speed={speed}B/s"])
        again = Search(cluster, collective, "bf16", search.profile, codec="window", settings=set_so)
        assert again.run(zipped.schedule, 64 * M).time == pytest.approx(native.time, rel=1e-6)


def test_explain_prints_margin_break_even_and_what_would_flip_the_choice(tmp_path: Path) -> None:
    path = tmp_path / "p"
    plan_on("lab", 4, [Collective.ALL_GATHER], [16 * M]).save(path)
    alone = zipplan("explain", path)
    assert "chosen though zipped-x4 cascade is 4% faster" in alone
    (choice,) = Plan.load(path).entries[0].choices
    assert f"scratch ≤ {short_size(choice.points[0].scratch_bytes)}" in alone  # F028: known before anything runs
    assert "compression pays from a codec of" in alone
    assert "flips to" not in alone
    asked = json.loads(zipplan("explain", path, "--topology", "lab", "--json"))
    (point,) = asked["entries"][0]["choices"][0]["points"]
    flips = {(f["key"], f["rises"]): f for f in point["sensitivity"]}
    assert flips["link.nic.bandwidth", True]["to"] == "zipped-x4 cascade"
    assert flips["link.nic.bandwidth", True]["factor"] > 1
    assert flips["link.nic.bandwidth", False]["to"] != "native"
    assert f"flips to zipped-x4 cascade above {flips['link.nic.bandwidth', True]['factor']:.2f}×" in zipplan(
        "explain", path, "--topology", "lab"
    )
    second = min((r for r in point["rejected"] if r["predicted_ps"]), key=lambda r: r["predicted_ps"])
    assert point["margin"] == pytest.approx(second["predicted_ps"] / point["predicted_ps"] - 1, abs=1e-3)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--topology", "a6000x8-200g"), "another machine or other constants"),
        (("--topology", "lab", "--set", "link.nic.latency=2x"), "another machine or other constants"),
        (("--topology", "lab", "--set", "codec.speed=2x"), "codec as in 'machine file'"),
        (("--set", "codec.speed=2x"), "need --topology"),
    ],
)
def test_sensitivity_of_another_machine_is_refused(tmp_path: Path, options: tuple[str, ...], words: str) -> None:
    """F082: a plan is explained by the machine that it was made for, to the last constant."""
    plan_on("lab", 4, [Collective.ALL_GATHER], [M]).save(tmp_path / "p")
    with pytest.raises(ZipplanError, match=words):
        zipplan("explain", tmp_path / "p", *options)


def test_explain_takes_the_settings_that_the_plan_was_made_with(tmp_path: Path) -> None:
    plan_on("lab", 4, [Collective.ALL_GATHER], [M], "codec.speed=2x", "link.nic.latency=2x").save(tmp_path / "p")
    changes = ("--set", "link.nic.latency=2x", "--set", "codec.speed=2x")
    assert "no other choice" in zipplan("explain", tmp_path / "p", "--topology", "lab", *changes)


def test_a_dtype_s_ratio_is_its_own(tmp_path: Path) -> None:
    """F029: the same values compress unlike as bf16, fp32 and fp16, and the plan holds a ratio for each."""
    ratios = {}
    for dtype in ("bf16", "fp32", "fp16", "u8"):
        plan = plan_on("lab", 4, [Collective.ALL_GATHER], [64 * M], dtype=dtype)
        ratios[dtype] = plan.entries[0].choices[-1].expected_ratio
    assert ratios["bf16"] > ratios["fp32"] > ratios["u8"] == 1.0
    assert ratios["fp16"] < ratios["bf16"]


def test_capacity_counts_the_worst_case_and_time_the_expected_one() -> None:
    """F036: eight ranks, a message of 10 GiB: scratch holds every frame incompressible, time expects the ratio."""
    plan = plan_on("a6000x8-200g", 1, [Collective.ALL_TO_ALL], [10 * G], "codec.ratio=1.4286", "codec.speed=100x")
    (row,) = plan.entries[0].choices
    assert row.schedule.codec != "raw"
    (point,) = row.points
    frames = 2 * (10 * G + 8 * 64)  # one buffer to send and one to receive, a 64-byte header per frame
    assert point.scratch_bytes == frames
    native = next(r for r in point.rejected if r.name == "native")
    assert native.predicted_ps / point.predicted_ps == pytest.approx(1.4286, rel=0.02)


def test_a_choice_is_not_left_for_a_percent() -> None:
    """F084: where the plan turns to compression it is 5 % faster already: noise of a percent makes it no loss."""
    plan = plan_on("lab", 4, [Collective.ALL_GATHER, Collective.ALL_REDUCE], [K, 64 * M])
    cluster = build_cluster(load_machine("lab"), nodes=4)
    for entry in plan.entries:
        search = Search(cluster, entry.collective, "bf16", parse_profile("gaussian"))
        for row in entry.choices[1:]:
            native = search.run(search.schedules[0], row.start).time
            assert native / search.run(row.schedule, row.start).time > 1.04


def test_old_and_new_schemas_are_refused_with_what_to_do(tmp_path: Path) -> None:
    document = plan_on("lab", 2, [Collective.ALL_GATHER], [M]).document()
    for number in (1, 3, "2", None):
        (tmp_path / "p").write_text(json.dumps({**document, "schema": number}))
        with pytest.raises(PlanError, match=r"this zipplan reads schema 2; make the plan again"):
            Plan.load(tmp_path / "p")


@pytest.mark.parametrize("command", ["whatif", "diff", "export", "explain"])
def test_commands_have_help_with_an_example_and_fail_cleanly(command: str) -> None:
    assert "Example" in zipplan(command, "--help")
    done = subprocess.run(
        [sys.executable, "-m", "zipplan.planner.cli", command, *(["/nonexistent/a"] * (2 if command == "diff" else 1))],
        capture_output=True, text=True, timeout=50,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
