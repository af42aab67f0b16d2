"""Charts of a study as SVG text, made by matplotlib (extra `plot`, imported when a chart is drawn)."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Sequence
from typing import Any

from zipplan.planner.errors import ConfigError
from zipplan.planner.schedule import Op
from zipplan.planner.search import Result
from zipplan.planner.settings import SETTINGS
from zipplan.planner.units import format_time
from zipplan.planner.whatif import Outcome, Study, Where
from zipplan.planner.whatif.study import JOB

MOST_LINES = 12
"""More lines than this in one chart cannot be told apart; the table has all of them."""

_STYLE = {
    "svg.fonttype": "none",  # text stays text: small, searchable
    "svg.hashsalt": "zipplan",  # equal studies give equal bytes
    "font.family": "sans-serif",
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#e4e7ec",
    "axes.edgecolor": "#98a2b3",
    "axes.labelcolor": "#344054",
    "text.color": "#344054",
    "xtick.color": "#475467",
    "ytick.color": "#475467",
}
# Okabe-Ito, told apart by every kind of colour vision: https://jfly.uni-koeln.de/color/
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")


def _pyplot() -> Any:
    try:
        import matplotlib
    except ImportError:
        raise ConfigError("-o: the report needs matplotlib; install it with: pip install 'zipplan[plot]'") from None
    matplotlib.use("svg")
    from matplotlib import pyplot

    return pyplot


def _svg(figure: Any, label: str) -> str:
    text = io.StringIO()
    figure.savefig(text, format="svg", bbox_inches="tight", metadata={"Date": None, "Creator": None})
    _pyplot().close(figure)
    svg = text.getvalue()[text.getvalue().index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)
    # Charts share one page: their ids must differ from chart to chart.
    prefix = re.sub(r"\W+", "-", label)
    svg = re.sub(r'\bid="', f'id="{prefix}-', svg)
    svg = re.sub(r"url\(#", f"url(#{prefix}-", svg)
    svg = re.sub(r'href="#', f'href="#{prefix}-', svg)
    return svg.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)


def _position(key: str, text: str) -> float | None:
    """A value on a logarithmic axis; None for names, switches and zero."""
    if key in JOB:
        value = JOB[key][0](text)
        return float(value) if isinstance(value, int) else None
    value = SETTINGS[key].parse(text)
    number = value.factor if value.fixed is None else value.fixed
    return float(number) if isinstance(number, int | float) and not isinstance(number, bool) and number > 0 else None


def _axis(key: str, values: Sequence[str]) -> tuple[list[float], bool]:
    """Positions and whether they are logarithmic: factors and absolute values do not mix."""
    found = [_position(key, value) for value in values]
    factors = {value.endswith(("x", "×")) for value in values}
    if None in found or len(factors) > 1 or len(values) < 2:
        return [float(i) for i in range(len(values))], False
    return [math.log2(p) for p in found if p is not None], True


def gains(study: Study, cases: Sequence[Where], outcomes: Sequence[Outcome]) -> str:
    """Predicted speed-up of the choice over native: the longest sweep along x, the others as lines."""
    pyplot = _pyplot()
    key, values = max(study.sweeps, key=lambda sweep: (_axis(*sweep)[1], len(sweep[1])))
    positions, _ = _axis(key, values)
    at = dict(zip(values, positions, strict=True))
    lines: dict[str, list[tuple[float, Outcome]]] = {}
    for case, outcome in zip(cases, outcomes, strict=True):
        name = ", ".join(f"{k}={v}" for k, v in case.at if k != key)
        lines.setdefault(name, []).append((at[dict(case.at)[key]], outcome))
    choices = list(dict.fromkeys(o.choice for o in outcomes))
    with pyplot.rc_context(_STYLE):
        figure, axes = pyplot.subplots(figsize=(7.6, 3.6))
        axes.axhline(1.0, color="#98a2b3", linewidth=1, linestyle="--")
        for number, (name, points) in enumerate(list(lines.items())[:MOST_LINES]):
            points.sort(key=lambda p: p[0])
            colour = _COLOURS[number % len(_COLOURS)]
            axes.plot([x for x, _ in points], [o.gain for _, o in points], color=colour, linewidth=1.6, label=name)
            for x, outcome in points:
                marker = _MARKERS[choices.index(outcome.choice) % len(_MARKERS)]
                axes.plot(x, outcome.gain, marker, color=colour, markersize=6)
        for number, choice in enumerate(choices):
            axes.plot([], [], _MARKERS[number % len(_MARKERS)], color="#475467", label=f"choice: {choice}")
        axes.set_xticks(positions, values)
        axes.set_xlabel(key)
        axes.set_ylabel("speed-up over native")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.2f}×")
        axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
        return _svg(figure, "speed-up over native")


def heat(study: Study, outcomes: Sequence[Outcome]) -> str:
    """The best compressed candidate over native for two sweeps, with the line where it breaks even."""
    pyplot = _pyplot()
    import numpy as np
    from matplotlib.colors import TwoSlopeNorm

    (rows, row_values), (columns, column_values) = study.sweeps
    grid = np.array([o.best_zipped_gain for o in outcomes]).reshape(len(row_values), len(column_values))
    with pyplot.rc_context({**_STYLE, "axes.grid": False}):
        figure, axes = pyplot.subplots(figsize=(6.4, 4.4))
        norm = TwoSlopeNorm(1.0, vmin=min(0.5, float(grid.min())), vmax=max(1.5, float(grid.max())))
        edges = [np.arange(count + 1) - 0.5 for count in (grid.shape[1], grid.shape[0])]
        axes.pcolormesh(*edges, grid, cmap="RdBu", norm=norm, edgecolors="white", linewidth=0.8)
        for (y, x), value in np.ndenumerate(grid):
            strong = abs(norm(value) - 0.5) > 0.3
            axes.text(x, y, f"{value:.2f}", ha="center", va="center", color="white" if strong else "#101828")
        if grid.min() < 1 < grid.max() and min(grid.shape) > 1:
            axes.contour(grid, levels=[1.0], colors="#101828", linewidths=1.8)
        axes.set_xticks(range(len(column_values)), column_values)
        axes.set_yticks(range(len(row_values)), row_values)
        axes.set_xlabel(columns)
        axes.set_ylabel(rows)
        return _svg(figure, f"map of {rows} and {columns}")


def timeline(results: Sequence[Result], name: str) -> str:
    """Stages of the rank that ends last, one band of rows per schedule, on one axis of time."""
    pyplot = _pyplot()
    rows: list[tuple[str, list[tuple[str, int, int]]]] = []
    for result in results:
        ends = max(result.timeline.spans, key=lambda s: s.end, default=None)
        spans = [s for s in result.timeline.spans if ends and s.rank == ends.rank]
        exchanges = {s.name for s in result.schedule.stages if s.op is Op.EXCHANGE}
        for track, inside in (("codec, copies", False), ("exchanges", True)):
            bars = [(s.stage, s.start, s.end) for s in spans if (s.stage in exchanges) is inside]
            if bars:
                rows.append((f"{result.label}: {track}", sorted(bars, key=lambda b: b[1])))
    longest = max((end for _, bars in rows for _, _, end in bars), default=1)
    unit, factor = next(((u, f) for u, f in (("ms", 1e9), ("µs", 1e6)) if longest >= f), ("ns", 1e3))
    with pyplot.rc_context({**_STYLE, "axes.grid": False}):
        figure, axes = pyplot.subplots(figsize=(9.2, 0.42 * len(rows) + 0.9))
        for y, (label, bars) in enumerate(reversed(rows)):
            colour = "#0072B2" if label.endswith("exchanges") else "#E69F00"
            for stage, start, end in bars:
                span = [(start / factor, (end - start) / factor)]
                axes.broken_barh(span, (y - 0.36, 0.72), facecolors=colour, edgecolor="white", linewidth=0.6)
                if end - start > longest * 0.015 * len(stage):
                    middle = (start + end) / 2 / factor
                    axes.text(middle, y, stage, ha="center", va="center", color="white", fontsize=8)
        axes.set_yticks(range(len(rows)), [label for label, _ in reversed(rows)])
        axes.set_xlim(0, longest / factor * 1.01)
        axes.set_xlabel(f"{unit}, on the rank that ends last ({format_time(longest)})")
        return _svg(figure, f"timeline {name}")
