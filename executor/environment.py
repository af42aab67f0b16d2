"""The environment variables: one table, which the executor reads and the documentation repeats.

An argument beats the variable, the variable beats the plan. NCCL's own variables are never set.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from zipplan.planner.errors import ConfigError, nearest


@dataclass(frozen=True)
class Variable:
    """One variable. `values`: all that it may hold (empty: a path), the first is the default."""

    name: str
    values: tuple[str, ...]
    about: str


DISABLE = Variable("ZIPPLAN_DISABLE", ("0", "1"), "`1`: every collective runs natively, and is counted as such")
PLAN = Variable("ZIPPLAN_PLAN", (), "plan file for `init()` and `bench` when none is given")
CHECK = Variable(
    "ZIPPLAN_CHECK",
    ("off", "sizes", "bits"),
    "`sizes`: before every collective the ranks compare call, dtype, sizes and splits; `bits`: also compare every "
    "result with the native one",
)
LOG = Variable(
    "ZIPPLAN_LOG",
    ("warning", "debug", "info", "error"),
    "level of the logger `zipplan`; `info` writes the report when the process ends",
)
CACHE_DIR = Variable(
    "ZIPPLAN_CACHE_DIR", (), "folder of compiled GPU kernels and of what-if outcomes; else `~/.cache/zipplan`"
)
VARIABLES = (DISABLE, PLAN, CHECK, LOG, CACHE_DIR)

_SAME = {"on": "1", "off": "0"}


def read(variable: Variable, environ: Mapping[str, str] | None = None) -> str:
    """The variable's value; its default when it is not set or empty. Raises ConfigError for a value it cannot hold."""
    given = (os.environ if environ is None else environ).get(variable.name, "")
    if not variable.values:
        return given
    value = given.lower() or variable.values[0]
    if variable.values == DISABLE.values:
        value = _SAME.get(value, value)
    if value not in variable.values:
        if variable.values == DISABLE.values:
            raise ConfigError(f"{variable.name}={given!r}: expected 1 or 0")
        raise ConfigError(f"{variable.name}={given!r} is unknown; {nearest(value, variable.values)}")
    return value


def check_names(environ: Mapping[str, str] | None = None) -> None:
    """Raise ConfigError for a ZIPPLAN_ variable that nothing reads: a misspelt switch must not be ignored."""
    names = [v.name for v in VARIABLES]
    for name in os.environ if environ is None else environ:
        if name.startswith("ZIPPLAN_") and name not in names:
            raise ConfigError(f"environment variable {name} is unknown; {nearest(name, names)}")


def table() -> str:
    """The variables as a Markdown table, as README and docs show it."""
    rows = (f"| `{v.name}` | {' '.join(f'`{x}`' for x in v.values) or 'a path'} | {v.about} |" for v in VARIABLES)
    return "\n".join(["| variable | values (first: default) | meaning |", "|---|---|---|", *rows])
