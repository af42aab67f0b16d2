"""The HTML report: one file that fetches nothing, says what the outcomes say, and shows in a browser."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from zipplan.planner.report import render, speed_map
from zipplan.planner.topology import build_cluster, load_machine
from zipplan.planner.whatif import Study, read_sweep, run
from zipplan.planner.workload import load_workload, plan_workload

ZIPPLAN = (sys.executable, "-m", "zipplan.planner.cli")
VOID = {"meta", "br", "link", "img"}


def page_of(study: Study) -> str:
    outcomes = run(study.cases())
    chart = speed_map(study.cases()[-1])
    return render(study, outcomes, len(outcomes) - 1, chart, run(chart.cases()))


class Page(HTMLParser):
    """Text, addresses and ids of a page; raises on tags that do not close in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text, self.addresses, self.ids, self._open = "", [], [], []  # type: ignore[var-annotated]
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self._open.append(tag)
        self.ids += [value for name, value in attrs if name == "id"]
        self.addresses += [v for name, v in attrs if name in ("src", "href", "xlink:href") and v and v[0] != "#"]
        assert tag != "script"

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_fetches_nothing_and_is_well_formed(study: Study) -> None:
    text = page_of(study)
    page = Page(text)
    assert page.addresses == []
    assert re.findall(r"url\((?!#)|@import", text) == []
    assert len(page.ids) == len(set(page.ids))
    for target in re.findall(r'(?:xlink:href="|url\()#([^")]+)', text):
        assert target in page.ids


def test_equal_studies_give_equal_pages(study: Study) -> None:
    assert page_of(study) == page_of(study)


def test_the_page_says_what_the_outcomes_say(study: Study) -> None:
    outcomes = run(study.cases())
    text = Page(page_of(study)).text
    paying = [o for o in outcomes if o.choice != "native"]
    best = max(paying, key=lambda o: o.gain)
    assert f"Compression pays in {len(paying)} of 12 cases" in text
    assert f"{best.gain:.2f}× with {best.choice}" in text
    for heading in (
        "Speed-up over the native",
        "Break-even map of the two sweeps",
        "link rate × codec speed",
        "Timelines",
    ):
        assert heading in text
    assert text.count("% full") >= 12
    assert f"{outcomes[-1].choice}: codec, copies" in text


def test_names_and_switches_can_be_swept(study: Study) -> None:
    """No place on a logarithmic axis, but a page."""
    one = Study(study.base, (read_sweep("dtype=bf16,u8"),))
    assert "u8" in Page(page_of(one)).text


def test_where_nothing_can_be_compressed_the_page_says_so(study: Study) -> None:
    raw = Study(study.base, (read_sweep("dtype=u8"),))
    assert "nothing compressed could be tried" in Page(page_of(raw)).text


def test_the_command_writes_the_page_and_keeps_outcomes_in_the_cache_folder(tmp_path: Path) -> None:
    options = "--topology lab --collective all_gather --size 1M --set codec.launch=0ps --sweep codec.speed=0.01x,1x"
    command = [*ZIPPLAN, "whatif", *options.split(), "--no-map", "-o", tmp_path / "r.html", "--json"]
    plain = {k: v for k, v in os.environ.items() if k != "ZIPPLAN_CACHE_DIR"}
    places = [({"XDG_CACHE_HOME": str(tmp_path / "x")}, tmp_path / "x" / "zipplan" / "whatif"),
              ({"ZIPPLAN_CACHE_DIR": str(tmp_path / "y" / "z")}, tmp_path / "y" / "z" / "whatif")]  # fmt: skip
    for environment, folder in places:
        done = subprocess.run(command, capture_output=True, text=True, timeout=50, env=plain | environment)
        assert done.returncode == 0, done.stderr
        assert len(list(folder.iterdir())) == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == ["r.html", "x", "y"]
    document = json.loads(done.stdout)
    assert document["schema"] == 1
    assert document["set"] == {"codec.launch": "0ps"}
    assert [row["at"] for row in document["rows"]] == [{"codec.speed": "0.01x"}, {"codec.speed": "1x"}]
    slow, fast = document["rows"]
    assert slow["choice"] == "native"
    assert slow["time_us"] == slow["native_us"] == fast["native_us"]
    assert fast["speedup"] == pytest.approx(fast["native_us"] / fast["time_us"], abs=1e-3)
    assert fast["candidates"][0] == {"name": fast["choice"], "time_us": fast["time_us"], "reason": "chosen"}
    assert "codec.launch=0ps" in (tmp_path / "r.html").read_text()


