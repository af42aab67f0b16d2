"""The study of conftest.py on a local Dask cluster of two processes; prints the outcomes as JSON."""

from __future__ import annotations

import json

import joblib
from dask.distributed import Client, LocalCluster

from zipplan.planner.schedule import Collective
from zipplan.planner.topology import load_machine
from zipplan.planner.whatif import Case, Study, read_sweep, run

if __name__ == "__main__":
    base = Case(load_machine("lab"), Collective.ALL_GATHER, 1 << 20, nodes=4)
    sweeps = ("codec.speed=0.005x,0.01x,0.05x,1x", "size=4K,64K,1M")
    study = Study(base, tuple(read_sweep(text) for text in sweeps))
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster),
        joblib.parallel_config(backend="dask"),
    ):
        print(json.dumps([outcome.to_json() for outcome in run(study.cases())]))
