"""The comparison of bytes, and the schedule without its codec."""

from __future__ import annotations

import pytest
import torch

from zipplan.executor.check import differences, raw_twin
from zipplan.planner.collectives import candidates
from zipplan.planner.schedule import Collective, Payload
from zipplan.planner.verify import verify


def bf16(*patterns: int) -> torch.Tensor:
    """bf16 values from their bit patterns."""
    return torch.tensor(patterns, dtype=torch.int32).to(torch.uint16).view(torch.bfloat16)


def test_equal_bytes_are_equal_even_for_nan() -> None:
    """A NaN equals itself when its payload is the same."""
    assert differences(bf16(0x7FA5, 0x8000), bf16(0x7FA5, 0x8000)) is None
    assert differences(torch.empty(0), torch.empty(0)) is None


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (bf16(0, 0x8000), bf16(0, 0x0000)),
        (bf16(0, 0x7FA5), bf16(0, 0x7FC0)),
        (torch.tensor([1, 2]), torch.tensor([1, 3])),
        (torch.tensor([1 + 1j, 2]), torch.tensor([1 + 1j, 2 + 0.5j])),
    ],
)
def test_one_element_differs(found: torch.Tensor, expected: torch.Tensor) -> None:
    """F009: a flipped sign of zero and another NaN payload are seen."""
    said = differences(found, expected)
    assert said is not None
    assert said.startswith("1 of 2 elements differ, first at flat index 1 (1,): found 0x")


def test_the_place_and_both_patterns_are_named() -> None:
    """F009: count, flat index, coordinates, both bit patterns in hex."""
    expected = torch.zeros((3, 4), dtype=torch.bfloat16)
    found = expected.clone()
    found[1, 2] = -0.0
    found[2, 3] = 1.0
    assert differences(found, expected) == (
        "2 of 12 elements differ, first at flat index 6 (1, 2): found 0x8000, expected 0x0000"
    )


def test_unlike_tensors_are_different() -> None:
    """Another shape or dtype is a difference, not a crash."""
    said = differences(torch.zeros(2), torch.zeros(3))
    assert said == "found (2,) torch.float32, expected (3,) torch.float32"


@pytest.mark.parametrize("collective", Collective)
def test_the_raw_twin_does_the_same(collective: Collective) -> None:
    """The verifier accepts every candidate without its codec, and no frame is left in it."""
    for schedule in candidates(collective, 2, 2, ("window",)):
        twin = raw_twin(schedule)
        verify(twin)
        assert {stage.payload for stage in twin.stages} == {Payload.RAW}
