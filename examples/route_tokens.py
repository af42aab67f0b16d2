"""Mixture of experts: tokens to their experts and back, compressed, each pair of ranks by its own size.

zipplan plan --topology lab --nodes 4 --size 64K,4M -o plan.json
torchrun --nproc-per-node 4 examples/route_tokens.py plan.json
"""

import sys

import torch
import torch.distributed as dist

from zipplan import executor
from zipplan.executor.hooks.moe import Routing


def main(plan: str) -> None:
    """One expert per rank; rank 2's gets no token at all."""
    dist.init_process_group("gloo")
    session = executor.init(plan)
    rank, ranks = dist.get_rank(), session.ranks
    torch.manual_seed(rank)
    tokens = torch.randn((2048, 256)).bfloat16().requires_grad_()
    destination = torch.randint(0, ranks, (2048,))
    destination[destination == 2] = 0
    order = destination.argsort(stable=True)
    send = torch.bincount(destination, minlength=ranks)

    routing = Routing(session, send)
    arrived = routing.dispatch(tokens[order])
    expert = torch.nn.Linear(256, 256).bfloat16()
    back = routing.combine(expert(arrived))
    outputs = torch.empty_like(back).index_copy(0, order, back)
    outputs.float().square().mean().backward()

    print(f"rank {rank}: {len(arrived)} tokens arrived, gradient of {tuple(tokens.grad.shape)}", flush=True)
    dist.barrier()
    if rank == 0:
        for row in session.report()["used"]:
            print("{collective} of {dtype} {kind}: {schedule}, ratio {ratio:.2f}".format(**row))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
