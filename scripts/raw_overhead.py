"""What zipplan costs where it chooses raw: native calls and session calls by turns, paired.

torchrun --nproc-per-node 2 scripts/raw_overhead.py [bytes, default 1048576] [pairs, default 300]
"""

import statistics
import sys
import time

import torch
import torch.distributed as dist

from zipplan import executor


def main(size: int, pairs: int) -> None:
    """Print per collective: median native time, median of the paired differences of the slowest rank, in percent."""
    dist.init_process_group("gloo")
    session = executor.init(None)  # no plan: everything runs natively
    group = dist.new_group()  # neither side's threads and sockets are warm from the barriers, which run on another
    ranks, elements = dist.get_world_size(), size // 2
    whole = torch.randn(elements).bfloat16()
    part, other = whole[: elements // ranks].clone(), torch.empty_like(whole)
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    cases = {
        "all_reduce": (lambda: dist.all_reduce(other, group=group), lambda: session.all_reduce(other)),
        "reduce_scatter": (lambda: scatter(part, whole, group=group), lambda: session.reduce_scatter(part, whole)),
        "all_gather": (lambda: gather(other, part, group=group), lambda: session.all_gather(other, part)),
        "all_to_all": (
            lambda: dist.all_to_all_single(other, whole, group=group),
            lambda: session.all_to_all(other, whole),
        ),
    }
    for name, calls in cases.items():
        times: list[tuple[float, float]] = []
        for turn in range(pairs):
            took = [0.0, 0.0]
            for which in (0, 1) if turn % 2 else (1, 0):
                other.zero_()
                dist.barrier()
                begin = time.perf_counter()
                calls[which]()
                took[which] = time.perf_counter() - begin
            times.append((took[0], took[1]))
        slowest = torch.tensor(times, dtype=torch.float64)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        native = statistics.median(slowest[:, 0].tolist())
        extra = statistics.median((slowest[:, 1] - slowest[:, 0]).tolist())
        if dist.get_rank() == 0:
            print(f"{name:15} native {native * 1e6:8.0f} µs, zipplan {extra * 1e6:+6.0f} µs ({extra / native:+.1%})")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*(int(word) for word in (sys.argv[1:] + ["1048576", "300"][len(sys.argv) - 1 :])))
