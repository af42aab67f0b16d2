"""From a name or a file to a Workload; every failure is one ConfigError that names the field."""

from __future__ import annotations

import tomllib
from importlib import resources
from pathlib import Path

from pydantic import ValidationError

from zipplan.planner.errors import ConfigError, nearest
from zipplan.planner.workload.model import Workload

FOLDER = "zipplan.topologies.workloads"


def shipped() -> list[str]:
    """Names of the workloads that come with zipplan."""
    names = (entry.name for entry in resources.files(FOLDER).iterdir())
    return sorted(n.removesuffix(".toml") for n in names if n.endswith(".toml") and not n.startswith("_"))


def load_workload(name_or_path: str) -> Workload:
    """A shipped name or a TOML file. Raises ConfigError."""
    if name_or_path in shipped():
        text = resources.files(FOLDER).joinpath(f"{name_or_path}.toml").read_text("utf-8")
        return parse_workload(text, name_or_path)
    path = Path(name_or_path)
    try:
        if not path.exists():
            raise ConfigError(
                f"no workload {name_or_path!r}: no such file and none shipped; {nearest(name_or_path, shipped())}"
            )
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(f"cannot read workload {name_or_path}: {reason}") from None
    return parse_workload(text, name_or_path)


def parse_workload(text: str, where: str) -> Workload:
    """A Workload from TOML text; `where` names it in errors. Raises ConfigError."""
    try:
        return Workload.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{where}: not a TOML file: {error}") from None
    except ValidationError as error:
        lines = [_line(item["type"], item["loc"], item["msg"], item["input"]) for item in error.errors()[:5]]
        raise ConfigError(f"{where}: " + "; ".join(lines)) from None


def _line(kind: str, loc: tuple[int | str, ...], message: str, found: object) -> str:
    place = ".".join(map(str, loc)) or "file"
    if kind == "extra_forbidden":
        return f"unknown key {place}"
    if kind == "missing":
        return f"{place} is missing"
    shown = f" (found {found!r})" if isinstance(found, str | int | float | bool) else ""
    return f"{place}: {message.removeprefix('Value error, ')}{shown}"
