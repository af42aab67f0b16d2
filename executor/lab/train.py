"""A small transformer learns to write English, byte by byte, three ways: step times and losses, raw and planned.

    torchrun --nproc-per-node 2 -m zipplan.executor.lab.train [STEPS [BYTES_PER_SECOND]]

The text is the language reference that Python carries for `help()` (module pydoc_data.topics, Python's own licence).
Raw and planned models start alike, see the same text and step by turns; times are medians, of the slowest rank.
DDP is also compared with gradients summed in FP32; FSDP2 and mixture of experts only move data, so their losses must be
the same bits. Rank 0 prints one JSON document.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pydoc_data.topics import topics
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from zipplan.executor.hooks import ddp, fsdp
from zipplan.executor.hooks.moe import Routing
from zipplan.executor.measure import SIGMA
from zipplan.executor.session import Session
from zipplan.executor.start import init
from zipplan.planner.make import make_plan
from zipplan.planner.plan import Plan
from zipplan.planner.profiles import parse_profile
from zipplan.planner.schedule import Collective
from zipplan.planner.settings import Settings
from zipplan.planner.topology import build_cluster, load_machine

WIDTH, LAYERS, CONTEXT, BATCH = 256, 4, 64, 2
_SIZES = (64 << 10, 1 << 20, 8 << 20)  # of the plan
_RATE = 25_000_000  # bytes/s of a link, where none is named: what `make lab` uses

Step = Callable[[int], float]


@dataclass(frozen=True)
class Row:
    """One way to train. `errors`: largest relative distance of a loss from the FP32 reference, raw and planned."""

    way: str
    hosts: int
    steps: int
    raw_ms: float
    planned_ms: float
    ratio: float
    first_loss: float
    last_loss: float
    same_bits: bool
    errors: tuple[float, float] | None


class Block(nn.Module):
    """Attention and MLP; `experts`: what takes the MLP's place."""

    def __init__(self, experts: nn.Module | None = None) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = experts or nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, context, WIDTH) → the same."""
        q, k, v = (t.unflatten(-1, (4, -1)).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, dim=-1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        out: Tensor = x + self.mlp(self.norm2(x))
        return out


class Experts(nn.Module):
    """One expert on each rank; a token goes where its router says."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session
        self.router = nn.Linear(WIDTH, session.ranks)
        self.expert = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        """(…, WIDTH) → the same."""
        tokens = x.flatten(0, -2)
        weight, target = self.router(tokens).softmax(-1).max(-1)
        order = target.argsort(stable=True)
        routing = Routing(self.session, torch.bincount(target, minlength=self.session.ranks))
        back = routing.combine(self.expert(routing.dispatch(tokens[order])))
        return (torch.empty_like(back).index_copy(0, order, back) * weight[:, None]).view_as(x)


class Head(nn.Linear):
    """Scores of the next byte, in FP32."""

    def forward(self, x: Tensor) -> Tensor:
        """(…, WIDTH) → (…, 256)."""
        return super().forward(x).float()


def model(session: Session | None = None) -> nn.Sequential:
    """Alike on all ranks at the start."""
    torch.manual_seed(0)
    blocks = [Block(Experts(session) if session is not None else None) for _ in range(LAYERS)]
    return nn.Sequential(nn.Embedding(256, WIDTH), *blocks, nn.RMSNorm(WIDTH), Head(WIDTH, 256))


