"""Write into README.md what its table commands print today: `python scripts/readme_tables.py`."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"
TABLE = re.compile(r"(<!-- table: zipplan (.*?) -->\n```\n).*?(```\n<!-- end -->)", re.S)


def printed(match: re.Match[str]) -> str:
    """The same block with today's output."""
    command = [sys.executable, "-m", "zipplan.planner.cli", *shlex.split(match[2])]
    done = subprocess.run(command, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL)
    text = "\n".join(line.rstrip() for line in done.stdout.strip().splitlines())
    return f"{match[1]}{text}\n{match[3]}"


if __name__ == "__main__":
    README.write_text(TABLE.sub(printed, README.read_text("utf-8")), "utf-8")
