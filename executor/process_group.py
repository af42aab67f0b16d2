"""The process group `zipplan`: every torch.distributed call of a program follows the plan, without a change to it.

    import zipplan.executor.process_group  # registers the name; the plan is in ZIPPLAN_PLAN, or register(plan)
    torch.distributed.init_process_group("cpu:zipplan,cuda:zipplan")

It is a Python subclass of torch's ProcessGroup around a transport (gloo, NCCL). **Every** method that torch's C++ can
call is overridden, also those that only pass on: C++ calls a method that is not overridden with the interpreter lock
held, and gloo's own thread may need that lock to end (docs/executor.md). Groups whose ranks the plan does not fit run
natively, counted.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, ProcessGroup

from zipplan.executor.faults import starting
from zipplan.executor.session import Session
from zipplan.executor.start import start
from zipplan.executor.work import Handle, finished
from zipplan.planner.plan import Plan

NAME = "zipplan"
_GLOO, _NCCL = ProcessGroup.BackendType.GLOO, ProcessGroup.BackendType.NCCL

_plan: Plan | Path | None = None


def register(plan: Plan | str | os.PathLike[str] | None = None) -> None:
    """Make the name known to torch; `plan`: for groups made from now on, None: the file in ZIPPLAN_PLAN."""
    global _plan
    _plan = plan if plan is None or isinstance(plan, Plan) else Path(plan)
    if NAME.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(NAME, ZipplanProcessGroup, devices=["cpu", "cuda"])


def transport(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    """A torch process group of gloo for CPU tensors and NCCL (where there is one) for CUDA tensors."""
    group = ProcessGroup(store, rank, size)
    gloo = dist.ProcessGroupGloo(PrefixStore("gloo", store), rank, size, timeout)
    _number(gloo)
    group._register_backend(torch.device("cpu"), _GLOO, gloo)
    group._set_default_backend(_GLOO)
    if torch.cuda.is_available():
        if dist.is_nccl_available():
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = timeout
            nccl = dist.ProcessGroupNCCL(PrefixStore("nccl", store), rank, size, options)
            _number(nccl)
            group._register_backend(torch.device("cuda"), _NCCL, nccl)
        else:
            group._register_backend(torch.device("cuda"), _GLOO, gloo)
    return group


def _number(backend: Any) -> None:
    """Start the sequence numbers, which 2.14 does by itself, with a warning for those who ask."""
    if torch.torch_version.TorchVersion(torch.__version__) < (2, 14):  # type: ignore[operator]
        backend._set_sequence_number_for_group()


class ZipplanProcessGroup(ProcessGroup):
    """One group of ranks: `inner`, the transport, and `session`, the plan for it."""

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]
        whole = not dist.is_initialized()
        said = PrefixStore("zipplan", store)
        with starting(said, rank, size, torch.device("cpu")):
            self.inner = transport(PrefixStore("all", store), rank, size, timeout)
        # torch looks the backend of a device up in the group itself (FSDP2, DTensor, functional collectives).
        for device in self.inner._device_types:
            self._register_backend(device, _NCCL if self._nccl(device) else _GLOO, self.inner._get_backend(device))
        self._set_default_backend(_GLOO)

        def make(ranks: list[int]) -> Any:
            if rank not in ranks:
                return None
            name = "axis-" + "-".join(map(str, ranks))
            return transport(PrefixStore(name, store), ranks.index(rank), len(ranks), timeout)

        backend = "nccl" if any(self._nccl(device) for device in self.inner._device_types) else "gloo"
        local = int(os.environ.get("LOCAL_WORLD_SIZE", size)) if whole else size
        self.session: Session = start(_plan, local, None, self.inner, backend, said, make, must_fit=whole)

    def _nccl(self, device: torch.device) -> bool:
        return device.type == "cuda" and dist.is_nccl_available()

    def name(self) -> str:
        """What torch calls the group's backend."""
        return NAME

    def getBackendName(self) -> str:
        """What torch calls the group's backend."""
        return NAME

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Handle:
        """By plan."""
        return self.session.all_gather(output, input, async_op=_async(opts)) or finished([output])

    def all_gather_single_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None
    ) -> Handle:
        """By plan, one after the other."""
        for output, input in zip(outputs, inputs, strict=True):
            self.session.all_gather(output, input)
        return finished(outputs)

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Handle:
        """By plan."""
        return self.session.reduce_scatter(output, input, _op(opts), async_op=_async(opts)) or finished([output])

    def reduce_scatter_single_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None
    ) -> Handle:
        """By plan, one after the other."""
        for output, input in zip(outputs, inputs, strict=True):
            self.session.reduce_scatter(output, input, _op(opts))
        return finished(outputs)

    def allreduce(self, tensors: Sequence[Tensor] | Tensor, opts: Any = None, *more: Any) -> Any:
        """By plan; sparse tensors natively."""
        one = tensors if isinstance(tensors, Tensor) else tensors[0]
        if one.layout is not torch.strided:
            return self.session.forward("all_reduce", lambda: self.inner.allreduce([one], opts))
        return self.session.all_reduce(one, _op(opts), async_op=_async(opts)) or finished([one])

    def allreduce_coalesced(self, tensors: Sequence[Tensor], opts: Any = None) -> Handle:
        """By plan, one after the other."""
        for tensor in tensors:
            self.session.all_reduce(tensor, _op(opts))
        return finished(tensors)

    def all_to_all_single(
        self, output: Tensor, input: Tensor, output_split_sizes: list[int], input_split_sizes: list[int],
        opts: Any = None,
    ) -> Handle:  # fmt: skip
        """By plan; with splits, each pair of ranks by its own size."""
        splits = (list(output_split_sizes) or None, list(input_split_sizes) or None)
        return self.session.all_to_all(output, input, *splits, async_op=_async(opts)) or finished([output])

    def shutdown(self) -> None:
        """End of the group."""
        self.session.close()
        self.inner.shutdown()

    def abort(self) -> None:
        """End of the group, whatever is in flight."""
        self.inner.abort()

    def set_timeout(self, timeout: timedelta) -> None:
        """Of the transport."""
        self.inner.set_timeout(timeout)


