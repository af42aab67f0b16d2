"""The kernels' own source, built for the CPU once per change of it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "tests" / "emulator"))

from emulator import Emulator  # noqa: E402


@pytest.fixture(scope="session")
def built() -> Path:
    """Where builds are kept between runs."""
    return ROOT / "build" / "emulator"


@pytest.fixture(scope="session")
def emulator(built: Path) -> Emulator:
    return Emulator(built)
