"""The bench on ranks whose environment differs: RANK=… NAME=VALUE as given on the command line, before --."""

from __future__ import annotations

import os
import sys

from zipplan.executor.bench import main

cut = sys.argv.index("--")
for word in sys.argv[1:cut]:
    rank, _, setting = word.partition(":")
    if rank == os.environ["RANK"]:
        name, _, value = setting.partition("=")
        os.environ[name] = value
sys.argv = ["bench", *sys.argv[cut + 1 :]]
main()
