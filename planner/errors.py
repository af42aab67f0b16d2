"""Every error that zipplan raises on purpose.

    ZipplanError
    ├── ConfigError      an option, an environment variable, a unit string, a file that a person wrote
    ├── TopologyError    a machine or fabric description that cannot be read or cannot exist
    ├── ScheduleError    a schedule that does not do what its collective promises
    ├── SimulationError  a simulation that cannot finish or met an impossible delay
    ├── PlanError        a plan file that is broken, or that does not fit the job
    ├── CodecError       a frame, a buffer or a dtype that the codec refuses
    ├── AgreementError   ranks that do not hold the same plan, versions or switches, or do not make the same call
    ├── CollectiveError  a collective that began and did not end well
    └── DeviceError      a GPU, a driver or a compiler that is missing or too old

A leaf module: every package may import it, and it imports nothing of ours.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ZipplanError(Exception):
    """Root of the tree. The text answers: what, where, expected, found, what to do.

    Keyword arguments are kept on `details`, so that a caller can read what the text says.
    """

    def __init__(self, message: str, **details: object) -> None:
        super().__init__(message)
        self.details = details


class ConfigError(ZipplanError):
    """An option, a unit string, an environment variable or a hand-written file is wrong."""


class TopologyError(ZipplanError):
    """A machine or fabric description cannot be read, or describes something impossible."""


class ScheduleError(ZipplanError):
    """A schedule breaks the promise of its collective; names the stage."""


class SimulationError(ZipplanError):
    """A simulation cannot finish or met a delay that is not a finite number ≥ 0."""


class PlanError(ZipplanError):
    """A plan file is broken or does not fit the job that wants to run it."""


class CodecError(ZipplanError):
    """The codec refuses a frame, a buffer or a dtype."""


class AgreementError(ZipplanError):
    """Ranks differ in plan, versions, switches or in the call that they make; names the ranks by value."""


class CollectiveError(ZipplanError, RuntimeError):
    """A collective began and did not end well; names it, the stage and the ranks. A RuntimeError, as torch's own are.

    The session that raised it raises it again for every later call: the transport's state is unknown.
    """


class DeviceError(ZipplanError):
    """A GPU, a driver, a compiler or a compiled library is missing or too old."""


def nearest(word: str, valid: Iterable[str]) -> str:
    """One sentence for an unknown name: the closest valid names, then all of them (at most 24)."""
    names = sorted(valid)
    close = difflib.get_close_matches(word, names, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(close)}? " if close else ""
    shown = ", ".join(names[:24]) + (", …" if len(names) > 24 else "")
    return f"{hint}valid: {shown}"
