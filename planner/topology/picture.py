"""A picture of a cluster for a slide: the inside of node 0, its bandwidth matrix, and the fabric."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from zipplan.planner.errors import ConfigError
from zipplan.planner.topology.cluster import Cluster
from zipplan.planner.topology.describe import matrix
from zipplan.planner.topology.fabricpicture import draw_fabric
from zipplan.planner.topology.model import kind_of
from zipplan.planner.topology.node import NodeTemplate, natural
from zipplan.planner.units import format_bandwidth

_LAYERS = ("memory", "hub", "cpu", "pci", "nic", "gpu", "rank", "nvswitch")
_FILL = {
    "gpu": "#2f6f4f", "rank": "#2f6f4f", "nic": "#b5651d", "cpu": "#44546a", "memory": "#44546a", "hub": "#44546a",
    "pci": "#8d99ae", "nvswitch": "#5b3f8c",
}  # fmt: skip
_LINE = {
    "nvlink": "#5b3f8c", "xgmi": "#5b3f8c", "c2c": "#2f6f4f", "pcie": "#8d99ae", "cpu": "#44546a", "nic": "#b5651d",
    "loopback": "#8d99ae",
}  # fmt: skip
_MANY = 18
"""More devices of one kind than this do not fit beside each other; then the first ranks stand for all."""
_FEW = 8


def save_picture(cluster: Cluster, path: str) -> None:
    """Write .svg, .png or .pdf. Raises ConfigError for another ending or without matplotlib."""
    ending = Path(path).suffix.lower()
    if ending not in (".svg", ".png", ".pdf"):
        raise ConfigError(f"-o {path}: cannot draw a {ending or 'file without ending'}; use .svg, .png or .pdf")
    try:
        import matplotlib
    except ImportError:
        raise ConfigError("pictures need matplotlib: pip install 'zipplan[plot]'") from None
    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    matplotlib.rcParams |= {"svg.hashsalt": "zipplan", "font.size": 9, "font.family": "sans-serif"}
    fabric = cluster.nodes > 1
    figure = Figure(figsize=(14, 10.6 if fabric else 7.4), layout="constrained")
    above: Any = figure
    below: Any = None
    if fabric:
        grid = figure.add_gridspec(2, 1, height_ratios=(1.9, 1))
        above, below = figure.add_subfigure(grid[0]), figure.add_subfigure(grid[1])
    left, right = above.subplots(1, 2, width_ratios=(1.55, 1))
    template = cluster.templates[int(cluster.template_of[0])]
    _node(left, template)
    _heat(above, right, cluster)
    if below is not None:
        draw_fabric(below.subplots(), cluster)
    nodes = "1 node" if cluster.nodes == 1 else f"{cluster.nodes} nodes"
    figure.suptitle(
        f"{cluster.machine.name}: {nodes} × {cluster.ranks_per_node} ranks\n{cluster.machine.summary}",
        fontsize=13,
        x=0.01,
        ha="left",
    )
    try:
        figure.savefig(path, metadata={"Date": None} if ending == ".svg" else {}, dpi=150)
    except OSError as error:
        raise ConfigError(f"-o {path}: cannot write: {error.strerror or error}") from None


def _shown(template: NodeTemplate) -> list[str]:
    """All devices; of a crowded node the first ranks and what hangs above and beside them."""
    if len(template.ranks) <= _MANY:
        return template.devices
    kept = set(template.ranks[:_FEW])
    for kinds in (("pci", "cpu", "memory"), ("pci", "cpu"), ("nic", "nvswitch")):
        kept |= {e.dst for e in template.edges if e.src in kept and e.kind != "cpu" and kind_of(e.dst) in kinds}
    return [d for d in template.devices if d in kept]


def _places(template: NodeTemplate) -> dict[str, tuple[float, float]]:
    """Device → (x, y): one row per kind, ordered so that lines to the row above stay short."""
    devices = _shown(template)
    present = [k for k in _LAYERS if any(kind_of(d) == k for d in devices)]
    near: dict[str, list[str]] = {d: [] for d in devices}
    for edge in template.edges:
        if edge.src in near and edge.dst in near:
            near[edge.src].append(edge.dst)
    places: dict[str, tuple[float, float]] = {}
    anchor = "gpu" if "gpu" in present else "rank"
    fixed = [d for d in devices if kind_of(d) == anchor]
    for i, device in enumerate(fixed):
        places[device] = ((i + 0.5) / len(fixed), 0.0)
    for kind in sorted((k for k in present if k != anchor), key=lambda k: _DISTANCE.get(k, 9)):
        row = [d for d in devices if kind_of(d) == kind]

        def wish(device: str) -> tuple[float, tuple[object, ...]]:
            xs = [places[n][0] for n in near[device] if n in places]
            return (sum(xs) / len(xs) if xs else 1.0, natural(device))

        row.sort(key=wish)
        for i, device in enumerate(row):
            places[device] = ((i + 0.5) / len(row), 0.0)
    rows = [k for k in _LAYERS if k in present]
    aside = 0.36 / max(1, len(fixed), sum(kind_of(d) == "nic" for d in places))  # NICs beside the lines to the GPUs
    return {
        d: (x + (aside if kind_of(d) == "nic" else 0.0), 1.0 - rows.index(kind_of(d)) / max(1, len(rows) - 1))
        for d, (x, _) in places.items()
    }


_DISTANCE = {"pci": 0, "nvswitch": 1, "nic": 2, "cpu": 3, "memory": 3, "hub": 4}


def _node(axes: Any, template: NodeTemplate) -> None:
    from matplotlib.patches import FancyArrowPatch, Rectangle

    places = _places(template)
    widest = max(e.bandwidth for e in template.edges) if template.edges else 1
    crowd = max([sum(kind_of(d) == k for d in places) for k in _LAYERS] or [1])
    broad = 4.0 if crowd <= _MANY else 1.2
    switches = [d for d in places if kind_of(d) == "nvswitch"]
    bar = switches[0] if len(switches) == 1 else None
    drawn: set[tuple[str, str]] = set()
    labels: dict[str, tuple[str, int]] = {}
    for edge in template.edges:
        if (edge.dst, edge.src) in drawn or edge.src not in places or edge.dst not in places:
            continue
        drawn.add((edge.src, edge.dst))
        here, there = places[edge.src], places[edge.dst]
        if bar == edge.dst:
            there = (here[0], there[1])
        elif bar == edge.src:
            here = (there[0], here[1])
        same_row = places[edge.src][1] == places[edge.dst][1]
        bend = 0.0
        if same_row:
            bend = 0.18 + 0.25 * abs(places[edge.src][0] - places[edge.dst][0])
            bend = bend if places[edge.src][0] < places[edge.dst][0] else -bend
        axes.add_patch(
            FancyArrowPatch(
                here, there, arrowstyle="-", connectionstyle=f"arc3,rad={bend}",
                color=_LINE.get(edge.kind, "#8d99ae"), alpha=0.75, zorder=1, shrinkA=0, shrinkB=0,
                linewidth=0.6 + broad * (edge.bandwidth / widest) ** 0.5,
            )
        )  # fmt: skip
        fastest = labels.get(edge.kind, ("", 0))[1]
        labels[edge.kind] = (f"{edge.kind}  {format_bandwidth(max(edge.bandwidth, fastest))} each way",
                             max(edge.bandwidth, fastest))  # fmt: skip
    idle = set(template.idle_nics)
    for device, (x, y) in places.items():
        kind = kind_of(device)
        if device == bar:
            axes.add_patch(Rectangle((0.01, y - 0.035), 0.98, 0.07, color=_FILL[kind], zorder=2))
            axes.text(0.5, y, device, ha="center", va="center", color="white", zorder=3)
            continue
        text = device if crowd <= _MANY else device.lstrip("abcdefghijklmnopqrstuvwxyz")
        axes.text(
            x, y, text, ha="center", va="center", color="white", zorder=3,
            fontsize=9 if crowd <= 10 else 7 if crowd <= _MANY else 5,
            alpha=0.5 if device in idle else 1.0,
            bbox={"boxstyle": "round,pad=0.45" if crowd <= _MANY else "round,pad=0.2", "facecolor": _FILL[kind],
                  "edgecolor": "none", "alpha": 0.5 if device in idle else 1.0},
        )  # fmt: skip
    ports = [template.edges[i].bandwidth for i in template.port_out.values()]
    if ports:
        labels["nic"] = (f"nic  {format_bandwidth(max(ports))} each way to the fabric", max(ports))
    for kind, (text, _) in labels.items():
        axes.plot([], [], color=_LINE.get(kind, "#8d99ae"), linewidth=3, label=text)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=3, frameon=False)
    axes.set_xlim(0, 1.03)
    axes.set_ylim(-0.12 if bar else -0.42, 1.08)
    part = f" (first {_FEW} of {len(template.ranks)} ranks, the others alike)" if len(template.ranks) > _MANY else ""
    axes.set_title(f"inside node 0{part}", loc="left")
    axes.axis("off")


def _heat(figure: Any, axes: Any, cluster: Cluster) -> None:
    rows = matrix(cluster)
    size = len(rows)
    if size == 1:
        axes.axis("off")
        return
    rates = [[float("nan") if a == b else rows[a][b][1] / 1e9 for b in range(size)] for a in range(size)]
    image = axes.imshow(rates, cmap="viridis", vmin=0)
    if size <= _MANY:
        top = max((r for row in rates for r in row if r == r), default=1.0)
        for a in range(size):
            for b in range(size):
                if a != b:
                    label, rate = rows[a][b]
                    shade = "black" if rate / 1e9 > 0.7 * top else "white"
                    font = 8 if size <= 8 else 5
                    axes.text(b, a, f"{label}\n{rate / 1e9:.3g}", ha="center", va="center", fontsize=font, color=shade)
        ticks = list(range(size))
    else:
        ticks = list(range(0, size, max(1, size // 12)))
    axes.set_xticks(ticks, [cluster.devices[i] for i in ticks], rotation=90)
    axes.set_yticks(ticks, [cluster.devices[i] for i in ticks])
    axes.set_title("path class and GB/s between the ranks of a node", loc="left")
    figure.colorbar(image, ax=axes, shrink=0.7, label="GB/s, one direction")
