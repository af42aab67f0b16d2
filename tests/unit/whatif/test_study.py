"""Sweeps: the cross product, what a case decides, parallel and resumed runs that give what a plain run gives."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from zipplan.planner.calibration import Calibration
from zipplan.planner.errors import ConfigError, PlanError, ZipplanError
from zipplan.planner.schedule import Collective
from zipplan.planner.search import Search
from zipplan.planner.settings import Settings
from zipplan.planner.topology import load_machine
from zipplan.planner.whatif import Case, Outcome, Study, evaluate, read_sweep, run, sensitivity, tight_link

ZIPPLAN = (sys.executable, "-m", "zipplan.planner.cli")


def test_cases_are_the_cross_product_in_order(study: Study) -> None:
    cases = study.cases()
    assert [case.name for case in cases[:4]] == [
        "codec.speed=0.005x, size=4K",
        "codec.speed=0.005x, size=64K",
        "codec.speed=0.005x, size=1M",
        "codec.speed=0.01x, size=4K",
    ]
    assert len({case.key for case in cases}) == len(cases) == 12


def test_an_outcome_is_the_planner_s_own_decision(study: Study) -> None:
    """The sweep adds nothing to what `plan` would say at that point."""
    case = study.cases()[-1]
    decision = Search(case.cluster(), case.collective, "bf16", case.search().profile).decide(1 << 20)
    found = evaluate(case)
    assert (found.choice, found.time) == (decision.best.label, decision.best.time)
    assert found.native == next(r.time for r, _ in decision.others if r.schedule.name == "native")
    assert [reason for _, _, reason in found.candidates[1:]] == [reason for _, reason in decision.others]
    assert found.gain == found.native / found.time > 1


def test_slower_never_gets_faster(study: Study) -> None:
    """F104: a slower codec or a narrower link never gives a shorter time, and the answer does change."""
    times = [o.time for o in run(Study(study.base, study.sweeps[:1]).cases())]
    assert times == sorted(times, reverse=True)
    assert len(set(times)) > 1
    links = Study(study.base, (read_sweep("link.nic.bandwidth=0.25x,0.5x,1x,2x"),))
    times = [o.time for o in run(links.cases())]
    assert times == sorted(times, reverse=True)
    assert len(set(times)) == 4


def test_every_part_of_a_case_is_in_its_key(study: Study) -> None:
    base = study.base
    job = {"transport": "gloo", "nodes": 4, "ranks_per_node": 1}
    measured = Calibration(made_by="a test", **job, links=(), exchanges=(), stages=())
    others = [
        replace(base, settings=Settings(calibration=measured)),
        replace(base, collective=Collective.ALL_REDUCE), replace(base, size=1), replace(base, dtype="fp16"),
        replace(base, profile="relu"), replace(base, algorithm="ring"), replace(base, nodes=3),
        replace(base, machine=load_machine("loopback")), base.changed("codec.speed", "2x"),
        base.changed("link.nic.latency", "2x"),
    ]  # fmt: skip
    assert len({case.key for case in (base, *others)}) == len(others) + 1
    assert replace(base, at=(("size", "1M"),)).key == base.key


def test_processes_give_what_one_process_gives(study: Study) -> None:
    assert run(study.cases(), jobs=2) == run(study.cases(), jobs=1)


@pytest.mark.timeout(120)
def test_a_dask_cluster_gives_what_one_process_gives(study: Study) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", Path(__file__).parent / "workers" / "dask_cluster.py"],
        capture_output=True, text=True, timeout=110,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [Outcome.from_json(o) for o in json.loads(done.stdout)] == run(study.cases())


def test_kept_outcomes_are_not_made_again(study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run(study.cases(), cache=tmp_path / "c")
    kept = sorted((tmp_path / "c").iterdir())
    assert len(kept) == 12
    kept[3].write_text(kept[3].read_text()[:20])  # cut off
    kept[5].write_text("[]")
    made: list[Case] = []

    def counted(case: Case) -> Outcome:
        made.append(case)
        return evaluate(case)

    monkeypatch.setattr("zipplan.planner.whatif.study.evaluate", counted)
    seen: list[None] = []
    assert run(study.cases(), cache=tmp_path / "c", each=lambda: seen.append(None)) == first
    assert len(made) == 2
    assert len(seen) == 12
    run(study.cases(), cache=tmp_path / "c")
    assert len(made) == 2


def test_a_killed_run_goes_on(tmp_path: Path) -> None:
    """Killed without warning: what was kept stays as it is, the rest is made, nothing half-written is left."""
    cache = tmp_path / "cache"
    sizes = ",".join(f"{k}K" for k in range(1, 200))
    command = [*ZIPPLAN, "whatif", "--topology", "a6000x8-200g", "--nodes", "8", "--collective", "all_reduce",
               "--sweep", f"size={sizes}", "--cache", cache, "--jobs", "1", "--json"]  # fmt: skip
    first = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    give_up = time.monotonic() + 40
    while len(list(cache.glob("[!.]*.json"))) < 3 and time.monotonic() < give_up:
        time.sleep(0.01)
    first.send_signal(signal.SIGKILL)
    first.wait(10)
    kept = {path: os.stat(path).st_mtime_ns for path in cache.glob("[!.]*.json")}
    assert 3 <= len(kept) < 199
    done = subprocess.run(command, capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["rows"]) == 199
    assert {path: os.stat(path).st_mtime_ns for path in kept} == kept
    for path in cache.glob("[!.]*.json"):
        json.loads(path.read_text())


def test_the_case_that_fails_is_named(study: Study) -> None:
    two = Study(study.base, (read_sweep("ranks_per_node=1,9"), read_sweep("size=1K")))
    with pytest.raises(ZipplanError, match=r"^ranks_per_node=9, size=1K: lab: 9 ranks per node"):
        run(two.cases())


def test_a_cache_that_cannot_be_made_is_refused_before_the_work(study: Study, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PlanError, match="cannot make the cache folder"):
        run(study.cases(), cache=tmp_path / "file" / "cache")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("size", "KEY=V,V"),
        ("size=", "KEY=V,V"),
        ("size=1M,,2M", "KEY=V,V"),
        ("sice=1M", "did you mean size"),
        ("codec.sped=1x", r"did you mean codec\.speed"),
        ("launch=1us", "ambiguous"),
        ("nodes=0", "whole number from 1"),
        ("nodes=two", "whole number from 1"),
        ("size=1M,16Q", "16Q"),
        ("dtype=bf61", "did you mean bf16"),
        ("collective=allgather", "did you mean all_gather"),
        ("profile=gausian", "did you mean gaussian"),
        ("codec.ratio=1.4,nan", "above 0"),
    ],
)
def test_bad_sweeps_are_refused(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_sweep(text)


def test_a_key_swept_twice_is_refused(study: Study) -> None:
    with pytest.raises(ConfigError, match="swept twice"):
        Study(study.base, (read_sweep("size=1M"), read_sweep("size=2M")))


def test_values_count_once() -> None:
    assert read_sweep("size= 1M,2M,1M") == ("size", ("1M", "2M"))


def test_sensitivity_is_where_the_choice_flips(study: Study) -> None:
    """A flip at factor f: the other choice there, the old one a little nearer."""
    case = replace(study.base, size=1 << 20)
    flips = sensitivity(case)
    chosen = evaluate(case).choice
    found = [f for f in flips if f.factor is not None]
    assert {f.key for f in found} >= {"link.nic.bandwidth", "codec.speed", "codec.ratio"}
    for flip in found:
        assert flip.factor is not None
        beyond = evaluate(case.changed(flip.key, f"{flip.factor}x")).choice
        nearer = evaluate(case.changed(flip.key, f"{flip.factor**0.9}x")).choice
        assert beyond == flip.to != chosen
        assert nearer == chosen
        assert flip.rises == (flip.factor > 1)
    for flip in flips:
        if flip.factor is None and case.settings.machine(case.machine).cpu:
            reach = "32x" if flip.rises else "0.03125x"
            assert evaluate(case.changed(flip.key, reach)).choice == chosen


def test_the_bounding_link_is_the_one_whose_rate_counts() -> None:
    """Not the one that is in use longest: on 8 A6000 nodes a socket link is busy, the NIC is full."""
    case = Case(load_machine("a6000x8-200g"), Collective.ALL_TO_ALL, 1 << 26, nodes=8)
    assert tight_link(case) == "link.nic.bandwidth"
    assert evaluate(case.changed("link.nic.bandwidth", "0.5x")).native > 1.8 * evaluate(case).native
    assert evaluate(case.changed("link.cpu.bandwidth", "0.9x")).native == evaluate(case).native
    assert tight_link(replace(case, nodes=1)) != "link.nic.bandwidth"