def test_a_training_step_is_swept_like_a_collective(tmp_path: Path) -> None:
    """The same numbers as `plan --workload` gives, and a page without a timeline."""
    options = "--topology a6000x8-200g --nodes 2 --workload llama3-8b --sweep link.nic.bandwidth=0.25x,1x --no-map"
    command = [*ZIPPLAN, "whatif", *options.split(), "-o", tmp_path / "r.html", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    slow, now = document["rows"]
    planned = plan_workload(load_workload("llama3-8b"), build_cluster(load_machine("a6000x8-200g"), nodes=2))
    assert now["time_us"] == pytest.approx(planned.planned.time / 1e6, abs=1e-3)
    assert now["native_us"] == pytest.approx(planned.raw.time / 1e6, abs=1e-3)
    assert len(now["candidates"]) == len(planned.rows)
    assert slow["native_us"] > now["native_us"]
    text = Page((tmp_path / "r.html").read_text()).text
    assert "a step of llama3-8b" in text
    assert "Timelines" not in text
    assert "parameters: all_gather" in text


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--workload", "llama3-8b", "--sweep", "nodes=2"), ["either --collective or --workload"]),
        (("--size", "1M,2M", "--sweep", "nodes=2"), ["one of each", "--sweep size"]),
        (("--sweep", "nodse=2"), ["did you mean nodes"]),
        (("--sweep", "nodes=2", "--set", "nix=1"), ["no parameter 'nix'"]),
        (("--sweep", "nodes=2", "--gpus", "a"), ["--gpus"]),
        (("--sweep", "link.nvlink.latency=1us"), ["link.nvlink.latency=1us: ", "lab has no nvlink links"]),
        (("--sweep", "nodes=2", "-o", "/nonexistent/r.html"), ["/nonexistent"]),
        ((), ["--sweep"]),
    ],
)
def test_bad_input_is_one_clear_message(args: tuple[str, ...], words: list[str]) -> None:
    command = [*ZIPPLAN, "whatif", "--topology", "lab", "--collective", "all_gather", *args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr


def test_a_browser_shows_it(study: Study, tmp_path: Path) -> None:
    """Headless Chromium: the text is laid out, charts have their colours, nothing was blocked or missing."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("needs a browser to look with: apt-get install chromium")
    page, picture = tmp_path / "page.html", tmp_path / "page.png"
    page.write_text(page_of(study), encoding="utf-8")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
             "--disable-component-update", "--disable-sync", f"--user-data-dir={tmp_path / 'profile'}",
             "--window-size=1200,1800", "--enable-logging=stderr"]  # fmt: skip
    shown = subprocess.run(
        [chromium, *flags, f"--screenshot={picture}", page.as_uri()], capture_output=True, text=True, timeout=50
    )
    assert shown.returncode == 0, shown.stderr
    assert "CONSOLE" not in shown.stderr, shown.stderr  # what the page itself complains of
    from matplotlib.image import imread

    pixels = (imread(picture)[:, :, :3] * 255).round().astype(int)
    colours = {tuple(p) for p in pixels[::3, ::3].reshape(-1, 3).tolist()}
    assert pixels.shape[:2] == (1800, 1200)
    assert len(colours) > 100
    assert (0, 0x72, 0xB2) in colours  # lines and exchanges
    inked = (pixels.sum(axis=2) < 600).any(axis=1)
    assert inked[:120].any()  # the title
    assert inked[1200:].any()  # and the page goes on
