"""The README is true: its commands run in order, and its table is what the command prints today."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
BIN = Path(sys.executable).parent


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run one command line of the README with the environment's programs first on the path."""
    environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        shlex.split(command), cwd=folder, env=environment, capture_output=True, text=True, timeout=240
    )


@pytest.mark.multi
@pytest.mark.timeout(300)  # starts four ranks, each of which imports torch
def test_the_session_runs_as_written(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    commands = [line[2:] for block in re.findall(r"```console\n(.*?)```", TEXT, re.S) for line in block.splitlines()]
    assert len(commands) >= 7
    for command in commands:
        done = run(command, tmp_path)
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        assert done.stdout.strip(), command
    assert "NO" not in done.stdout
    assert done.stdout.count(" yes") >= 8


def test_tables_are_what_their_commands_print(tmp_path: Path) -> None:
    tables = re.findall(r"<!-- table: (.*?) -->\n```\n(.*?)\n```\n<!-- end -->", TEXT, re.S)
    assert tables
    for command, table in tables:
        printed = run(command, tmp_path).stdout
        assert [line.rstrip() for line in printed.strip().splitlines()] == [
            line.rstrip() for line in table.splitlines()
        ]


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", TEXT):
        assert (ROOT / target).exists(), target


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"(?:`|^)make ([a-z]+)", TEXT, re.M):
        assert re.search(rf"^{target}:", makefile, re.M), target
