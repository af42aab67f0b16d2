"""`init`: load a plan, agree on it with all ranks, make a Session."""

from __future__ import annotations

import logging
import os
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from zipplan.executor import environment, faults, native
from zipplan.executor.agree import Item, agree
from zipplan.executor.coders import missing
from zipplan.executor.decide import has_frames
from zipplan.executor.session import Session, Switches
from zipplan.executor.streams import device_of
from zipplan.planner.errors import ConfigError, PlanError, ZipplanError
from zipplan.planner.plan import Plan, zipplan_version
from zipplan.planner.schedule import Axis
from zipplan.planner.topology import build_cluster, load_machine

log = logging.getLogger("zipplan")

_sessions: dict[tuple[int, ...], Session] = {}
_made: Counter[tuple[int, ...]] = Counter()


def init(
    plan: Plan | str | os.PathLike[str] | None = None,
    *,
    ranks_per_node: int | None = None,
    topology: str | None = None,
    timeout: timedelta | None = None,
    group: Any = None,
    adaptive: bool = True,
) -> Session:
    """Load the plan, agree with all ranks of a process group, make groups of nodes. A collective call of that group.

    plan: a Plan, a path, or None for the path in ZIPPLAN_PLAN (unset: everything runs natively, counted).
    ranks_per_node: how the group's ranks lie on nodes; None: torchrun's LOCAL_WORLD_SIZE (of a sub-group: all on one).
    topology: the machine at hand (shipped name or file), to be compared with the plan's; None: not compared. timeout:
    of the groups made here; None: the group's own. group: None for all ranks. adaptive: stop compressing a
    class of tensors while it does not pay; False: follow the plan to the letter. Raises PlanError, AgreementError,
    ConfigError and what reading plan or topology raises, alike on every rank.
    """
    if not dist.is_initialized():
        raise ConfigError(
            "no process group: call torch.distributed.init_process_group() before zipplan.executor.init()"
        )
    whole = group is None or group is dist.group.WORLD
    group = dist.group.WORLD if group is None else group
    local = ranks_per_node or (int(os.environ.get("LOCAL_WORLD_SIZE", group.size())) if whole else group.size())

    members = tuple(dist.get_process_group_ranks(group))
    _made[members] += 1
    store = faults.store_of(members, _made[members])

    limit = timeout or _timeout(group)

    def make(ranks: list[int]) -> Any:
        return dist.new_group([members[r] for r in ranks], timeout=limit, use_local_synchronization=not whole)

    # A group of the session's own: the program's collectives on `group` may run while the session's are in flight.
    with faults.starting(store, group.rank(), group.size(), device_of(transport_of(dist.get_backend(group)))):
        own = make(list(range(len(members))))
    session = start(plan, local, topology, own, transport_of(dist.get_backend(group)), store, make, adaptive)
    _sessions[members] = session
    return session


def current(group: Any = None) -> Session:
    """The session of the last `init` on this group (None: all ranks). Raises ConfigError when there is none."""
    members = tuple(dist.get_process_group_ranks(dist.group.WORLD if group is None else group))
    if members not in _sessions:
        raise ConfigError(
            f"no session for ranks {list(members)}: call zipplan.executor.init(plan"
            f"{', group=group' if group is not None else ''}) first, on each of them"
        )
    return _sessions[members]


def start(
    plan: Plan | str | os.PathLike[str] | None, ranks_per_node: int, topology: str | None, group: Any, backend: str,
    store: Any, make: native.Make, adaptive: bool = True, must_fit: bool = True,
) -> Session:  # fmt: skip
    """Load, agree, make a Session on any group of transport `backend`; see `init`. `make`, `store`: see Session.

    must_fit: raise PlanError when the plan is not for as many ranks; False: then everything runs natively, counted.
    """
    loaded, path, problem, misfit = None, "", None, ""
    switches = Switches()
    try:
        environment.check_names()
        disabled = environment.read(environment.DISABLE) == "1"
        switches = Switches(disabled, environment.read(environment.CHECK), adaptive)
        _set_log_level()
        loaded, path = _load(plan)
        if loaded is not None:
            try:
                _check_fit(loaded, group.size(), ranks_per_node)
            except PlanError as error:
                if must_fit:
                    raise
                loaded, misfit = None, f"this group: {error}"
            if topology is not None and loaded is not None:
                _check_machine(loaded, topology)
    except ZipplanError as error:
        problem = error
    no_codec = _no_codec(loaded)
    held = loaded.hash.removeprefix("sha256:") if loaded else "not loaded" if problem else "none"
    versions = f"zipplan {zipplan_version()}, torch {torch.__version__}"
    with faults.starting(store, group.rank(), group.size(), device_of(backend)) as watch:
        watch.stage = "agreement"
        agree(
            [
                Item("plan", held, f"{held[:12]}{path and f' ({path})'}"),
                Item("start-up", str(problem), str(problem) if problem else "no problem"),
                Item("versions", versions, versions),
                Item("switch ZIPPLAN_DISABLE", str(switches.disabled), "on" if switches.disabled else "off"),
                Item("switch ZIPPLAN_CHECK", switches.check, switches.check),
                Item("adaptive", str(adaptive), str(adaptive)),
                Item("ranks per node", str(ranks_per_node), str(ranks_per_node)),
                Item("codec on the GPU", str(no_codec), no_codec.get("cuda", "no GPU") or "usable"),
            ],
            device_of(backend),
            group,
            watch,
        )
        if problem is not None:
            raise problem
        watch.stage = "process groups"
        session = Session(loaded, ranks_per_node, switches, group, backend, store, make)
    session.decider.no_plan, session.decider.no_codec = misfit or "no plan", no_codec
    return session


