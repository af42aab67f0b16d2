"""FSDP2: parameters gathered and gradients scattered by a plan, installed over a whole model in one call.

Gathered parameters are the same bytes as without zipplan, so losses are bit-identical as long as gradients are reduced
natively. Planned gradient sums are FP32 in rank order (see Session), equal on all ranks.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from zipplan.executor.session import Session
from zipplan.executor.start import init
from zipplan.planner.errors import ConfigError, ZipplanError

try:  # torch's own module path is private
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, ReduceScatter
except ImportError as error:
    raise ConfigError(
        f"this torch ({torch.__version__}) has no custom FSDP2 collectives: {error}; use 2.11 to 2.14"
    ) from None

log = logging.getLogger("zipplan")


@dataclass
class Installed:
    """What `install` did: names of hooked modules, and of the others with the reason. '' is the model itself."""

    hooked: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"FSDP2: {len(self.hooked)} modules hooked: {', '.join(name or '(root)' for name in self.hooked)}"]
        lines += [f"not hooked: {name or '(root)'}: {why}" for name, why in self.skipped.items()]
        return "\n".join(lines)


def install(model: nn.Module, session: Session, *, gather: bool = True, reduce: bool = True) -> Installed:
    """Let every FSDP2 module of `model` gather parameters and (reduce) scatter gradients by the session's plan.

    A collective call: sessions for sub-groups of the mesh are made here. Call it once after `fully_shard`; again
    replaces the hooks. Raises ConfigError when no module of the model is sharded by FSDP2.
    """
    done = Installed()
    sessions: dict[tuple[int, ...], Session | str] = {tuple(dist.get_process_group_ranks(session.group)): session}
    modules = [(name, module) for name, module in model.named_modules() if isinstance(module, FSDPModule)]
    if not modules:
        raise ConfigError("FSDP2: no module of this model is sharded; call fully_shard(…) first, then install(…)")
    for name, module in modules:
        why = _hook(module, session, sessions, gather, reduce)
        if why is None:
            done.hooked.append(name)
        else:
            done.skipped[name] = why
    log.info("%s", done)
    return done


def _hook(
    module: Any, session: Session, sessions: dict[tuple[int, ...], Session | str], gather: bool, reduce: bool
) -> str | None:
    """Hook one module; why not, if not."""
    state = module._get_fsdp_state()
    # torch 2.12 and older hold one group or None.
    groups = getattr(state, "_fsdp_param_groups", None) or [g for g in [getattr(state, "_fsdp_param_group", None)] if g]
    if not groups:
        return "it holds no parameters of its own"
    if len(groups) > 1:
        return f"it has {len(groups)} parameter groups (shard_placement_fn on several meshes), torch allows one"
    for kind, wanted in (("_all_gather_comm", gather), ("_reduce_scatter_comm", reduce)):
        held = getattr(groups[0], kind)
        if wanted and not isinstance(held, _Planned) and not type(held).__name__.startswith("Default"):
            return f"it already has {type(held).__name__} (memory from the process group, or another hook)"
    mine = _session(groups[0].mesh_info.shard_process_group, session, sessions)
    if isinstance(mine, str):
        return mine
    if gather:
        module.set_custom_all_gather(PlannedAllGather(mine))
    if reduce:
        module.set_custom_reduce_scatter(PlannedReduceScatter(mine))
    return None


def _session(group: Any, whole: Session, sessions: dict[tuple[int, ...], Session | str]) -> Session | str:
    """The session of a mesh's group, made when first met; or why there is none."""
    ranks = tuple(dist.get_process_group_ranks(group))
    if ranks not in sessions:
        try:
            sessions[ranks] = init(whole.plan, group=group, adaptive=whole.switches.adaptive)
        except ZipplanError as error:  # alike on all ranks of the group
            sessions[ranks] = f"its group of {len(ranks)} ranks: {error}"
    return sessions[ranks]


class _Planned:
    """Buffers as torch's default hooks make them; the session keeps the scratch."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """A new tensor."""
        return torch.empty(*size, dtype=dtype, device=device)


class PlannedAllGather(_Planned, AllGather):
    """What `set_custom_all_gather` takes."""

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool = False) -> Any:
        """Gather parameters; a handle when async_op."""
        return self.session.all_gather(output_tensor, input_tensor, async_op=async_op, kind="weights")


class PlannedReduceScatter(_Planned, ReduceScatter):
    """What `set_custom_reduce_scatter` takes."""

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False) -> Any:
        """Reduce gradients; a handle when async_op."""
        return self.session.reduce_scatter(output_tensor, input_tensor, op, async_op=async_op, kind="gradients")
