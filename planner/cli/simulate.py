"""`zipplan simulate`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from zipplan.planner.bandwidth import bus_factor, gigabytes_per_second, moved_bytes
from zipplan.planner.cli.common import (
    calibration_option,
    cluster_options,
    console,
    dtype_option,
    json_option,
    print_json,
    profile_option,
    read_cluster,
    read_collectives,
    read_dtype,
    read_sizes,
    set_option,
    table,
)
from zipplan.planner.collectives import studied
from zipplan.planner.costs import CODECS, ELEMENT_BYTES
from zipplan.planner.errors import ConfigError, nearest
from zipplan.planner.plan import write_whole
from zipplan.planner.profiles import parse_profile
from zipplan.planner.schedule import Collective
from zipplan.planner.search import LinkUse, Result, Search
from zipplan.planner.settings import Settings
from zipplan.planner.simulate import simulate as run
from zipplan.planner.topology import Cluster
from zipplan.planner.trace import chrome_trace

NOT_MODELLED = """\
How far off it is: zipplan validate. What it does not model: launch jitter, congestion control. What compute beside it
costs: zipplan plan --workload. Ranks that arrive late: --set ranks.late=50us.
"""


@click.command(
    epilog="Example: zipplan simulate --topology hgx-h100 --nodes 2 --collective all_gather --size 1M,64M\n\n"
    + NOT_MODELLED
)
@cluster_options
@click.option("--collective", required=True, metavar="C", help="all_gather, reduce_scatter, all_reduce or all_to_all.")
@click.option("--size", required=True, metavar="S[,S…]", help="Message sizes as nccl-tests counts them; 16M is 16 MiB.")
@dtype_option
@click.option(
    "--codec",
    metavar="NAME",
    help="raw (default), window, cascade, or auto: the planner's choice.",
)
@click.option(
    "--schedule", metavar="NAME", help="A schedule by name: native, zipped, sizes-first, …, its fastest codec."
)
@click.option(
    "--algorithm",
    default="auto",
    show_default=True,
    metavar="A",
    help="ring, tree, nvls, nvlstree, collnetdirect, collnetchain (SHARP), direct or pat, where an exchange has it.",
)
@profile_option
@click.option(
    "--trace",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the timeline of one size; opens in Perfetto.",
)
@click.option("--links", type=click.IntRange(0), default=0, metavar="N", help="Also the N fullest links of each row.")
@calibration_option
@set_option
@json_option
def simulate(
    collective: str,
    size: str,
    dtype: str,
    codec: str | None,
    schedule: str | None,
    algorithm: str,
    profile: str,
    trace: Path | None,
    links: int,
    calibration: Path | None,
    changes: tuple[str, ...],
    as_json: bool,
    **where: Any,
) -> None:
    """Predict the time of one collective; columns are those of nccl-tests, plus wirebw for encoded bytes."""
    kinds, sizes, dtype = read_collectives(collective), read_sizes(size), read_dtype(dtype)
    if trace is not None and len(kinds) * len(sizes) != 1:
        raise ConfigError(f"--trace shows one collective of one size; {len(kinds)} × {len(sizes)} were asked for")
    codec = codec or ("auto" if schedule else "raw")
    choices = {"raw", "auto", *(c for codecs in CODECS.values() for c in codecs)}
    if codec not in choices:
        raise ConfigError(f"--codec: unknown {codec!r}; {nearest(codec, choices)}")
    shape = parse_profile(profile)
    settings = Settings.read(changes, calibration)
    cluster = read_cluster(**where, settings=settings)
    results = []
    for kind in kinds:
        search = Search(cluster, kind, dtype, shape, codec, algorithm, settings)
        results += [(kind, _named(search, kind, s, schedule) if schedule else search.fastest(s, codec)) for s in sizes]
    if trace is not None:
        result, rates = results[0][1], search.rates[results[0][1].schedule.codec]
        timeline = run(
            result.schedule, cluster, result.size, result.wire, search.transport, rates, search.skew, record=True
        )
        write_whole(trace, json.dumps(chrome_trace(result.schedule, timeline, cluster), allow_nan=False))
    rows = [_row(kind, result, cluster, dtype) for kind, result in results]
    if links:
        for row, (_, result) in zip(rows, results, strict=True):
            row["links"] = [_link(use) for use in search.fullest(result, links)]
    if as_json:
        print_json({"schema": 1, "rows": rows})
        return
    _show(rows, cluster)
    for row in rows if links else []:
        _show_links(row)
    if trace is not None:
        click.echo(f"\ntrace written to {trace}; open it at https://ui.perfetto.dev")


def _named(search: Search, kind: Collective, size: int, name: str) -> Result:
    """The schedule of that name with its fastest codec. Raises ConfigError when there is none."""
    cluster, codecs = search.cluster, [codec for codec in search.wires if codec != "raw"]
    known = [*search.schedules, *studied(kind, cluster.nodes, cluster.ranks_per_node, codecs)]
    if all(s.name != name for s in known):
        raise ConfigError(f"--schedule: {kind} here has no {name!r}; {nearest(name, {s.name for s in known})}")
    return min((search.run(s, size) for s in known if s.name == name), key=lambda r: r.time)


def _row(kind: Collective, result: Result, cluster: Cluster, dtype: str) -> dict[str, Any]:
    raw, encoded = moved_bytes(result.schedule, result.size, result.wire)
    algbw = gigabytes_per_second(result.size, result.time)
    busbw = algbw * bus_factor(kind, cluster.ranks)
    used = list(result.timeline.carried.values())
    return {
        "collective": str(kind),
        "size_bytes": result.size,
        "dtype": dtype,
        "nodes": cluster.nodes,
        "ranks": cluster.ranks,
        "schedule": result.schedule.name,
        "codec": result.wire.codec,
        "algorithm": "+".join(dict.fromkeys(algorithm for algorithm, _ in used)) or "none",
        "protocol": "+".join(dict.fromkeys(protocol for _, protocol in used)) or "none",
        "time_us": round(result.time / 1e6, 3),
        "algbw_GBps": round(algbw, 3),
        "busbw_GBps": round(busbw, 3),
        "wirebw_GBps": round(busbw * encoded / raw if raw else 0.0, 3),
    }


def _link(use: LinkUse) -> dict[str, Any]:
    return {
        "link": use.link.name,
        "kind": use.link.kind,
        "bandwidth_GBps": round(use.link.bandwidth / 1e9, 3),
        "bytes": round(use.bytes),
        "busy_us": round(use.busy / 1e6, 3),
        "full": round(use.full, 4),
    }


def _show_links(row: dict[str, Any]) -> None:
    columns = [("link", "left"), ("kind", "left"), ("rate (GB/s)", "right"), ("bytes", "right"), ("busy (µs)", "right"),
               ("full", "right")]  # fmt: skip
    made = table(f"fullest links of {row['collective']} of {row['size_bytes']} bytes", columns)
    for use in row["links"]:
        made.add_row(use["link"], use["kind"], f"{use['bandwidth_GBps']:.1f}", str(use["bytes"]),
                     f"{use['busy_us']:.1f}", f"{use['full']:.0%}")  # fmt: skip
    console().print(made)


def _show(rows: list[dict[str, Any]], cluster: Cluster) -> None:
    out = console()
    out.print(f"[bold]{cluster.machine.name}[/bold]: {cluster.nodes} nodes × {cluster.ranks_per_node} ranks, simulated")
    columns = [
        ("collective", "left"), ("size (B)", "right"), ("count", "right"), ("type", "left"), ("schedule", "left"),
        ("codec", "left"), ("algo", "left"), ("proto", "left"), ("time (µs)", "right"), ("algbw (GB/s)", "right"),
        ("busbw (GB/s)", "right"), ("wirebw (GB/s)", "right"),
    ]  # fmt: skip
    made = table("", columns)
    for r in rows:
        made.add_row(
            r["collective"], str(r["size_bytes"]), str(r["size_bytes"] // ELEMENT_BYTES[r["dtype"]]), r["dtype"],
            r["schedule"], r["codec"], r["algorithm"], r["protocol"], f"{r['time_us']:.1f}",
            f"{r['algbw_GBps']:.2f}", f"{r['busbw_GBps']:.2f}", f"{r['wirebw_GBps']:.2f}",
        )  # fmt: skip
    out.print(made)
