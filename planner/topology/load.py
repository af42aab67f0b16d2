"""From a name, a file or standard input to a Machine; every failure is one TopologyError that says what to do."""

from __future__ import annotations

import sys
import tomllib
from functools import cache
from importlib import resources
from pathlib import Path

from pydantic import BaseModel, ValidationError

from zipplan.planner.errors import TopologyError, nearest
from zipplan.planner.topology.importers import Imported, import_text, looks_importable
from zipplan.planner.topology.model import Machine

MAX_BYTES = 64 * 2**20
"""A topology text larger than this is refused: the largest real ibnetdiscover output known to us has a few MiB."""


def shipped() -> list[str]:
    """Names of the machines that come with zipplan: the TOML files with a [[node]]; other tables lie beside them."""
    return sorted(_shipped_texts())


@cache
def _shipped_texts() -> dict[str, str]:
    files = [entry for entry in resources.files("zipplan.topologies").iterdir() if entry.name.endswith(".toml")]
    texts = {entry.name.removesuffix(".toml"): entry.read_text("utf-8") for entry in files}
    return {name: text for name, text in texts.items() if "\n[[node]]" in text}


def load_machine(name_or_path: str, *, gpu: str | None = None) -> Machine:
    """A shipped name, a TOML file, any text that an importer reads, or '-' for standard input.

    gpu: the GPU model, for texts that do not tell it. Raises TopologyError.
    """
    return load_described(name_or_path, gpu=gpu).machine


def load_described(name_or_path: str, *, gpu: str | None = None) -> Imported:
    """Like load_machine, with what was read, assumed and unknown (empty for a shipped name and a TOML file)."""
    if name_or_path in shipped():
        return Imported(parse_machine(_shipped_texts()[name_or_path], name_or_path), "shipped")
    text = read_text(name_or_path)
    name = "stdin" if name_or_path == "-" else name_or_path
    if "\n[[node]]" not in text and looks_importable(text):
        return import_text(text, name=name, gpu=gpu)
    return Imported(parse_machine(text, name), "toml")


def read_text(name_or_path: str) -> str:
    """The text of a file or of standard input. Raises TopologyError."""
    if name_or_path == "-":
        data, where = sys.stdin.buffer.read(MAX_BYTES + 1), "standard input"
    else:
        path, where = Path(name_or_path), name_or_path
        try:
            if path.is_dir():
                raise TopologyError(f"{where} is a directory; give a file in it, or a shipped name")
            if not path.exists():
                raise TopologyError(
                    f"no topology {where!r}: no such file and no shipped machine; {nearest(where, shipped())}",
                    name=where,
                )
            with path.open("rb") as file:
                data = file.read(MAX_BYTES + 1)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise TopologyError(f"cannot read {where}: {reason}") from None
    if len(data) > MAX_BYTES:
        raise TopologyError(f"{where} is larger than {MAX_BYTES >> 20} MiB; is it a topology?")
    if not data.strip():
        raise TopologyError(
            f"{where} is empty; expected TOML, nvidia-smi topo -m, rocm-smi --showtopo, NCCL XML or ibnetdiscover"
        )
    return _decoded(data, where)


def _decoded(data: bytes, where: str) -> str:
    """Text of UTF-8, of UTF-16 as Windows shells write it (with or without a mark), or of an old 8-bit code page."""
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        order = ["utf-16"]
    elif b"\0" in data:
        order = ["utf-16-le" if data[1:2] == b"\0" else "utf-16-be"]
    else:
        order = ["utf-8-sig", "cp1252"]
    for encoding in order:
        try:
            text = data.decode(encoding)
        except UnicodeDecodeError:
            continue
        if "\0" not in text:
            return text
    raise TopologyError(f"{where} is not text; expected a topology file")


def parse_machine(text: str, where: str) -> Machine:
    """A Machine from TOML text; `where` names it in errors. Raises TopologyError."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise TopologyError(
            f"{where} is no format known to zipplan. As TOML: {error}. Otherwise expected the text of "
            "nvidia-smi topo -m, rocm-smi --showtopo, NCCL XML, ibnetdiscover or iblinkinfo"
        ) from None
    if "node" not in data:
        raise TopologyError(
            f"{where}: TOML without a [[node]] table; is this a topology? (docs/machines.md has examples)"
        )
    try:
        return Machine.model_validate(data)
    except ValidationError as error:
        raise TopologyError(explain(error, where)) from None
    except TopologyError as error:
        raise TopologyError(f"{where}: {error}") from None


def explain(error: ValidationError, where: str) -> str:
    """One line per mistake: table and key, what was found, what is valid."""
    lines = []
    places = [item["loc"] for item in error.errors()]
    for item in error.errors():
        inside = [loc for loc in places if loc[:-1] and loc != item["loc"] and loc[: len(item["loc"])] == item["loc"]]
        if item["type"] == "too_short" and inside:
            continue  # pydantic counts only the entries without a mistake
        place = ".".join(str(part + 1) if isinstance(part, int) else part for part in item["loc"]) or "file"
        if item["type"] == "extra_forbidden":
            lines.append(f"unknown key {place}; {nearest(str(item['loc'][-1]), _keys_at(item['loc'][:-1]))}")
        elif item["type"] == "missing":
            lines.append(f"{place} is missing")
        else:
            message = item["msg"].removeprefix("Value error, ")
            shown = item["input"]
            found = f" (found {shown!r})" if isinstance(shown, str | int | float | bool) else ""
            lines.append(f"{place}: {message}{found}")
    more = f" (and {len(lines) - 5} more)" if len(lines) > 5 else ""
    return f"{where}: " + "; ".join(lines[:5]) + more


def _keys_at(place: tuple[int | str, ...]) -> list[str]:
    """Valid keys of the table at a place in the file."""
    model: type[BaseModel] = Machine
    for part in place:
        if isinstance(part, int):
            continue
        field = next((f for n, f in model.model_fields.items() if part in (n, f.alias)), None)
        stack: list[object] = [field.annotation] if field else []
        while stack:
            kind = stack.pop()
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                model = kind
                break
            stack += getattr(kind, "__args__", ())
    return [f.alias or n for n, f in model.model_fields.items()]
