"""`torchrun … -m zipplan.executor.calibrate -o cal.json`: what exchanges, messages and codec take on these ranks.

Every time is that of the least disturbed of several calls, on its slowest rank: other programs only ever add. Exchanges
run as the executor runs them; codec stages run on all ranks at once, so that ranks which share cores share them here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from zipplan.executor import need_torch
from zipplan.executor.commands import RanksCommand, TransportFailed, main, need_ranks, refuse
from zipplan.planner.calibration import Calibration, Curve, ExchangeCurve, LinkCurve, StageCurve, fit
from zipplan.planner.cli.entry import say
from zipplan.planner.costs import CODECS
from zipplan.planner.errors import ConfigError, nearest
from zipplan.planner.plan import zipplan_version
from zipplan.planner.schedule import Axis, Exchange, Op, Schedule
from zipplan.planner.units import format_bandwidth, format_size, format_time, parse_size

if TYPE_CHECKING:
    from torch import Tensor

EXAMPLE = "torchrun --nproc-per-node 4 -m zipplan.executor.calibrate -o cal.json"
_POINTS = 8
_CALLS = (3, 20)  # least and most timed calls of one size
_SECONDS = 0.4  # that one size may take, once it has its least calls
_EXCHANGES = (Exchange.ALL_GATHER, Exchange.ALL_TO_ALL, Exchange.REDUCE_SCATTER, Exchange.ALL_REDUCE)

Make = Callable[[int], Callable[[], object]]


@click.command(cls=RanksCommand, context_settings={"help_option_names": ["-h", "--help"]}, epilog=f"Example: {EXAMPLE}")
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), required=True, help="Calibration file."
)
@click.option("-b", "--begin", default="64K", show_default=True, metavar="S", help="Smallest message of a rank.")
@click.option("-e", "--end", default="8M", show_default=True, metavar="S", help="Largest message of a rank.")
@click.option("--dtype", default="bf16", show_default=True, metavar="D", help="Element type of sums and codec.")
@click.option("--ranks-per-node", type=click.IntRange(1), metavar="K", help="Rehearse nodes of K ranks on one host.")
@click.option("--backend", type=click.Choice(["gloo"]), default="gloo", show_default=True, help="Transport.")
@click.option("--timeout", type=click.IntRange(1), default=60, show_default=True, help="Seconds before a hang ends.")
def calibrate(
    output: Path, begin: str, end: str, dtype: str, ranks_per_node: int | None, backend: str, timeout: int
) -> int:
    """Measure links, native exchanges and codec; write the file that plan and simulate read with --calibration."""
    need_ranks("calibrate", EXAMPLE)
    need_torch()
    import torch.distributed as dist

    sizes = _sizes(parse_size(begin, "-b"), parse_size(end, "-e"))
    if dtype not in CODECS:
        raise ConfigError(f"--dtype: no codec serves {dtype!r}; {nearest(dtype, CODECS)}")
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout))
    try:
        try:
            made = measure(sizes, dtype, ranks_per_node)
        except ConfigError as error:
            return refuse(error)
        if dist.get_rank() == 0:
            made.save(output)
            _show(made, output)
        dist.barrier()
    except RuntimeError as error:
        raise TransportFailed("calibrate", error) from error
    finally:
        dist.destroy_process_group()
    return 0


def measure(sizes: list[int], dtype: str, ranks_per_node: int | None = None) -> Calibration:
    """All curves, the same on every rank. A collective call of the default process group."""
    import torch.distributed as dist

    local = ranks_per_node or int(os.environ.get("LOCAL_WORLD_SIZE", dist.get_world_size()))
    ranks = dist.get_world_size()
    if ranks < 2 or ranks % local:
        raise ConfigError(f"{ranks} ranks in nodes of {local}: expected at least 2, a multiple of {local}")
    exchanges = tuple(_exchanges(sizes, dtype, local))
    return Calibration(
        made_by=f"zipplan {zipplan_version()}",
        transport="gloo",
        nodes=ranks // local,
        ranks_per_node=local,
        links=tuple(_links(sizes, local)),
        exchanges=exchanges,
        stages=tuple(_as_run(tuple(_stages(sizes, dtype)), exchanges, sizes[0], dtype)),
    )


def _sizes(first: int, last: int) -> list[int]:
    if first < 4096 or last < 16 * first:
        raise ConfigError("-b, -e: expected 4K ≤ begin and end ≥ 16 × begin; a line needs a range of sizes")
    step = (last / first) ** (1 / (_POINTS - 1))
    return [round(first * step**i) // 4096 * 4096 for i in range(_POINTS)]


def _curve(sizes: list[int], make: Make) -> Curve:
    """Time `make(size)()` on all ranks for every size, so often as the time allows."""
    return fit([(size, _least_ps(make(size))) for size in sizes])


def _least_ps(call: Callable[[], object]) -> float:
    from zipplan.executor.measure import slowest

    call()
    times = [slowest(call) for _ in range(_CALLS[0])]
    while len(times) < _CALLS[1] and sum(times) < _SECONDS:  # all ranks hold the same numbers
        times.append(slowest(call))
    return min(times) * 1e12


def _links(sizes: list[int], local: int) -> Iterator[LinkCurve]:
    """Rank 0 and the next rank on its node, rank 0 and the first on the next node: there and back, halved."""
    import torch
    import torch.distributed as dist

    rank, ranks = dist.get_rank(), dist.get_world_size()
    for across, peer in ((False, 1), (True, local)):
        if peer >= ranks or (local == 1 and not across):
            continue

        def make(size: int, peer: int = peer) -> Callable[[], object]:
            data = torch.empty(size, dtype=torch.uint8)

            def call() -> None:
                if rank == 0:
                    dist.send(data, peer)
                    dist.recv(data, peer)
                elif rank == peer:
                    dist.recv(data, 0)
                    dist.send(data, 0)

            return call

        both = [(size, _least_ps(make(size)) / 2) for size in sizes]
        yield LinkCurve(across=across, curve=fit(both))


def _exchanges(sizes: list[int], dtype: str, local: int) -> Iterator[ExchangeCurve]:
    import torch.distributed as dist

    from zipplan.executor import native
    from zipplan.planner.schedule import Collective

    ranks = dist.get_world_size()
    grid = Schedule("grid", Collective.ALL_GATHER, ranks // local, local, 1, "raw", ())
    used = [axis for axis in Axis if axis is Axis.WORLD or 1 < grid.axis_size(axis) < ranks]
    axes = native.Axes(dist.group.WORLD, local, frozenset(used), dist.new_group)
    for axis in used:
        for exchange in _EXCHANGES:
            make = _exchange(exchange, axes.group(axis), grid.axis_size(axis), dtype)
            yield ExchangeCurve(exchange=exchange, axis=axis, curve=_curve(sizes, make))


def _exchange(exchange: Exchange, group: Any, peers: int, dtype: str) -> Make:
    import torch

    from zipplan.executor import native
    from zipplan.executor.calls import DTYPES

    def make(size: int) -> Callable[[], object]:
        size = size // (256 * peers) * 256 * peers
        src = _normal(size, dtype)
        out_bytes = {Exchange.ALL_GATHER: size * peers, Exchange.REDUCE_SCATTER: size // peers}.get(exchange, size)
        out = torch.empty(out_bytes, dtype=torch.uint8)
        if exchange.reduces:
            src, out = src.view(DTYPES[dtype]), out.view(DTYPES[dtype])

        def call() -> None:
            handle = native.exchange(exchange, out, src, group)
            if handle is not None:
                handle.wait()

        return call

    return make


def _stages(sizes: list[int], dtype: str) -> Iterator[StageCurve]:
    """Codec stages of each codec, sums and copies of raw slots; a message is one slot for each rank."""
    import torch
    import torch.distributed as dist

    from zipplan.executor.calls import DTYPES
    from zipplan.executor.codec import SlotCodec
    from zipplan.executor.coders import CpuCoder
    from zipplan.executor.interpreter import sum_by_sender

    ranks, kind = dist.get_world_size(), DTYPES[dtype]

    def frames(codec: str, size: int) -> tuple[SlotCodec, Tensor, Tensor, Tensor, Any]:
        elements = size // ranks // kind.itemsize
        coder = SlotCodec(CpuCoder(), codec, {}, dtype, elements)
        src = _normal(ranks * elements * kind.itemsize, dtype)
        static = torch.empty(ranks * coder.static_bytes, dtype=torch.uint8)
        dynamic = torch.empty(ranks * coder.dynamic_bound, dtype=torch.uint8)
        coder.encode(src, static, dynamic)
        (sizes,) = coder.sizes(static)
        return coder, src, static, dynamic, sizes.cumsum() - sizes

    def encode(codec: str) -> Make:
        def make(size: int) -> Callable[[], object]:
            coder, src, static, dynamic, _ = frames(codec, size)
            return lambda: coder.encode(src, static, dynamic)

        return make

    def decode(codec: str, reduces: bool) -> Make:
        def make(size: int) -> Callable[[], object]:
            coder, src, static, dynamic, offsets = frames(codec, size)
            if reduces:
                return lambda: coder.decode_reduce(static, dynamic, offsets, ranks, src[: coder.slot_bytes])
            return lambda: coder.decode(static, dynamic, offsets, src)

        return make

    def copy(size: int) -> Callable[[], object]:
        src = _normal(size, dtype)
        out = torch.empty_like(src)
        return lambda: out.copy_(src)

    def add(size: int) -> Callable[[], object]:
        src = _normal(size // (2 * ranks * kind.itemsize) * 2 * ranks * kind.itemsize, dtype)
        out = torch.empty(src.numel() // ranks, dtype=torch.uint8)
        return lambda: sum_by_sender(src, ranks, kind, out)

    jobs: list[tuple[str, Op, Make]] = [("raw", Op.PERMUTE, copy), ("raw", Op.REDUCE, add)]
    for codec in CODECS[dtype]:
        jobs += [
            (codec, Op.ENCODE, encode(codec)),
            (codec, Op.DECODE, decode(codec, False)),
            (codec, Op.DECODE_REDUCE, decode(codec, True)),
        ]
    for codec, op, make in jobs:
        yield StageCurve(codec=codec, dtype=dtype, op=op, curve=_curve([n * ranks for n in sizes], make))


def _as_run(
    stages: tuple[StageCurve, ...], exchanges: tuple[ExchangeCurve, ...], size: int, dtype: str
) -> Iterator[StageCurve]:
    """The curves with what a schedule costs beyond its parts: half of that for each of the two codec stages of one.

    Measured on the zipped all-gather of a small slot, where it counts.
    """
    import torch
    import torch.distributed as dist

    from zipplan.executor.calls import DTYPES
    from zipplan.executor.codec import SlotCodec
    from zipplan.executor.coders import CpuCoder
    from zipplan.executor.start import init
    from zipplan.planner.collectives import all_gather

    ranks, kind = dist.get_world_size(), DTYPES[dtype]
    gather = next(e.curve for e in exchanges if (e.exchange, e.axis) == (Exchange.ALL_GATHER, Axis.WORLD))
    src = _normal(size, dtype).view(kind)
    out = torch.empty(ranks * src.numel(), dtype=kind)
    session = init(None, ranks_per_node=1, adaptive=False)
    beyond: dict[str, float] = {}
    for codec in CODECS[dtype]:
        coder = SlotCodec(CpuCoder(), codec, {}, dtype, src.numel())
        schedule = all_gather.zipped(ranks, 1, codec)
        encoded = session.execute(schedule, out, src, coder).encoded_bytes
        took = _least_ps(lambda schedule=schedule, coder=coder: session.execute(schedule, out, src, coder))  # type: ignore[misc]
        moved = [(gather, coder.static_bytes), (gather, encoded - coder.static_bytes)]
        coded = [
            (s.curve, src.nbytes if s.op is Op.ENCODE else out.nbytes)
            for s in stages
            if s.codec == codec and s.op in (Op.ENCODE, Op.DECODE)
        ]
        parts = sum(curve.fixed_ps + n * curve.ps_per_byte for curve, n in moved + coded)
        beyond[codec] = max(0.0, took - parts) / 2
    session.close()
    for stage in stages:
        curve = stage.curve
        yield stage.model_copy(
            update={"curve": curve.model_copy(update={"fixed_ps": curve.fixed_ps + beyond.get(stage.codec, 0.0)})}
        )


def _normal(size: int, dtype: str) -> Tensor:
    """`size` bytes of values as the bench uses them."""
    import torch

    from zipplan.executor.calls import DTYPES
    from zipplan.executor.measure import SIGMA

    kind = DTYPES[dtype]
    some = torch.normal(0.0, SIGMA, (min(size // kind.itemsize, 1 << 20),)).to(kind)
    return some.repeat(-(-size // some.nbytes)).view(torch.uint8)[:size].clone()


def _show(made: Calibration, path: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for heading in ("what", "fixed", "rate", "up to", "error"):
        table.add_column(heading, justify="left" if heading == "what" else "right", no_wrap=True)
    rows = [(f"message {'across nodes' if e.across else 'inside a node'}", e.curve) for e in made.links]
    rows += [(f"{e.exchange} on {e.axis}", e.curve) for e in made.exchanges]
    rows += [(f"{e.op} {e.codec} {e.dtype}", e.curve) for e in made.stages]
    for name, curve in rows:
        table.add_row(
            name, format_time(round(curve.fixed_ps)), format_bandwidth(round(curve.rate)),
            format_size(curve.points[-1][0]), f"{curve.error:.0%}",
        )  # fmt: skip
    console = Console(highlight=False, width=120)
    console.print(f"{made.nodes} × {made.ranks_per_node} ranks on {made.transport}: t = fixed + bytes / rate")
    console.print(table)
    console.print("error: largest on points that the fit had not seen")
    for warning in made.warnings():
        say(warning, "warning")
    console.print(f"written to {path}; use it with: zipplan plan --calibration {path} …", soft_wrap=True)


if __name__ == "__main__":
    main(calibrate)