def stepper(net: nn.Module, text: Tensor, before_update: Callable[[], None] = lambda: None) -> Step:
    """A function that takes the n-th step and returns its loss; every rank reads other parts of the text."""
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)

    def step(number: int) -> float:
        random = torch.Generator().manual_seed(number * dist.get_world_size() + dist.get_rank())
        starts = torch.randint(len(text) - CONTEXT - 1, (BATCH,), generator=random).tolist()
        batch = torch.stack([text[i : i + CONTEXT + 1] for i in starts])
        loss = F.cross_entropy(net(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        before_update()
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.detach())

    return step


def data_parallel(text: Tensor, session: Session | None, hook: Any = None) -> Step:
    """DDP in bf16."""
    net = DistributedDataParallel(model().bfloat16())
    if session is not None:
        ddp.install(net, session)
    elif hook is not None:
        net.register_comm_hook(None, hook)
    return stepper(net, text)


def summed_in_fp32(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:  # type: ignore[name-defined]
    """A DDP hook: the reference for sums of gradients, rounded once."""
    buffer = bucket.buffer()
    total = buffer.float()
    dist.all_reduce(total)
    done: torch.futures.Future[Tensor] = torch.futures.Future()
    done.set_result(buffer.copy_(total.div_(dist.get_world_size())))
    return done


# DDP reads the annotations, as types.
summed_in_fp32.__annotations__ |= {
    "bucket": dist.GradBucket,  # type: ignore[attr-defined]
    "return": torch.futures.Future[Tensor],
}


def sharded(text: Tensor, session: Session | None) -> Step:
    """FSDP2: bf16 parameters gathered, by the session's plan if there is one; gradients summed natively in FP32."""
    net = model()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for part in [*list(net)[1 : 1 + LAYERS], net]:
        fully_shard(part, mp_policy=policy)
    if session is not None:
        fsdp.install(net, session, reduce=False)
    return stepper(net, text)


def experts(text: Tensor, session: Session) -> Step:
    """Mixture of experts in bf16; what all ranks hold alike is averaged natively."""
    net = model(session).bfloat16()
    shared = [p for name, p in net.named_parameters() if ".expert." not in name]

    def average() -> None:
        flat = torch.cat([p.grad.flatten().float() for p in shared if p.grad is not None])
        dist.all_reduce(flat)
        at = 0
        for p in shared:
            if p.grad is not None:
                p.grad.copy_(flat[at : at + p.numel()].view_as(p) / session.ranks)
                at += p.numel()

    return stepper(net, text, average)


def compare(way: str, steps: int, session: Session, raw: Step, planned: Step, reference: Step | None = None) -> Row:
    """Let all take the same steps by turns."""
    runs = [run for run in (raw, planned, reference) if run is not None]
    times: list[list[float]] = [[] for _ in runs]
    losses: list[list[float]] = [[] for _ in runs]
    for number in range(steps):
        for run, taken, seen in zip(runs, times, losses, strict=True):
            dist.barrier()
            start = time.perf_counter()
            seen.append(run(number))
            taken.append(time.perf_counter() - start)
    slowest = torch.tensor(times, dtype=torch.float64)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    raw_s, planned_s = (statistics.median(row[1:]) for row in slowest.tolist()[:2])  # the first step also allocates
    apart = [0.0, 0.0]
    if reference is not None:
        true = losses[2]
        apart = [max(abs(a / b - 1) for a, b in zip(seen, true, strict=True)) for seen in losses[:2]]
    differ = [float(x.hex() != y.hex()) for x, y in zip(losses[0], losses[1], strict=True)]
    worst = torch.tensor([max(differ), *apart], dtype=torch.float64)
    dist.all_reduce(worst, op=dist.ReduceOp.MAX)
    zipped = [row for row in session.report()["used"] if row["ratio"] > 1]
    ratio = max(zipped, key=lambda row: row["bytes"])["ratio"] if zipped else 1.0
    return Row(
        way, session.ranks, steps, raw_s * 1e3, planned_s * 1e3, ratio, losses[1][0], losses[1][-1],
        not worst[0], (float(worst[1]), float(worst[2])) if reference is not None else None,
    )  # fmt: skip


def lab_plan(ranks: int, rate: int) -> Plan:
    """For `ranks` hosts with links of `rate` bytes/s."""
    settings = Settings((("link.nic.bandwidth", f"{rate / 1e6:g}MB/s"),))
    cluster = build_cluster(settings.machine(load_machine("lab")), nodes=ranks, ranks_per_node=1)
    profile = parse_profile(f"gaussian:{SIGMA}")
    wanted = (Collective.ALL_GATHER, Collective.ALL_REDUCE, Collective.ALL_TO_ALL)
    return make_plan(cluster, wanted, _SIZES, "bf16", profile, settings=settings)


def main(steps: int, rate: int) -> None:
    """Train all three ways."""
    dist.init_process_group("gloo")
    text = torch.frombuffer(bytearray("\n".join(topics.values()).encode()), dtype=torch.uint8).long()
    plan = lab_plan(dist.get_world_size(), rate)

    def planned() -> Session:
        return init(plan, ranks_per_node=1)

    sessions = planned(), planned(), planned()
    rows = [
        compare(
            "DDP", steps, sessions[0], data_parallel(text, None), data_parallel(text, sessions[0]),
            data_parallel(text, None, summed_in_fp32),
        ),
        compare("FSDP2", steps, sessions[1], sharded(text, None), sharded(text, sessions[1])),
        compare("MoE", steps, sessions[2], experts(text, init(None)), experts(text, sessions[2])),
    ]  # fmt: skip
    if dist.get_rank() == 0:
        print(json.dumps([asdict(row) for row in rows]), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*(int(word) for word in (sys.argv[1:] + ["10", str(_RATE)][len(sys.argv) - 1 :])))
