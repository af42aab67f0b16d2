"""Runs of stages that several families share."""

from __future__ import annotations

from zipplan.planner.schedule import Axis, Exchange, Op, Payload, Stage


def native(exchange: Exchange, src: str, dst: str, axis: Axis = Axis.WORLD, after: tuple[str, ...] = ()) -> Stage:
    """The transport's own collective on raw slots."""
    return Stage(f"{exchange}_{axis}", Op.EXCHANGE, src, dst, after, axis=axis, exchange=exchange)


def transposed(name: str, src: str, dst: str, rows: int, columns: int, after: tuple[str, ...] = ()) -> Stage:
    """Slots ordered row by row, reordered column by column."""
    order = tuple(row * columns + column for column in range(columns) for row in range(rows))
    return Stage(name, Op.PERMUTE, src, dst, after, order=order)


def summed(src: str, dst: str) -> tuple[Stage, Stage]:
    """All-to-all of raw slots among all ranks, then their sum by sender."""
    move = native(Exchange.ALL_TO_ALL, src, f"{dst}_by_sender")
    return move, Stage("reduce", Op.REDUCE, move.dst, dst, (move.name,))


def zipped(
    exchange: Exchange, src: str, dst: str, axis: Axis, last: Op, after: tuple[str, ...] = ()
) -> tuple[Stage, ...]:
    """Encode, exchange the static regions, then the dynamic ones, decode (or decode and sum: `last`).

    The static exchange carries the headers, which tell every rank the dynamic sizes: ZipCCL's second design (§3.2)
    without its extra exchange of sizes.
    """
    prefix = f"{exchange}_{axis}"
    encode, static, dynamic = f"{prefix}_encode", f"{prefix}_static", f"{prefix}_dynamic"
    frames, arrived = f"{prefix}_frames", f"{prefix}_arrived"
    return (
        Stage(encode, Op.ENCODE, src, frames, after),
        Stage(static, Op.EXCHANGE, frames, arrived, (encode,), axis, exchange, Payload.STATIC),
        Stage(dynamic, Op.EXCHANGE, frames, arrived, (encode, static), axis, exchange, Payload.DYNAMIC),
        Stage(f"{prefix}_{last}", last, arrived, dst, (static, dynamic), axis),
    )
