"""Importers: pure functions from the text of a tool to a Machine, with what was read, assumed and left unknown."""

from __future__ import annotations

import re

from zipplan.planner.errors import TopologyError
from zipplan.planner.topology.importers.common import Imported, clean
from zipplan.planner.topology.importers.ib import (
    import_iblinkinfo,
    import_ibnetdiscover,
    is_iblinkinfo,
    is_ibnetdiscover,
)
from zipplan.planner.topology.importers.ncclxml import import_xml, is_xml
from zipplan.planner.topology.importers.rocm import import_rocm, is_rocm
from zipplan.planner.topology.importers.smi import import_smi, is_smi

__all__ = ["Imported", "import_text", "looks_importable"]

_FORMATS = (
    (is_xml, import_xml),
    (is_ibnetdiscover, import_ibnetdiscover),
    (is_iblinkinfo, import_iblinkinfo),
    (is_rocm, import_rocm),
    (is_smi, import_smi),
)


def looks_importable(text: str) -> bool:
    """Whether one of the importers knows this kind of text."""
    lines = clean(text)
    return any(known(lines) for known, _ in _FORMATS)


def import_text(text: str, *, name: str, gpu: str | None = None) -> Imported:
    """Read any known text. name: for errors and for the machine; gpu: model that the text may not tell."""
    lines = clean(text)
    for known, read in _FORMATS:
        if known(lines):
            return read(lines, name=machine_name(name), where=name, gpu=gpu)
    raise TopologyError(f"{name}: no importer knows this text")


def machine_name(path: str) -> str:
    """A machine name from a file name: 'out/smi_topo 8xH100.txt' → 'smi_topo-8xH100'."""
    stem = path.replace("\\", "/").rsplit("/", 1)[-1].rsplit(".", 1)[0]
    return re.sub(r"[^A-Za-z0-9_.+-]+", "-", stem).strip("-.") or "imported"
