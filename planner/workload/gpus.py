"""How fast GPUs compute: peak and the share of it that training reaches, from topologies/workloads/_gpus.toml."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources
from typing import Any

from zipplan.planner.errors import ConfigError
from zipplan.planner.topology import Cluster
from zipplan.planner.workload.load import FOLDER
from zipplan.planner.workload.model import Workload


@cache
def gpus() -> dict[str, dict[str, Any]]:
    """By catalogue name: peak (dense bf16 operations per second), utilisation, source."""
    text = resources.files(FOLDER).joinpath("_gpus.toml").read_text("utf-8")
    rows: dict[str, dict[str, Any]] = tomllib.loads(text)["gpu"]
    return rows


def operations_per_second(workload: Workload, cluster: Cluster) -> float:
    """Peak × utilisation, the workload's own numbers first. Raises ConfigError when the GPU is not known."""
    compute = workload.compute
    row = gpus().get(cluster.gpu.model) if cluster.gpu is not None else None
    peak = compute.peak or (row and row["peak"])
    utilisation = compute.utilisation or (row and row["utilisation"])
    if not peak or not utilisation:
        what = cluster.gpu.model if cluster.gpu is not None else "a machine without GPU"
        raise ConfigError(
            f"workload {workload.name}: the compute speed of {what} ({cluster.machine.name}) is not known; set "
            "micro_batch_time, or peak and utilisation, in [compute]"
        )
    return float(peak) * float(utilisation)
