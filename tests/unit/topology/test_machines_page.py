"""docs/machines.md is what the machine files say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_page_is_current() -> None:
    made = subprocess.run(
        [sys.executable, ROOT / "scripts" / "machines.py"], capture_output=True, text=True, timeout=50, check=True
    )
    assert (ROOT / "docs" / "machines.md").read_text() == made.stdout, "make docs"
