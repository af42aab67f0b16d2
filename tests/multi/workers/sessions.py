"""Runs the cases of calls, promises, training_hooks, shards and use, each group in a launch of its own."""

from __future__ import annotations

import json
import sys

import calls
import promises
import shards
import torch._dynamo  # noqa: F401  # FSDP2 loads it at first use; so once, not in every rank
import training_hooks
import use
from common import RANKS, Found
from forked import launch

CASES = (
    *(calls.splits, calls.groups, calls.operations, calls.pieces, calls.handles),
    *(promises.steady, promises.checks, promises.adaptive),
    *(training_hooks.fsdp, training_hooks.ddp, training_hooks.moe, training_hooks.pipeline),
    *(shards.shards, shards.buckets, shards.order),
    *(use.threads, use.lies, use.compiled, use.many),
)
OTHERS = {shards.shards: 8, use.compiled: 2}  # ranks, where not RANKS


def main(names: list[str]) -> None:
    """Run each group of cases in a launch of its own; print group → case → problem."""
    out = {}
    for case in CASES:
        if names and case.__name__ not in names:
            continue
        ended = launch(case, OTHERS.get(case, RANKS), limit_s=60)
        joined: Found = {}
        for rank, end in enumerate(ended):
            said = end.said if isinstance(end.said, dict) and end.code == 0 else {f"rank {rank} ended": str(end)}
            for name, problem in said.items():
                joined[name] = joined.get(name) or (f"rank {rank}: {problem}" if problem else None)
        out[case.__name__] = joined
    json.dump(out, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1:])
