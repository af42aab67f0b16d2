"""What zipplan costs where it chooses raw: torch's own call and the session's by turns, in one run.

torchrun --nproc-per-node 2 scripts/raw_overhead.py [bytes, default 1048576] [pairs, default 400]

Per collective: median time of torch's own call, and ratio of the medians with the 95 % interval that a bootstrap of the
pairs gives. `twin` is torch's own call a second time: what this machine can tell apart.
"""

import sys
import time
from collections.abc import Callable

import numpy as np
import torch
import torch.distributed as dist

from zipplan import executor


def main(size: int, pairs: int) -> None:
    """Time all collectives; a time is that of the slowest rank."""
    dist.init_process_group("gloo")
    group = dist.new_group()  # of both sides, so that sockets and threads are the same; barriers run on another
    session = executor.init(None, group=group)  # no plan: everything runs natively
    ranks, elements = dist.get_world_size(), size // 2
    whole = torch.randn(elements).bfloat16()
    part, other = whole[: elements // ranks].clone(), torch.empty_like(whole)
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    cases: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "all_reduce": (lambda: dist.all_reduce(other, group=group), lambda: session.all_reduce(other)),
        "reduce_scatter": (lambda: scatter(part, whole, group=group), lambda: session.reduce_scatter(part, whole)),
        "all_gather": (lambda: gather(other, part, group=group), lambda: session.all_gather(other, part)),
        "all_to_all": (
            lambda: dist.all_to_all_single(other, whole, group=group),
            lambda: session.all_to_all(other, whole),
        ),
    }
    order = np.random.default_rng(0)  # alike on all ranks; what ran before leaves traces in caches
    for name, (own, ours) in cases.items():
        turns = (own, own, ours)
        times = np.empty((pairs, len(turns)))
        for pair in range(pairs):
            for which in order.permutation(len(turns)):
                other.zero_()
                dist.barrier()
                begin = time.perf_counter()
                turns[which]()
                times[pair, which] = time.perf_counter() - begin
        slowest = torch.from_numpy(times)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        if dist.get_rank() == 0:
            told = (f"{what} {over(times[:, 0], times[:, at])}" for what, at in (("zipplan", 2), ("twin", 1)))
            print(f"{name:15} {np.median(times[:, 0]) * 1e6:7.0f} µs   {'   '.join(told)}", flush=True)
    session.close()
    dist.destroy_process_group()


def over(base: np.ndarray, times: np.ndarray) -> str:
    """Ratio of medians − 1 in percent, with its interval."""
    drawn = np.random.default_rng(0).integers(len(base), size=(2000, len(base)))
    ratios = np.median(times[drawn], axis=1) / np.median(base[drawn], axis=1) - 1
    low, high = np.percentile(ratios, (2.5, 97.5))
    return f"{np.median(times) / np.median(base) - 1:+.1%} [{low:+.1%}, {high:+.1%}]"


if __name__ == "__main__":
    main(*(int(word) for word in (sys.argv[1:] + ["1048576", "400"][len(sys.argv) - 1 :])))
