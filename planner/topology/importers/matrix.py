"""A link matrix as nvidia-smi prints it: header, rows, cells; read strictly, completed by symmetry."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import combinations

from zipplan.planner.errors import TopologyError, nearest
from zipplan.planner.topology.importers.common import Notes

_AFFINITY = re.compile(r"CPU Affinity|NUMA Affinity|GPU NUMA ID|CPU NUMA Affinity")
_GLUED = re.compile(r"PIX|PXB|PHB|NODE|SYS")
_GPU = re.compile(r"GPU\d+$")
_DEVICE = re.compile(r"(GPU|NIC|mlx5_)\d+$")
_AFFINE = re.compile(r"(\d+([-,]\d+)*|N/A)$")


@dataclass
class Matrix:
    """`gpus` by number, `nics` in column order. `cells[a, b]`: raw text. `extra[gpu][column]`: affinities."""

    gpus: list[str]
    nics: list[str]
    cells: dict[tuple[str, str], str] = field(default_factory=dict)
    extra: dict[str, dict[str, str]] = field(default_factory=dict)
    rows: list[str] = field(default_factory=list)
    nic_names: dict[str, str] = field(default_factory=dict)

    def get(self, a: str, b: str) -> str | None:
        """The entry of a pair, from either row; None when neither row is there."""
        return self.cells.get((a, b), self.cells.get((b, a)))


def header_of(lines: list[str]) -> int | None:
    """Number of the header line: GPU names with no row name before them and no entry after them."""
    for number, line in enumerate(lines):
        words = _AFFINITY.sub("", line).split()
        if not words or line.lstrip().startswith("#"):
            continue
        gpus = [w for w in words if _GPU.match(w)]
        cells = [w for w in words if w in ("X", "SYS", "NODE", "PHB", "PXB", "PIX") or re.fullmatch(r"NV\d+", w)]
        below = next((later.split() for later in lines[number + 1 :] if later.strip()), [])
        table = len(gpus) > 1 or _AFFINITY.search(line) or below[:2] in ([words[0], "X"], [words[0], "0"])
        if gpus and not cells and table and _GPU.match(words[0]):
            return number
    return None


def parse_matrix(
    lines: list[str], where: str, entry: re.Pattern[str], valid: list[str], self_mark: str | None = "X"
) -> Matrix:
    """Read the matrix; its entries off the diagonal match `entry`, `valid` names them in errors.

    self_mark: what the diagonal holds, None for anything. Refuses doubled names, short rows, and pairs whose two
    entries differ. Raises TopologyError.
    """
    start = header_of(lines)
    if start is None:
        raise TopologyError(f"{where}: no header line with GPU0, GPU1, ... found")
    header, below = _unwrapped_header(lines, start)
    first_affinity = _AFFINITY.search(header)
    columns = header[: first_affinity.start() if first_affinity else None].split()
    affinities = _AFFINITY.findall(header)
    doubled = {c for c in columns if columns.count(c) > 1}
    if doubled:
        raise TopologyError(f"{where}: column {sorted(doubled)[0]} appears twice in the header")
    gpus = sorted((c for c in columns if _GPU.match(c)), key=lambda name: int(name[3:]))
    matrix = Matrix(gpus, [c for c in columns if not _GPU.match(c)])
    end = next((n for n in range(below, len(lines)) if lines[n].strip().startswith("Legend")), len(lines))
    again = header_of(lines[below:])
    if again is not None:
        raise TopologyError(
            f"{where}: line {below + again + 1}: a second matrix; keep one of them, or give each node its own file"
        )
    for number, line in enumerate(lines[below:], below + 1):
        name = line.split()[0] if line.split() else ""
        if name in columns:
            _row(matrix, _unwrapped_row(lines, number - 1, end, columns), name, columns, affinities, where, number)
        elif matrix.rows and number <= end and _DEVICE.match(name):
            raise TopologyError(f"{where}: line {number}: row {name} has no column of that name in the header")
        else:
            legend = re.match(r"\s*(NIC\d+)\s*:\s*(\S+)\s*$", line)
            if legend and legend[1] in columns:
                matrix.nic_names[legend[1]] = legend[2]
    if not any(row in matrix.gpus for row in matrix.rows):
        raise TopologyError(f"{where}: a header with {len(columns)} columns, but no row of a GPU below it")
    if self_mark is None:
        matrix.cells = {(a, b): text for (a, b), text in matrix.cells.items() if a != b}
        self_mark = ""
    for (a, b), text in matrix.cells.items():
        if text != self_mark and not entry.fullmatch(text):
            raise TopologyError(
                f"{where}: row {a}, column {b}: unknown entry {text!r}; {nearest(text, [self_mark, *valid])}",
                row=a,
                column=b,
                token=text,
            )
    for (a, b), text in matrix.cells.items():
        other = matrix.cells.get((b, a), text)
        if other != text:
            raise TopologyError(
                f"{where}: the matrix is not symmetric: row {a}, column {b} says {text!r}, "
                f"row {b}, column {a} says {other!r}; a link looks the same from both ends, so one is wrong",
                pair=(a, b),
                values=(text, other),
            )
        if (a == b) != (text == self_mark):
            raise TopologyError(f"{where}: row {a}, column {b}: {text!r}; {self_mark} belongs on the diagonal only")
    return matrix


def _unwrapped_header(lines: list[str], start: int) -> tuple[str, int]:
    """The header, whole again where a terminal broke it, and the number of the first line below it."""
    header, below = lines[start], start + 1
    for line in lines[below : below + 8]:
        words = line.split()
        if not words or (_GPU.match(words[0]) and any(w == "X" or w == "0" or _GLUED.match(w) for w in words[1:])):
            break
        split = re.search(r"[A-Za-z]$", header) and not re.search(r"(CPU|GPU|NUMA|Affinity)$", header)
        header += line if split and line[:1].isalpha() else " " + line
        below += 1
    return (header, below) if below < len(lines) and lines[below].split()[:1] != [] else (lines[start], start + 1)


def _unwrapped_row(lines: list[str], at: int, end: int, columns: list[str]) -> str:
    """A row, whole again where a terminal broke it: what follows is no row, and fills entries or affinities."""
    row = lines[at]
    for line in lines[at + 1 : end]:
        words = line.split()
        short = len(_entries(row)) < len(columns)
        if not words or words[0] in columns or not (short or all(_AFFINE.match(w) for w in words)):
            break
        row += " " + line
    return row


def _entries(row: str) -> list[str]:
    """Words after the name; posts lose tabs, and entries stick together."""
    words: list[str] = []
    for word in row.split()[1:]:
        words += _GLUED.findall(word) if _GLUED.sub("", word) == "" else [word]
    return words


def _row(
    matrix: Matrix, line: str, name: str, columns: list[str], affinities: list[str], where: str, number: int
) -> None:
    if name in matrix.rows:
        raise TopologyError(f"{where}: line {number}: a second row {name}")
    matrix.rows.append(name)
    words = _entries(line)
    if len(words) < len(columns):
        raise TopologyError(
            f"{where}: line {number}: row {name} has {len(words)} entries for {len(columns)} columns; was it cut off? "
            f"first column without an entry: {columns[len(words)]}",
            row=name,
        )
    for column, text in zip(columns, words, strict=False):
        matrix.cells[name, column] = text
    if "\t" in line:
        fields = [f.strip() for f in line.split("\t")]
        rest = fields[len(columns) + 1 :] if fields[0] == name else fields[len(columns) + 2 :]
        if affinities and affinities[-1] == "GPU NUMA ID" and len(rest) > len(affinities):
            rest = [*rest[:2], rest[-1]]  # nvidia-smi puts two tabs before the last column
    else:
        rest = words[len(columns) :]
    matrix.extra[name] = dict(zip(affinities, rest, strict=False))


def fill_hidden(matrix: Matrix, where: str, notes: Notes) -> None:
    """Pairs of GPUs whose rows are both missing: filled only when every visible pair says the same."""
    hidden = [(a, b) for a, b in combinations(matrix.gpus, 2) if matrix.get(a, b) is None]
    missing = [g for g in matrix.gpus if g not in matrix.rows]
    if missing:
        notes.warnings.append(f"rows missing: {', '.join(missing)}; the other rows were mirrored")
    if not hidden:
        return
    seen = {t for (a, b), t in matrix.cells.items() if a != b and a in matrix.gpus and b in matrix.gpus}
    if len(seen) != 1:
        a, b = hidden[0]
        raise TopologyError(
            f"{where}: rows {', '.join(missing)} are missing and nothing tells how {a} and {b} are joined "
            f"({len(hidden)} such pairs; visible pairs differ: {', '.join(sorted(seen))}); paste the whole matrix"
        )
    label = seen.pop()
    for pair in hidden:
        matrix.cells[pair] = label
    notes.assumed.append(f"{len(hidden)} hidden GPU pairs are {label}, like every visible pair")
