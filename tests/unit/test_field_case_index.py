"""docs/field-cases.md: every case has a test, and every test that it names exists."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PAGE = (TESTS.parent / "docs" / "field-cases.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (F\d{3}) \| [^|]+ \| [^|]+ \| ([^|]+) \|$", PAGE, re.M)
FREE = re.findall(r"F\d{3}", PAGE.partition("## Free numbers")[2])
HELD = sorted({name for _, tests in ROWS for name in re.findall(r"`([^`]+)`", tests)})


@functools.cache
def functions(file: str) -> set[str]:
    """Names of the functions of a file."""
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def workers_that_run() -> str:
    """The runner of the multi-rank cases, which names all that it runs."""
    return (TESTS / "multi" / "workers" / "sessions.py").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", HELD)
def test_the_test_exists_and_runs(name: str) -> None:
    file, _, function = name.partition("::")
    assert function in functions(file), name
    if file.startswith("multi/workers/"):
        assert f"{Path(file).stem}.{function}" in workers_that_run()
    elif not file.startswith("device/"):
        assert function.startswith("test_")


def test_every_number_is_a_case_or_free() -> None:
    cases = [number for number, _ in ROWS]
    assert cases == sorted(set(cases))
    assert sorted(cases + FREE) == [f"F{n:03}" for n in range(1, 141)]
    assert all(tests.startswith("`") for _, tests in ROWS)


def test_tests_know_no_other_numbers() -> None:
    """A number in a docstring that is no case of the page is a misprint."""
    cases = {number for number, _ in ROWS}
    for path in TESTS.rglob("*.py"):
        if path != Path(__file__):
            for number in re.findall(r"\bF(0\d\d|1[0-4]\d)\b", "\n".join(docstrings(path))):
                assert f"F{number}" in cases, (path, number)


def docstrings(path: Path) -> list[str]:
    """Of a file and of its functions."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = [tree, *(node for node in tree.body if isinstance(node, ast.FunctionDef))]
    return [ast.get_docstring(node) or "" for node in nodes]
