"""A program that knows nothing of zipplan but its name: DDP on the process group `zipplan`.

zipplan plan --topology lab --nodes 4 --size 64K,4M -o plan.json
ZIPPLAN_PLAN=plan.json ZIPPLAN_LOG=info torchrun --nproc-per-node 4 examples/train_unchanged.py
"""

import torch
import torch.distributed as dist
from torch import nn

import zipplan.executor.process_group  # noqa: F401 (makes the name known)


def main() -> None:
    """Train a little; with ZIPPLAN_LOG=info rank 0 reports at the end."""
    dist.init_process_group("cpu:zipplan,cuda:zipplan")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(512, 1024), nn.GELU(), nn.Linear(1024, 512)).to(torch.bfloat16)
    model = nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for step in range(4):
        batch = torch.randn((16, 512), generator=generator).bfloat16()
        loss = (model(batch) - batch).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach().clone()
        dist.all_reduce(mean, op=dist.ReduceOp.AVG)
        if dist.get_rank() == 0:
            print(f"step {step}: loss {float(mean):.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
