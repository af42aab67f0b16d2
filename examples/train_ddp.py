"""DDP with a communication hook: gradients reduced by a plan.

zipplan plan --topology lab --nodes 4 --size 64K,4M -o plan.json
torchrun --nproc-per-node 4 examples/train_ddp.py plan.json
"""

import sys

import torch
import torch.distributed as dist
from torch import nn

from zipplan import executor
from zipplan.executor.hooks import ddp


def main(plan: str) -> None:
    """Four steps; then every rank must hold the same parameters."""
    dist.init_process_group("gloo")
    session = executor.init(plan)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(512, 1024), nn.GELU(), nn.Linear(1024, 512)).to(torch.bfloat16)
    model = nn.parallel.DistributedDataParallel(net)
    ddp.install(model, session)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(4):
        batch = torch.randn((16, 512), generator=generator).bfloat16()
        (model(batch) - batch).float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    mine = torch.cat([p.detach().flatten() for p in net.parameters()])
    everyone = [torch.empty_like(mine) for _ in range(session.ranks)]
    dist.all_gather(everyone, mine)
    if dist.get_rank() == 0:
        equal = all(torch.equal(other.view(torch.uint8), mine.view(torch.uint8)) for other in everyone)
        print("parameters equal on all ranks:", "yes" if equal else "NO")
        for row in session.report()["used"]:
            print("{collective} of {dtype} {kind}: {schedule}, {calls} calls, ratio {ratio:.2f}".format(**row))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
