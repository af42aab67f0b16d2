"""The other systems' results: DietGPU in ZipCCL's place, UCCL-Zip's split-send, CIERA's reuse of exponents."""

from __future__ import annotations

from functools import cache

from zipplan.planner.contention import Cost
from zipplan.planner.profiles import parse_profile
from zipplan.planner.reproduce.systems import dietgpu, systems, uccl_decode, uccl_encode
from zipplan.planner.reproduce.zipccl import A6000, cluster_of, cost_of
from zipplan.planner.schedule import Collective
from zipplan.planner.search import Search
from zipplan.planner.topology.catalogue import gpu_facts
from zipplan.planner.units import parse_bandwidth
from zipplan.planner.workload import Call, StepTime, build_step, load_workload, run_step
from zipplan.planner.workload.model import Workload

H200 = "hgx-h200"


def dietgpu_call(nodes: int, call: Call) -> Cost:
    """A collective with DietGPU around it: encode and decode call by call, one for each peer's chunk (Fig. 4)."""
    speed = gpu_facts("A6000").hbm_bandwidth / gpu_facts("A100").hbm_bandwidth
    ranks, chunk = call.grid.ranks, call.size / call.grid.ranks
    encodes = ranks if call.collective is Collective.ALL_TO_ALL else 1
    codec = encodes * dietgpu("encode", chunk, speed) + ranks * dietgpu("decode", chunk, speed)
    small = Call(
        call.what, call.collective, round(call.size / systems()["dietgpu"]["ratio"]), call.dtype, call.profile,
        call.grid, call.late, call.load,
    )  # fmt: skip
    wire = cost_of(A6000, nodes, small, "native")
    whole = wire.ps + round(codec)
    return Cost(whole, round(codec), wire.taken * wire.ps / whole)


@cache
def dietgpu_step(workload: str, nodes: int) -> StepTime:
    """A step with DietGPU around its all-to-alls."""

    def cost(call: Call) -> Cost:
        zipped = call.collective is Collective.ALL_TO_ALL
        return dietgpu_call(nodes, call) if zipped else cost_of(A6000, nodes, call, "native")

    return run_step(build_step(load_workload(workload), cluster_of(A6000, nodes)), cost)


@cache
def _search(nodes: int, ranks_per_node: int) -> Search:
    cluster = cluster_of(H200, nodes, ranks_per_node)
    return Search(cluster, Collective.ALL_TO_ALL, "bf16", parse_profile("gaussian"), "raw")


def send(size: float, nvlink: bool = False) -> int:
    """ps of a message between two H200, over the network or over NVLink: half of an all-to-all of two ranks."""
    search = _search(1, 2) if nvlink else _search(2, 1)
    return search.run(search.schedules[0], round(2 * size)).time


def compress_then_send(size: float, nvlink: bool = False) -> float:
    """ps of encode, send, decode one after the other."""
    return uccl_encode(size) + send(size / systems()["uccl_zip"]["ratio"], nvlink) + uccl_decode(size)


def split_send(size: float, nvlink: bool = False) -> float:
    """ps when sign and mantissa, half of bf16, leave after the first step, while the exponents are still encoded."""
    row = systems()["uccl_zip"]
    first = float(row["first_part"]) * uccl_encode(size)
    half = max(send(size / 2, nvlink), uccl_encode(size) - first)
    return first + half + send(size * (1 / float(row["ratio"]) - 0.5), nvlink) + uccl_decode(size)


def ciera(workload: str, nodes: int) -> float:
    """Step time of ZeRO-3 over that with reused exponents: 4 layers on A100 nodes, ranks of a node share one slow NIC.

    Only bytes count: gathers carry half of every reused block. Reuse is the middle of the published range.
    """
    row = systems()["ciera"]
    reused = sum(row["reused"]) / 2
    full = load_workload(workload).model_dump(by_alias=True)
    full["model"]["layers"] = 4
    full["parallel"].update(data="fsdp", expert=1, pipeline=1)
    full["batch"].update(sequence=1024, micro_batches=1)
    full["precision"]["gradients"] = "bf16"
    cut = Workload.model_validate(full)
    step = build_step(cut, cluster_of("hgx-a100", nodes))
    rate = parse_bandwidth(row["network"])  # into one rank, effective

    def time(share: float) -> int:
        def of(call: Call) -> Cost:
            kept = share if call.collective is Collective.ALL_GATHER else 1.0
            return Cost(round(call.size * (1 - 1 / call.grid.ranks) * kept / rate * 1e12))

        return run_step(step, of).time

    return time(1.0) / time(1 - reused / 2)
