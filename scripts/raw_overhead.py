"""What zipplan costs where it chooses raw: torch's own call and the session's by turns, over several launches.

python scripts/raw_overhead.py [launches, default 9] [bytes, default 1048576] [pairs, default 300]

Two ranks, gloo. Per collective: median time of torch's own call, and the ratio of the medians of one launch, in the
median launch, with the 95 % interval that a bootstrap of the launches gives: where a launch puts code and tensors in
memory decides more than a call's own work, so launches are the sample, not calls. `twin` is torch's own call a second
time: what this machine can tell apart.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np
import torch
import torch.distributed as dist

from zipplan import executor

_LIMIT_S = 300.0  # of one launch


def launch(size: int, pairs: int) -> dict[str, list[float]]:
    """One launch: per collective the medians in seconds of torch's own call, the same again, and the session's."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*command, __file__, str(size), str(pairs)], check=True, timeout=_LIMIT_S, stdout=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    medians: dict[str, list[float]] = json.loads(done.stdout)
    return medians


def worker(size: int, pairs: int) -> None:
    """One rank of a launch; a time is that of the slowest rank."""
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
    medians = {}
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
        medians[name] = np.median(times, axis=0).tolist()
    if dist.get_rank() == 0:
        print(json.dumps(medians), flush=True)
    session.close()
    dist.destroy_process_group()


def over(ratios: np.ndarray) -> str:
    """The median ratio − 1 in percent, with its interval."""
    drawn = np.random.default_rng(0).integers(len(ratios), size=(2000, len(ratios)))
    low, high = np.percentile(np.median(ratios[drawn], axis=1), (2.5, 97.5))
    return f"{np.median(ratios) - 1:+.1%} [{low - 1:+.1%}, {high - 1:+.1%}]"


def main(launches: int = 9, size: int = 1 << 20, pairs: int = 300) -> None:
    """Launch, and print a table."""
    seen = [launch(size, pairs) for _ in range(launches)]
    print("| collective | torch's own | zipplan | twin |\n|---|---|---|---|")
    for name in seen[0]:
        own, twin, ours = np.array([run[name] for run in seen]).T
        print(f"| {name} | {np.median(own) * 1e6:.0f} µs | {over(ours / own)} | {over(twin / own)} |")


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[1:]]
    if "RANK" in os.environ:
        worker(*numbers)
    else:
        main(*numbers)
