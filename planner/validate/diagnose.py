"""Why a number is not normal: the usual defects, simulated; the one that comes closest is named."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from zipplan.planner.errors import ZipplanError
from zipplan.planner.topology import Cluster, Machine, build_cluster
from zipplan.planner.validate.compare import LARGE, Row, predict
from zipplan.planner.validate.points import Table

NORMAL, NORMAL_LARGE = 0.25, 0.10
"""A point this far from the prediction may be normal, the second from 256 MiB: more than 9 of 10 published points are
nearer (docs/validation.md)."""
EXPLAINS = 0.35
HOST_SHARE = 0.2
"""Share of the link rate through host memory: 2-4 GB/s bus bandwidth on 8 GPUs without peer-to-peer, PCIe 4.0,
https://github.com/tinygrad/open-gpu-kernel-modules"""
CROSS_RAIL = 20.1 / 43.7
"""Rate across rails over rate on a rail: 20.1 and 43.7 GB/s, 2 nodes with EFA,
https://github.com/uccl-project/uccl/blob/HEAD/ep/bench/alltoall/efa_alltoall_results.md"""


@dataclass(frozen=True, slots=True)
class Defect:
    """A machine with something wrong. `advice`: what to look at."""

    name: str
    advice: str
    change: Callable[[Machine], Machine | None]
    across: bool = False  # only seen between nodes


@dataclass(frozen=True, slots=True)
class Cause:
    """A defect and how far its simulation is from the slow points: median of |simulated / measured − 1|."""

    defect: Defect
    distance: float


def _no_nvlink(machine: Machine) -> Machine | None:
    fast = ("nvlink", "xgmi")
    if machine.gpu is None or not any(row.kind in fast for node in machine.node for row in node.link):
        return None
    nodes = (
        node.model_copy(update={"p2p": False, "link": tuple(row for row in node.link if row.kind not in fast)})
        for node in machine.node
    )
    changed = machine.transport.model_copy(update={"nvls": False, "efficiency_intra": HOST_SHARE})
    return machine.model_copy(update={"node": tuple(nodes), "transport": changed})


def _no_peers(machine: Machine) -> Machine | None:
    if machine.gpu is None or not all(machine.peer_to_peer(node) for node in machine.node):
        return None
    if any(row.kind in ("nvlink", "xgmi") for node in machine.node for row in node.link):
        return None
    nodes = tuple(node.model_copy(update={"p2p": False}) for node in machine.node)
    changed = machine.transport.model_copy(update={"efficiency_intra": HOST_SHARE})
    return machine.model_copy(update={"node": nodes, "transport": changed})


def _no_nvls(machine: Machine) -> Machine | None:
    if not machine.full_transport().nvls:
        return None
    return machine.model_copy(update={"transport": machine.transport.model_copy(update={"nvls": False})})


def _nics(keep: Callable[[int], int]) -> Callable[[Machine], Machine | None]:
    def change(machine: Machine) -> Machine | None:
        cluster = build_cluster(machine, nodes=1)
        names = list(cluster.templates[0].nics)
        kept = set(names[: keep(len(names))])
        if not kept or len(kept) == len(names):
            return None
        nodes = []
        for node in machine.node:
            rows = []
            for port in node.nic:
                for name in _expanded(port.name, node.ranks):
                    used = port.use and name in kept
                    why = port.why if used else "does not take part"
                    rows.append(port.model_copy(update={"name": name, "use": used, "why": why}))
            nodes.append(node.model_copy(update={"nic": tuple(rows)}))
        return machine.model_copy(update={"node": tuple(nodes)})

    return change


def _expanded(name: str, ranks: int) -> list[str]:
    from zipplan.planner.topology.model import expand

    return expand(name, ranks)


def _cross_rail(machine: Machine) -> Machine | None:
    if machine.fabric.kind != "rail":
        return None
    return machine.model_copy(
        update={
            "node": tuple(
                node.model_copy(
                    update={
                        "nic": tuple(
                            port.model_copy(update={"bandwidth": round(port.bandwidth * CROSS_RAIL)})
                            for port in node.nic
                        )
                    }
                )
                for node in machine.node
            )
        }
    )


DEFECTS = (
    Defect(
        "NVLS off",
        "NVLink SHARP does not take part: look for 'NVLS multicast support' in NCCL_DEBUG=INFO, NCCL_NVLS_ENABLE, the "
        "fabric manager",
        _no_nvls,
    ),
    Defect(
        "NVLink off, through host memory",
        "GPUs do not reach each other: NCCL_P2P_DISABLE, `nvidia-smi nvlink -s`, a container without the devices",
        _no_nvlink,
    ),
    Defect(
        "peer-to-peer off, through host memory",
        "GPUs do not reach each other over PCIe: NCCL_P2P_DISABLE, NCCL_P2P_LEVEL, IOMMU and ACS",
        _no_peers,
    ),
    Defect(
        "one NIC missing",
        "a port is down or left out: `ibstat`, NCCL_IB_HCA, 'NET/IB : Using' in NCCL_DEBUG=INFO",
        _nics(lambda count: count - 1),
        across=True,
    ),
    Defect("half of the NICs", "NCCL_IB_HCA names only half, or a PCIe switch is down", _nics(lambda n: n // 2), True),
    Defect("one NIC only", "NCCL_IB_HCA or NCCL_SOCKET_IFNAME names a single one", _nics(lambda count: 1), across=True),
    Defect(
        "wrong rail",
        "traffic crosses rails: NIC order differs between nodes, NCCL_CROSS_NIC, NCCL_TOPO_FILE missing in a VM",
        _cross_rail,
        across=True,
    ),
)


def verdict(row: Row) -> str:
    """'normal', 'slow' or 'fast'."""
    gap, limit = row.measured_us / row.simulated_us, 1 + (NORMAL_LARGE if row.size >= LARGE else NORMAL)
    return "slow" if gap > limit else "fast" if gap < 1 / limit else "normal"


def slow_points(rows: Sequence[Row]) -> list[Row]:
    """Points that take longer than a healthy machine may need."""
    return [row for row in rows if verdict(row) == "slow"]


def causes(table: Table, machine: Machine, cluster: Cluster, rows: Sequence[Row]) -> list[Cause]:
    """Defects whose simulation comes nearer to the slow points than the healthy machine, nearest first."""
    slow = {row.size for row in slow_points(rows)}
    if not slow:
        return []
    healthy = _distance(rows, slow)
    found = []
    for defect in DEFECTS:
        if defect.across and table.nodes == 1:
            continue
        try:
            changed = defect.change(machine)
            if changed is None:
                continue
            worse = build_cluster(changed, nodes=table.nodes, ranks_per_node=cluster.ranks_per_node)
            distance = _distance(predict(table, worse), slow)
        except ZipplanError:
            continue  # this machine cannot have that defect: nothing would be left to talk over
        if distance < healthy:
            found.append(Cause(defect, distance))
    return sorted(found, key=lambda cause: cause.distance)


def _distance(rows: Sequence[Row], sizes: set[int]) -> float:
    return float(np.median([abs(row.error) for row in rows if row.size in sizes]))