def _async(opts: Any) -> bool:
    """What the caller asked for; C++ callers always want a handle."""
    return bool(getattr(opts, "asyncOp", True))


def _op(opts: Any) -> Any:
    return getattr(opts, "reduceOp", dist.ReduceOp.SUM)


def _passed_on(name: str, ordered: bool) -> Any:
    """A method that hands a call to the transport: after all earlier collectives (ordered), or at once."""

    def method(self: ZipplanProcessGroup, *args: Any, **kwargs: Any) -> Any:
        def job() -> Any:
            return getattr(self.inner, name)(*args, **kwargs)

        return self.session.forward(name, job, ordered)

    method.__name__ = name
    method.__doc__ = "Natively."
    return method


# Sends and receives are matched by peer and tag, not by order: waiting for earlier collectives could be a deadlock.
for _name in ("send", "recv", "recv_anysource"):
    setattr(ZipplanProcessGroup, _name, _passed_on(_name, ordered=False))
for _name in (
    *("allgather", "allgather_coalesced", "alltoall", "barrier", "broadcast", "gather", "monitored_barrier"),
    *("reduce", "reduce_scatter", "scatter", "_start_coalescing", "_end_coalescing"),
):
    setattr(ZipplanProcessGroup, _name, _passed_on(_name, ordered=True))

# Names before torch 2.13.
for _old, _new in {
    "_allgather_base": "all_gather_single",
    "_reduce_scatter_base": "reduce_scatter_single",
    "alltoall_base": "all_to_all_single",
    "allgather_into_tensor_coalesced": "all_gather_single_coalesced",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_single_coalesced",
}.items():
    setattr(ZipplanProcessGroup, _old, getattr(ZipplanProcessGroup, _new))

register()
