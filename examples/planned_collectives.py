"""Plan for this machine, then run collectives that follow the plan, with compressed bytes on the wire.

zipplan plan --topology loopback --size 1M,16M -o plan.json
torchrun --nproc-per-node 4 examples/planned_collectives.py plan.json
"""

import sys

import torch
import torch.distributed as dist

from zipplan import executor


def main(plan: str) -> None:
    """Gather shards of a weight, sum gradients, show what happened."""
    dist.init_process_group("gloo")
    session = executor.init(plan)  # every rank must hold the same plan; raises alike on all when one does not

    shard = 0.02 * torch.randn(2 << 20).bfloat16()
    weight = torch.empty(session.ranks * shard.numel(), dtype=torch.bfloat16)
    session.all_gather(weight, shard)

    # The same bytes as the native call returns:
    parts = [torch.empty_like(shard) for _ in range(session.ranks)]
    dist.all_gather(parts, shard)
    assert torch.equal(weight.view(torch.uint8), torch.cat(parts).view(torch.uint8))

    # Sums made by zipplan: FP32, in rank order, rounded once, equal on all ranks.
    gradient = 0.02 * torch.randn(1000, 4096).bfloat16()
    session.all_reduce(gradient)

    counts = torch.tensor([dist.get_rank()])  # the plan says nothing about int64: native, counted, reported
    session.all_reduce(counts)

    if dist.get_rank() == 0:
        report = session.report()
        for used in report["used"]:
            print("{collective} of {dtype}: {schedule}, ratio {ratio:.2f}, {wire_bytes} bytes sent".format(**used))
        for fallback in report["fallbacks"]:
            print("{collective} of {dtype} ran natively: {reason}".format(**fallback))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
