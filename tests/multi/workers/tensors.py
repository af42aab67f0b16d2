"""What users hand over: odd layouts, sizes, dtypes, special values, and what the plan does not cover."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from common import Cases, plan_of, values
from torch import Tensor

from zipplan.executor import check, init
from zipplan.executor.session import Session
from zipplan.planner.collectives import all_gather, all_reduce, all_to_all, reduce_scatter
from zipplan.planner.errors import ConfigError
from zipplan.planner.schedule import Collective

ALL_DTYPES = [
    getattr(torch, name)
    for name in (
        *("bool", "uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "bfloat16"),
        *("float32", "float64", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2"),
    )
]


def zipped_plan(dtype: str = "bf16") -> object:
    """Every collective zipped with the window codec."""
    builders = (all_gather.zipped, reduce_scatter.zipped, all_reduce.two_shot, all_to_all.zipped)
    return plan_of([build(1, 4, "window") for build in builders], dtype=dtype)


def main() -> None:
    """Run all cases and report."""
    dist.init_process_group("gloo")
    session, cases = init(zipped_plan(), adaptive=False), Cases()
    layouts(session, cases)
    special_values(session, cases)
    uneven_frames(session, cases)
    every_dtype(session, cases)
    pinned_order(cases)
    not_covered(session, cases)
    cases.report()
    dist.destroy_process_group()


def gathered(session: Session, given: Tensor) -> Tensor:
    """All-gather of a tensor of any layout into a new flat tensor."""
    out = torch.empty(given.numel() * session.ranks, dtype=given.dtype)
    session.all_gather(out, given)
    return out


def layouts(session: Session, cases: Cases) -> None:
    """Views, transposed and strided tensors, in and out; scratch does not leak from call to call."""
    transposed = values((37, 64), seed=1).t()
    want = check.moved(Collective.ALL_GATHER, torch.empty(4 * 37 * 64, dtype=torch.bfloat16), transposed)
    cases.note("layout transposed input", check.differences(gathered(session, transposed), want))
    wide = torch.zeros((4 * 64, 74), dtype=torch.bfloat16)
    session.all_gather(wide[:, ::2], transposed)
    cases.note("layout strided output", check.differences(wide[:, ::2].reshape(-1), want))
    cases.note("layout gaps of the output untouched", None if not wide[:, 1::2].any() else "written")
    odd = values(2049, seed=2)[1:]
    want = check.moved(Collective.ALL_TO_ALL, torch.empty_like(odd), odd)
    out = torch.empty_like(odd)
    session.all_to_all(out, odd)
    cases.note("layout input at an odd offset", check.differences(out, want))
    expanded = torch.ones(()).expand(4096).bfloat16() * (dist.get_rank() + 1)
    part = torch.empty(1024, dtype=torch.bfloat16)
    session.reduce_scatter(part, expanded[:1].expand(4096))
    cases.note("layout stride 0", check.differences(part, torch.full_like(part, 10.0)))
    for shape in ((), (1,), (3, 5), (7, 11, 13)):
        tensor = values(shape, seed=3)
        want = check.summed(check.gathered(Collective.ALL_REDUCE, tensor)).view(shape)
        session.all_reduce(tensor)
        cases.note(f"layout all_reduce of shape {shape}", check.differences(tensor, want))
    columns = values((128, 6), seed=4)
    view, keep = columns[:, 1::2], columns[:, ::2].clone()
    want = check.summed(check.gathered(Collective.ALL_REDUCE, view.contiguous())).view(view.shape)
    session.all_reduce(view)
    cases.note(
        "layout all_reduce of columns", check.differences(view, want) or check.differences(columns[:, ::2], keep)
    )
    whole = torch.zeros(4 * 500, dtype=torch.bfloat16)
    mine = whole[500 * dist.get_rank() :][:500]
    mine.copy_(values(500, seed=5))
    want = check.moved(Collective.ALL_GATHER, whole, mine.clone())
    session.all_gather(whole, mine)
    cases.note("layout all_gather in place", check.differences(whole, want))


def special_values(session: Session, cases: Cases) -> None:
    """All 65,536 bf16 patterns, in another order on every rank."""
    patterns = torch.arange(65_536, dtype=torch.int32).to(torch.uint16).view(torch.bfloat16)
    mine = patterns.roll(1009 * dist.get_rank())
    want = check.moved(Collective.ALL_GATHER, torch.empty(4 * 65_536, dtype=torch.bfloat16), mine)
    cases.note("values all_gather of all patterns", check.differences(gathered(session, mine), want))
    out = torch.empty_like(mine)
    session.all_to_all(out, mine)
    cases.note(
        "values all_to_all of all patterns",
        check.differences(out, check.moved(Collective.ALL_TO_ALL, out, mine)),
    )
    hurt = values(4096, seed=6)
    if dist.get_rank() == 1:
        hurt[7] = torch.tensor(0x7FA5, dtype=torch.int16).view(torch.bfloat16)
    session.all_reduce(hurt)
    wrong = not bool(hurt[7].isnan()) or bool(hurt[8:].isnan().any())
    cases.note("values NaN of one rank in a sum", "NaN lost or spread" if wrong else None)
    cases.note("values NaN sums alike", None if check.same_on_all_ranks(hurt) else "ranks hold different NaNs")


def uneven_frames(session: Session, cases: Cases) -> None:
    """Ranks whose frames have nothing dynamic beside ranks whose frames are all dynamic."""
    random = torch.Generator().manual_seed(dist.get_rank())
    noise = torch.randint(0, 256, (4, 8192), dtype=torch.uint8, generator=random).view(torch.bfloat16)
    rows = [torch.zeros_like(noise), values(noise.shape, seed=7), noise, torch.ones_like(noise)][dist.get_rank()]
    rows[1, :5] = noise[1, :5]
    out = torch.empty_like(rows)
    session.all_to_all(out, rows)
    cases.note("uneven all_to_all", check.differences(out, check.moved(Collective.ALL_TO_ALL, out, rows)))
    want = check.moved(Collective.ALL_GATHER, torch.empty(4 * rows.numel(), dtype=rows.dtype), rows)
    cases.note("uneven all_gather", check.differences(gathered(session, rows), want))
    nothing = torch.empty((4, 0), dtype=torch.bfloat16)
    session.all_to_all(torch.empty_like(nothing), nothing)
    calm = torch.zeros(4096, dtype=torch.bfloat16)
    session.all_gather(torch.empty(4 * 4096, dtype=torch.bfloat16), calm)
    cases.note("uneven zeros compress", None if session.last.ratio > 1.2 else f"ratio {session.last.ratio}")


def every_dtype(session: Session, cases: Cases) -> None:
    """Movement of any dtype, also of those that gloo refuses, and 0-dim all-gather."""
    random = torch.Generator().manual_seed(dist.get_rank())
    for dtype in ALL_DTYPES:
        raw = torch.randint(0, 2 if dtype is torch.bool else 256, (12 * dtype.itemsize,), generator=random)
        given = raw.to(torch.uint8).view(dtype)
        want = check.moved(Collective.ALL_GATHER, torch.empty(48, dtype=dtype), given)
        cases.note(f"dtype all_gather {dtype}", check.differences(gathered(session, given), want))
        out = torch.empty_like(given)
        session.all_to_all(out, given)
        cases.note(f"dtype all_to_all {dtype}", check.differences(out, check.moved(Collective.ALL_TO_ALL, out, given)))
    scalar = torch.tensor(1.5 + dist.get_rank()).bfloat16()
    want = torch.tensor([1.5, 2.5, 3.5, 4.5]).bfloat16()
    cases.note("dtype 0-dim", check.differences(gathered(session, scalar), want))
    turned = torch.complex(values(8).float(), values(8, seed=1).float()).conj()
    want = check.moved(Collective.ALL_GATHER, torch.empty(32, dtype=torch.complex64), turned)
    cases.note("dtype lazily conjugated", check.differences(gathered(session, turned), want))
    try:
        session.all_reduce(torch.ones(4, dtype=torch.int16))
        cases.note("dtype int16 sum", "not refused")
    except ConfigError as error:
        cases.note("dtype int16 sum", None if "gloo cannot sum int16" in str(error) else str(error))


def pinned_order(cases: Cases) -> None:
    """FP32 values whose sum depends on the order: rank order gives 1."""
    session = init(zipped_plan("fp32"), adaptive=False)
    mine = torch.full((1024,), (1e8, 1.0, -1e8, 1.0)[dist.get_rank()])
    want = torch.ones(1024)
    part = torch.empty(256)
    session.reduce_scatter(part, mine)
    cases.note("order reduce_scatter", check.differences(part, want[:256]))
    session.all_reduce(mine)
    cases.note("order all_reduce", check.differences(mine, want))


def not_covered(session: Session, cases: Cases) -> None:
    """No table, no plan, switched off: native, counted with the reason. Wrong sizes: refused."""
    session.fallbacks.clear()
    gathered(session, torch.arange(5))
    rows = session.fallback_rows()
    want = [
        {
            "collective": "all_gather",
            "dtype": "int64",
            "reason": "the plan has no table for all_gather of int64",
            "calls": 1,
        }
    ]
    cases.note("fallback no table", None if rows == want else str(rows))
    os.environ["ZIPPLAN_DISABLE"] = "1"
    for name, plan, reason in (("off", zipped_plan(), "ZIPPLAN_DISABLE is on"), ("no plan", None, "no plan")):
        other = init(plan)
        given = values(512, seed=8)
        found, expected = given.clone(), given.clone()
        other.all_reduce(found)
        dist.all_reduce(expected)
        reasons = [row["reason"] for row in other.fallback_rows()]
        same = check.differences(found, expected)
        cases.note(f"fallback {name}", same or (None if reasons == [reason] else str(reasons)))
        os.environ.pop("ZIPPLAN_DISABLE", None)
    try:
        session.all_gather(torch.empty(7, dtype=torch.bfloat16), torch.empty(2, dtype=torch.bfloat16))
        cases.note("sizes refused", "not refused")
    except ConfigError as error:
        cases.note("sizes refused", None if "output = ranks × input" in str(error) else str(error))


if __name__ == "__main__":
    main()
