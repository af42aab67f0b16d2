"""docs/validation.md is what the present constants give."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_page_is_current() -> None:
    made = subprocess.run(
        [sys.executable, ROOT / "scripts" / "validation.py"], capture_output=True, text=True, timeout=50, check=True
    )
    assert (ROOT / "docs" / "validation.md").read_text() == made.stdout, "make docs"
