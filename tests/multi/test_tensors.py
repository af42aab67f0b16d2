"""Tensors as users have them, on four ranks. One launch runs all cases; the tests read their share of its findings."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable

import pytest

pytestmark = [pytest.mark.multi, pytest.mark.timeout(170)]

Found = dict[str, str | None]


@pytest.fixture(scope="module")
def found(torchrun: Callable[..., subprocess.CompletedProcess[str]]) -> Found:
    """Case → what is wrong with it, or None."""
    done = torchrun("tensors.py")
    assert done.returncode == 0, done.stderr
    cases: Found = json.loads(done.stdout)
    return cases


def problems(found: Found, word: str, cases: int) -> Found:
    """What failed among the cases whose name starts with `word`; there must be as many cases as the test knows of."""
    mine = {name: problem for name, problem in found.items() if name.split()[0] == word}
    assert len(mine) == cases, sorted(mine)
    return {name: problem for name, problem in mine.items() if problem}


def test_any_layout(found: Found) -> None:
    """Transposed, strided, expanded (F044), odd offsets, 0-dim, in place; sizes that ranks do not divide."""
    assert problems(found, "layout", 11) == {}


def test_every_bf16_pattern_travels(found: Found) -> None:
    """All 65,536 patterns, so NaN payloads and −0 too; F058: a NaN in a sum reaches all ranks, in its place."""
    assert problems(found, "values", 4) == {}


def test_ranks_with_nothing_dynamic_to_send(found: Found) -> None:
    """F037, the even part: frames without dynamic bytes beside frames full of them, and empty tensors, do not hang."""
    assert problems(found, "uneven", 3) == {}


def test_any_dtype_moves(found: Found) -> None:
    """F050: dtypes that gloo refuses travel as bytes; sums of them are refused before the call."""
    assert problems(found, "dtype", 2 * 17 + 3) == {}


def test_sums_are_in_rank_order(found: Found) -> None:
    """F048: [1e8, 1, −1e8, 1] over ranks is 1 in rank order and 0 in gloo's own order."""
    assert problems(found, "order", 2) == {}


def test_uncovered_calls_run_natively_and_are_counted(found: Found) -> None:
    """No table, no plan, ZIPPLAN_DISABLE: the native result, and the reason in the report."""
    assert problems(found, "fallback", 3) == {}
    assert problems(found, "sizes", 1) == {}
