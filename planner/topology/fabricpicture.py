"""The fabric of a cluster as a drawing: nodes below, the switches they hang on above them, then the next ones."""

from __future__ import annotations

from collections import Counter
from typing import Any

from zipplan.planner.topology.cluster import Cluster
from zipplan.planner.topology.node import natural
from zipplan.planner.units import format_bandwidth

_ROW = 16
"""Most boxes in one row; of more, the first ones and the last one are drawn."""
_PLURAL = {"node": "nodes", "leaf": "leaves", "spine": "spines", "cable": "cables"}
_NODE, _SWITCH, _CABLE, _UPLINK = "#2f6f4f", "#5b3f8c", "#b5651d", "#8d99ae"


def draw_fabric(axes: Any, cluster: Cluster) -> None:
    """Draw nodes, switches and the cables between them; line width by the share of the widest bundle."""
    nodes = [f"node{n}" for n in range(cluster.nodes)]
    rows = [nodes, *_levels(cluster)]
    places: dict[str, tuple[float, float]] = {}
    for height, row in enumerate(rows):
        shown = row if len(row) <= _ROW else [*row[: _ROW - 2], "", row[-1]]
        y = height / max(1, len(rows) - 1)
        for i, name in enumerate(shown):
            x = 0.12 + 0.88 * (i + 0.5) / len(shown)
            if name:
                places[name] = (x, y)
            else:
                axes.text(x, y, f"… {len(row) - len(shown) + 1} more", ha="center", va="center", fontsize=8, zorder=3)
        words = {name.rstrip("0123456789") for name in row}
        kind = _PLURAL.get(words.pop(), "switches") if len(words) == 1 else "switches"
        axes.text(0.0, y, f"{len(row)} {kind}" if len(row) > 1 else "1 switch", ha="left", va="center", fontsize=10)
    _lines(axes, cluster, places)
    for name, (x, y) in places.items():
        box = {"boxstyle": "round,pad=0.4", "facecolor": _NODE if y == 0 else _SWITCH, "edgecolor": "none"}
        short = name if len(name) <= 10 else f"{name[:9]}…"
        axes.text(x, y, short, ha="center", va="center", color="white", fontsize=8, zorder=3, bbox=box)
    axes.set_xlim(0, 1.02)
    axes.set_ylim(-0.25, 1.4)
    axes.set_title(f"fabric: {cluster.machine.fabric.kind}", loc="left")
    axes.axis("off")


def _levels(cluster: Cluster) -> list[list[str]]:
    """Switches by their distance from the nearest node."""
    known = {switch for row in cluster.fabric.attach for switch in row}
    levels = []
    front = known
    while front:
        levels.append(sorted(front, key=natural))
        front = {e.dst for e in cluster.fabric.edges if e.src in front} - known
        known = known | front
    return levels


def _lines(axes: Any, cluster: Cluster, places: dict[str, tuple[float, float]]) -> None:
    from matplotlib.patches import FancyArrowPatch

    cables: Counter[tuple[str, str]] = Counter()
    port = 0
    for node, row in enumerate(cluster.fabric.attach):
        template = cluster.templates[int(cluster.template_of[node])]
        for nic, switch in zip(template.nics, row, strict=False):
            if nic in template.port_out:
                rate = template.edges[template.port_out[nic]].bandwidth
                cables[f"node{node}", switch] += rate
                port = max(port, rate)
    uplinks = {(e.src, e.dst): e.bandwidth for e in cluster.fabric.edges if natural(e.src) < natural(e.dst)}
    for bundles, colour in ((cables, _CABLE), (uplinks, _UPLINK)):
        widest = max(bundles.values(), default=1)
        drawn = {(a, b): rate for (a, b), rate in bundles.items() if a in places and b in places}
        for (a, b), rate in drawn.items():
            far = abs(places[a][0] - places[b][0])
            bend = min(0.3, 0.02 / far + 0.05) if places[a][1] == places[b][1] else 0.0
            style = {"alpha": 0.6 if len(drawn) < 100 else 0.3, "linewidth": 0.4 + 1.6 * (rate / widest) ** 0.5}
            axes.add_patch(
                FancyArrowPatch(
                    places[a], places[b], arrowstyle="-", connectionstyle=f"arc3,rad={-bend}", color=colour,
                    zorder=1, shrinkA=0, shrinkB=0, **style,
                )
            )  # fmt: skip
    axes.plot([], [], color=_CABLE, linewidth=3, label=f"node to switch: {format_bandwidth(port)} each way per NIC")
    if uplinks:
        low, high = min(uplinks.values()), max(uplinks.values())
        span = format_bandwidth(low) + (f" to {format_bandwidth(high)}" if high != low else "")
        axes.plot([], [], color=_UPLINK, linewidth=3, label=f"between two switches: {span} each way")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 0.02), ncols=2, frameon=False)
