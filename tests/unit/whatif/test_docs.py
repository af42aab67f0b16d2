"""docs/what-if.md and docs/plan-file.md are true: their commands run, their table is the registry."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from zipplan.planner.plan import Plan, Point
from zipplan.planner.settings import rows
from zipplan.planner.whatif.study import JOB

ROOT = Path(__file__).parents[3]
PAGES = ("what-if.md", "plan-file.md")


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def keys_table() -> str:
    """What stands between the marks in docs/what-if.md."""
    lines = ["| key | takes | what it is |", "|---|---|---|"]
    lines += [f"| `{key}` | {values} | {about} |" for key, values, about in rows()]
    lines += [f"| `{key}` | {example} | {about} (`--sweep` only) |" for key, (_, example, about) in JOB.items()]
    return "\n".join(lines)


def test_every_key_is_in_the_table() -> None:
    found = re.search(r"<!-- keys -->\n(.*?)\n?<!-- end -->", page("what-if.md"), re.S)
    assert found
    assert found[1] == keys_table(), f"put this between the marks:\n{keys_table()}"


@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", PAGES)
def test_commands_run_as_written(name: str, tmp_path: Path) -> None:
    commands = [c[2:] for block in re.findall(r"```console\n(.*?)```", page(name), re.S) for c in block.splitlines()]
    assert len(commands) >= 3
    for command in commands:
        program, *arguments = shlex.split(command)
        assert program == "zipplan"
        line = [sys.executable, "-m", "zipplan.planner.cli", *arguments]
        done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, f"{command}\n{done.stderr}"


@pytest.mark.timeout(120)
def test_the_program_for_a_cluster_runs(tmp_path: Path) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", page("what-if.md"), re.S)
    (tmp_path / "cluster.py").write_text(program)
    line = [sys.executable, tmp_path / "cluster.py"]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 9


def test_every_field_of_a_plan_is_described() -> None:
    text = page("plan-file.md")
    for field in (*Plan.model_fields, *Point.model_fields):
        name = "schema" if field == "schema_" else field
        if name != "size_bytes":
            assert f"`{name}`" in text or f".{name}`" in text, name


def test_links_lead_somewhere() -> None:
    for name in PAGES:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", page(name)):
            assert (ROOT / "docs" / target).exists(), target
