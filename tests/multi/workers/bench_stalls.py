"""The bench with a rank 2 that falls asleep in its third encode."""

from __future__ import annotations

import os
import time
from typing import Any

from zipplan import kernels
from zipplan.executor.bench import main

encode = kernels.encode
calls = 0


def stalling(*given: Any, **options: Any) -> kernels.Encoded:
    """Encode, but for ever the third time."""
    global calls
    calls += 1
    if calls == 3:
        time.sleep(600)
    return encode(*given, **options)


if os.environ["RANK"] == "2":
    kernels.encode = stalling
main()