def _no_codec(plan: Plan | None) -> dict[str, str]:
    """By kind of device that tensors can be on here: why they cannot be coded as the plan wants, "" when they can."""
    entries = plan.entries if plan else ()
    used = [(c.codec.id, e.dtype) for e in entries for c in e.choices if has_frames(c.schedule)]
    devices = [torch.device("cpu")]
    if torch.cuda.is_available():
        devices.append(torch.device("cuda", torch.cuda.current_device()))
    return {device.type: missing(device, used) for device in devices}


def _set_log_level() -> None:
    """As ZIPPLAN_LOG says; to stderr where the program has set up no logging of its own."""
    log.setLevel(environment.read(environment.LOG).upper())
    if log.isEnabledFor(logging.INFO) and not log.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("zipplan: %(message)s"))
        log.addHandler(handler)


def transport_of(backends: str) -> str:
    """The one that moves the tensors at hand, of a group's backends as torch names them ("cpu:gloo,cuda:nccl").

    torch says "undefined" where the program named none: NCCL on GPUs and gloo on CPUs.
    """
    if torch.cuda.is_available() and ("nccl" in backends or backends == "undefined"):
        return "nccl"
    return "gloo" if "gloo" in backends or backends == "undefined" else backends


def _timeout(group: Any) -> timedelta | None:
    """After which the group's transport gives a collective up; None where torch does not tell."""
    backend = group._get_backend(device_of(transport_of(dist.get_backend(group))))
    return getattr(getattr(backend, "options", None), "_timeout", None)


def _load(plan: Plan | str | os.PathLike[str] | None) -> tuple[Plan | None, str]:
    if isinstance(plan, Plan):
        return plan, ""
    path = plan or os.environ.get("ZIPPLAN_PLAN")
    return (Plan.load(Path(path)), os.fspath(path)) if path else (None, "")


def _check_fit(plan: Plan, ranks: int, ranks_per_node: int) -> None:
    """Raise PlanError unless the plan fits the group's ranks."""
    if ranks % ranks_per_node:
        raise ConfigError(f"{ranks} ranks do not fall into nodes of {ranks_per_node} ranks each")
    nodes = ranks // ranks_per_node
    shape, planned = (nodes, ranks_per_node), (plan.topology.nodes, plan.topology.ranks_per_node)
    flat = all(c.schedule.axes <= {Axis.WORLD} for e in plan.entries for c in e.choices)
    if plan.ranks != ranks or (shape != planned and not flat):
        advice = f"start {plan.ranks} ranks" if plan.ranks != ranks else f"rehearse with --ranks-per-node {planned[1]}"
        needs = f"{plan.ranks} ranks ({planned[0]} {'node' if planned[0] == 1 else 'nodes'} × {planned[1]})"
        raise PlanError(
            f"plan needs {needs}, job has {ranks} ({nodes} × {ranks_per_node}); {advice}, or make a plan for this job"
        )


def _check_machine(plan: Plan, topology: str) -> None:
    """Raise PlanError unless the plan was made for this machine, TopologyError when the machine cannot be read."""
    planned = plan.topology
    cluster = build_cluster(load_machine(topology), nodes=planned.nodes, ranks_per_node=planned.ranks_per_node)
    if cluster.fingerprint != planned.fingerprint:
        found, expected = (f.removeprefix("sha256:")[:12] for f in (cluster.fingerprint, planned.fingerprint))
        raise PlanError(
            f"plan was made for topology {planned.name} (fingerprint {expected}), but {topology} has fingerprint "
            f"{found}; plan again for this machine"
        )
