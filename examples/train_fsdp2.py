"""FSDP2: parameters gathered as compressed bytes, losses bit-identical to those without.

zipplan plan --topology lab --nodes 4 --size 64K,4M -o plan.json
torchrun --nproc-per-node 4 examples/train_fsdp2.py plan.json
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from zipplan import executor
from zipplan.executor.hooks import fsdp


def model() -> nn.Module:
    """Equal on all ranks; bf16 parameters travel, FP32 ones are updated."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(512, 1024), nn.GELU(), nn.Linear(1024, 512))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in (net[0], net[2]):
        fully_shard(layer, mp_policy=policy)
    return fully_shard(net, mp_policy=policy)


def train(net: nn.Module) -> list[str]:
    """Four steps; losses to the last bit."""
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(dist.get_rank())
    losses = []
    for _ in range(4):
        batch = torch.randn((16, 512), generator=generator)
        loss = (net(batch).float() - batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()).hex())
    return losses


def main(plan: str) -> None:
    """Train twice, compare, report."""
    dist.init_process_group("gloo")
    session = executor.init(plan)
    plain, planned = model(), model()
    done = fsdp.install(planned, session, reduce=False)  # reduce=True: gradients too, summed in FP32 in rank order
    same = train(plain) == train(planned)
    if dist.get_rank() == 0:
        print(done)
        print("losses bit-identical:", "yes" if same else "NO")
        for row in session.report()["used"]:
            print("{collective} of {dtype} {kind}: {schedule}, {calls} calls, ratio {ratio:.2f}".format(**row))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
