"""`zipplan topo`: list, show, import and check machines."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from rich.markup import escape
from rich.table import Table
from rich.tree import Tree

from zipplan.planner.cli.common import (
    console,
    gpu_option,
    json_option,
    part_options,
    print_json,
    read_cluster,
    read_gpus,
    table,
    warn,
)
from zipplan.planner.plan import write_whole
from zipplan.planner.topology import Cluster, build_cluster, load_described, load_machine, shipped
from zipplan.planner.topology.check import check as run_checks
from zipplan.planner.topology.combine import with_fabric
from zipplan.planner.topology.describe import counts, matrix, path_classes, summary, tree
from zipplan.planner.topology.importers import Imported
from zipplan.planner.topology.write import to_toml
from zipplan.planner.units import format_bandwidth


@click.group(epilog="Example: zipplan topo import topo.txt --gpu H100 -o node.toml")
def topo() -> None:
    """List, draw, import and check machines."""


@topo.command("list", epilog="Example: zipplan topo list --json")
@json_option
def list_(as_json: bool) -> None:
    """Machines that come with zipplan."""
    machines = [load_machine(name) for name in shipped()]
    if as_json:
        rows = [
            {"name": m.name, "ranks_per_node": m.node[0].ranks, "fabric": m.fabric.kind, "summary": m.summary}
            for m in machines
        ]
        print_json({"schema": 1, "machines": rows})
        return
    out = table("", [("name", "left"), ("ranks/node", "right"), ("fabric", "left"), ("what it is", "left")])
    for machine in machines:
        out.add_row(machine.name, str(machine.node[0].ranks), machine.fabric.kind, machine.summary)
    out.columns[-1].no_wrap = False
    console().print(out)


@topo.command(epilog="Example: zipplan topo show hgx-h100 --nodes 4 -o h100.svg")
@click.argument("name")
@click.option("-o", "--output", metavar="FILE", help="Also draw a picture: .svg, .png or .pdf (needs matplotlib).")
@json_option
@part_options
def show(name: str, output: str | None, as_json: bool, **where: Any) -> None:
    """Draw a machine: a shipped name, a TOML file or importable text."""
    cluster = read_cluster(name, **where)
    if output is not None:
        from zipplan.planner.topology.picture import save_picture

        save_picture(cluster, output)
    if as_json:
        print_json(summary(cluster))
        return
    out = console()
    machine = cluster.machine
    out.print(f"[bold]{machine.name}[/bold]  {machine.summary}")
    nodes = "1 node" if cluster.nodes == 1 else f"{cluster.nodes} nodes"
    out.print(f"{nodes} x {cluster.ranks_per_node} ranks, fabric: {machine.fabric.kind}")
    out.print(", ".join(f"{n} {kind}" for kind, n in counts(cluster).items() if n))
    out.print(f"[dim]{cluster.fingerprint}[/dim]\n")
    out.print(_tree(cluster))
    title, body = _matrix(cluster, out.width)
    out.print(f"\n{title}")
    if body is not None:
        out.print(body)
    if output is not None:
        click.echo(f"wrote {output}", err=True)


def _tree(cluster: Cluster) -> Tree:
    template = cluster.templates[int(cluster.template_of[0])]
    users: dict[str, list[str]] = {}
    for device, nic in template.nic_of.items():
        users.setdefault(nic, []).append(device)
    nvlink: dict[str, int] = {}
    up: dict[tuple[str, str], int] = {}
    for edge in template.edges:
        if edge.kind in ("nvlink", "xgmi"):
            nvlink[edge.src] = nvlink.get(edge.src, 0) + edge.bandwidth
        up[edge.src, edge.dst] = edge.bandwidth

    def text(device: str, parent: str | None) -> str:
        parts = [f"[bold]{device}[/bold]"]
        if parent is not None and (device, parent) in up:
            parts.append(f"{format_bandwidth(up[device, parent])} up")
        if device in nvlink and device.startswith("gpu"):
            parts.append(f"{format_bandwidth(nvlink[device])} to peers")
        if device in template.port_out:
            parts.append(f"{format_bandwidth(template.edges[template.port_out[device]].bandwidth)} to the fabric")
        if device in users:
            parts.append(f"for {', '.join(users[device])}")
        if device in template.idle_nics:
            parts.append("[dim]kept out of the data path[/dim]")
        return "  ".join(parts)

    def grow(branch: Tree, parent: str, children: dict[str, Any]) -> None:
        for device, below in children.items():
            grow(branch.add(text(device, parent)), device, below)

    def shape(device: str, parent: str | None, below: dict[str, Any]) -> str:
        """A subtree without the numbers of its devices: what has the same rates and kinds looks the same."""
        own = re.sub(r"\b([a-z]+)\d+\b", r"\1", text(device, parent))
        return own + repr([shape(d, device, b) for d, b in below.items()])

    root = Tree("[bold]node 0[/bold]")
    roots = tree(template)
    seen: dict[str, list[str]] = {}
    for device, below in roots.items():
        seen.setdefault(shape(device, None, below), []).append(device)
    for device, below in roots.items():
        alike = seen[shape(device, None, below)]
        if len(alike) <= 4 or device in alike[:2]:
            grow(root.add(text(device, None)), device, below)
        elif device == alike[2]:
            root.add(f"... {len(alike) - 2} more like {alike[0]}, to {alike[-1]}")
    return root


def _matrix(cluster: Cluster, width: int) -> tuple[str, Table | None]:
    """(Title, table) in the widest form that fits: class and rate, or rates with the classes in the title.

    A wide matrix of equal pairs is a sentence alone.
    """
    rows = matrix(cluster)
    kinds = sorted({cell for row in rows for cell in row if cell[0] != "X"}, key=lambda cell: -cell[1])
    alike = len(kinds) == 1
    if alike and (len(rows) > 16 or 6 + 9 * len(rows) > width):
        return f"every pair of ranks of a node: {kinds[0][0]}, {format_bandwidth(kinds[0][1])} each way", None
    title = "path class and GB/s between ranks of a node"
    if len(rows) > 16:
        rows, title = rows[:16], f"{title} (first 16 of {len(rows)})"
    names = list(cluster.devices[: len(rows)])

    cells = [["·" if e[0] == "X" else f"{e[0]} {e[1] / 1e9:.3g}" for e in row[: len(rows)]] for row in rows]
    wide = 7 + sum(max(map(len, column)) + 2 for column in zip(*cells, strict=True)) <= width
    if not wide:
        title = "GB/s between ranks of a node: " + "; ".join(f"{label} {rate / 1e9:.3g}" for label, rate in kinds)
    heads = names if wide else [name.lstrip("abcdefghijklmnopqrstuvwxyz") for name in names]
    out = table("", [("", "left"), *((head, "right") for head in heads)])
    for device, row in zip(names, cells, strict=True):
        out.add_row(device, *(text if wide else text.split(" ")[-1] for text in row))
    return title, out


@topo.command("import", epilog="Example: nvidia-smi topo -m | zipplan topo import - --gpu H100 -o node.toml")
@click.argument("file")
@gpu_option
@click.option("--fabric", metavar="FILE", help="ibnetdiscover or iblinkinfo text: the network that joins the nodes.")
@click.option("--nodes", type=click.IntRange(1), metavar="N", help="Number of nodes; the TOML keeps it as the default.")
@click.option("-o", "--output", metavar="FILE", help="Write TOML here; without it the TOML goes to stdout.")
@json_option
def import_(
    file: str, gpu: str | None, fabric: str | None, nodes: int | None, output: str | None, as_json: bool
) -> None:
    """Read nvidia-smi topo -m, rocm-smi, NCCL or RCCL XML, ibnetdiscover or iblinkinfo; write TOML."""
    described = load_described(file, gpu=gpu)
    if fabric is not None:
        described = with_fabric(described, load_described(fabric, gpu=_model(described)))
    cluster = build_cluster(described.machine, nodes=nodes)
    if nodes is not None and described.machine.fabric.kind != "none":
        sized = described.machine.fabric.model_copy(update={"default_nodes": nodes})
        described = replace(described, machine=described.machine.model_copy(update={"fabric": sized}))
    warn(file, described)
    text = to_toml(described)
    if output is not None:
        write_whole(Path(output), text)
    if as_json:
        report = {key: list(getattr(described, key)) for key in ("read", "assumed", "unknown", "warnings")}
        print_json({"format": described.format, **report, **summary(cluster), "output": output})
    elif output is None:
        click.echo(text, nl=False)
    else:
        _report(described, cluster)
        console().print(f"wrote {output}")


def _report(described: Imported, cluster: Cluster) -> None:
    out = console()
    out.print(
        f"[bold]{cluster.machine.name}[/bold] from {described.format}: {cluster.nodes} x {cluster.ranks_per_node} ranks"
    )
    out.print(f"path classes: {', '.join(f'{n} {label}' for label, n in path_classes(cluster).items()) or 'none'}")
    for heading in ("read", "assumed", "unknown"):
        for sentence in getattr(described, heading):
            out.print(f"[bold]{heading:9}[/bold] {escape(sentence)}")


def _model(described: Imported) -> str | None:
    return described.machine.gpu.model if described.machine.gpu else None


@topo.command("check", epilog="Example: zipplan topo check node.toml --nodes 4")
@click.argument("file")
@click.option("--against", metavar="FILE", help="Compare with another description of the same machine, pair by pair.")
@json_option
@part_options
@click.pass_context
def check(
    context: click.Context, /, file: str, against: str | None, as_json: bool, gpu: str | None, **where: Any
) -> None:
    """Lint a machine: asymmetric or degraded links, GPUs without NVLink, far NICs, oversubscription, odd numbers."""
    described = load_described(file, gpu=gpu)
    cluster = build_cluster(described.machine, **{**where, "gpus": read_gpus(where["gpus"])})
    findings = run_checks(described, cluster)
    failed = any(f.level == "error" for f in findings)
    differences: list[dict[str, str]] = []
    if against is not None:
        from zipplan.planner.topology.combine import compare

        differences = compare(described, load_described(against, gpu=gpu or _model(described)))
        failed = failed or bool(differences)
    if as_json:
        rows = [{"level": f.level, "rule": f.rule, "text": f.text} for f in findings]
        print_json({"schema": 1, "ok": not failed, "findings": rows, "differences": differences})
    else:
        out = console()
        for finding in findings:
            out.print(f"[bold]{finding.level}[/bold] {finding.rule}: {escape(finding.text)}")
        for row in differences:
            out.print(f"[bold]differs[/bold] {row['pair']}: {row['a']} here, {row['b']} in {against}")
        if not findings and not differences:
            out.print(f"{cluster.machine.name}: nothing to say; {cluster.ranks} ranks, {len(cluster.links)} links")
    context.exit(1 if failed else 0)
