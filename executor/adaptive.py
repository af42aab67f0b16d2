"""What ran, per class of calls, and whether compression pays there: judged by what all ranks measured together.

A class is (collective, dtype, kind of tensor, range of sizes in the plan). After some compressed calls all ranks sum
what they encoded, so every rank holds the same ratio and takes the same decision at the same call. Where the ratio is
below break-even the class runs natively for a while, then tries again. What the encoder itself needs (window base,
ranking) it finds anew in every tile or chunk and writes into the frame, so it follows a drift by itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from zipplan.executor.interpreter import Traffic
from zipplan.planner.plan import Choice, Entry

FIRST_LOOK = 4
"""Compressed calls before the first judgement, and of a new try; enough that one odd tensor does not decide."""

LOOK_EVERY = 64
"""Compressed calls between judgements: one sum of 16 bytes among 64 collectives costs at most 1/64 of a collective."""

TRY_AGAIN = 1024
"""Native calls before compression is tried again: 4 tries in 1,024 calls waste less than 1 %."""


@dataclass
class Class:
    """Numbers of one class of calls, and its state. Sizes in bytes, times in seconds (`timed` calls of `calls`)."""

    collective: str
    dtype: str
    kind: str
    schedule: str
    codec: str
    start: int
    stop: int | None
    expected_ratio: float
    break_even: float
    calls: int = 0
    native_calls: int = 0
    bytes: int = 0
    traffic: Traffic = field(default_factory=Traffic)
    timed: int = 0
    measured_s: float = 0.0
    predicted_s: float = 0.0
    compressing: bool = True
    left: int = FIRST_LOOK
    window: Traffic = field(default_factory=Traffic)
    judged: list[tuple[int, float, bool]] = field(default_factory=list)

    def count(self, size: int, traffic: Traffic) -> None:
        """One call of `size` bytes ended."""
        self.calls += 1
        self.bytes += size
        self.traffic += traffic
        if self.codec != "raw" and self.compressing:
            self.window += traffic
        elif self.codec != "raw":
            self.native_calls += 1
        self.left -= 1

    def time(self, seconds: float, predicted_s: float) -> None:
        """One call took so long."""
        self.timed += 1
        self.measured_s += seconds
        self.predicted_s += predicted_s

    @property
    def due(self) -> bool:
        """Whether it is time to judge; alike on all ranks, since they make the same calls."""
        return self.codec != "raw" and self.left <= 0

    def judge(self, raw_bytes: int, encoded_bytes: int) -> str | None:
        """Decide from sums over all ranks. Returns what changed, for the log."""
        self.window = Traffic()
        if not self.compressing:
            self.compressing, self.left = True, FIRST_LOOK
            return "compression is tried again"
        ratio = raw_bytes / encoded_bytes if encoded_bytes else self.expected_ratio
        pays = ratio > self.break_even
        before = self.judged[-1][2] if self.judged else True
        self.judged.append((self.calls, ratio, pays))
        self.compressing, self.left = pays, LOOK_EVERY if pays else TRY_AGAIN
        if pays == before:
            return None
        verb = "pays again" if pays else "does not pay"
        return f"compression {verb}: ratio {ratio:.3f}, break-even {self.break_even:.3f}"

    @property
    def reason(self) -> str:
        """Why the class runs natively now."""
        ratio = self.judged[-1][1] if self.judged else 1.0
        return f"compression does not pay: ratio {ratio:.3f} of all ranks, break-even {self.break_even:.3f}"


def break_even(entry: Entry | None, choice: Choice) -> float:
    """The ratio at which the choice takes as long as the native call.

    With n the native time and p = c + n/r₀ the planned one at the expected ratio r₀ (c: codec and latency), time at
    ratio r is c + n/r, which equals n at r = n / (n − c). 1 where the plan holds no native time.
    """
    row = next((r for r in entry.choices if r.start == choice.start), None) if entry is not None else None
    if row is None:
        return 1.0
    worst = 1.0
    for point in row.points:
        if (native := point.native_ps) is None:
            continue
        fixed = point.predicted_ps - native / choice.expected_ratio
        if 0 < fixed < native:
            worst = max(worst, native / (native - fixed))
    return min(worst, choice.expected_ratio)
