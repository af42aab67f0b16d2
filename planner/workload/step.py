"""The tasks of one training step on one rank, in the order in which the framework issues them.

Compute is one queue. Collectives wait in one queue for each group of ranks (a process group has one stream) and take
turns on the network. What waits for what is the framework's: FSDP2 gathers the next block while one computes and
scatters gradients after a block's backward; Megatron's dispatcher puts two all-to-alls around the experts of a layer,
forward and backward, with nothing to hide them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from zipplan.planner.costs import ELEMENT_BYTES
from zipplan.planner.errors import ConfigError
from zipplan.planner.schedule import Collective
from zipplan.planner.topology import Cluster
from zipplan.planner.workload import shape
from zipplan.planner.workload.gpus import operations_per_second
from zipplan.planner.workload.grid import Grid, grid
from zipplan.planner.workload.model import Workload

BACKWARD = 2.0
"""Operations backward over forward: gradients of inputs and of weights."""


@dataclass(frozen=True, slots=True)
class Call:
    """One collective as the framework issues it; size in bytes as nccl-tests counts it.

    `late`: ps that the busiest rank of the group comes after the others; `load`: what it moves over the mean.
    """

    what: str
    collective: Collective
    size: int
    dtype: str
    profile: str
    grid: Grid
    late: int = 0
    load: float = 1.0


@dataclass(slots=True)
class Task:
    """Compute of `ps`, or a call. `after`: numbers of tasks that must have ended."""

    name: str
    after: tuple[int, ...]
    ps: int = 0
    call: Call | None = None


@dataclass(frozen=True)
class Step:
    """Tasks of one step, and how often the whole is stretched by the pipeline's bubble."""

    tasks: tuple[Task, ...]
    stretch: float


@dataclass(frozen=True, slots=True)
class Groups:
    """The ranks that meet along each kind of parallelism; None where nobody meets."""

    data: Grid | None
    replicas: Grid | None
    tensor: Grid | None
    expert: Grid | None
    expert_data: Grid | None


def groups(workload: Workload, cluster: Cluster) -> Groups:
    """Raises ConfigError when the parallelism does not fit the ranks."""
    plan, ranks = workload.parallel, cluster.ranks
    fixed = plan.tensor * plan.pipeline
    if ranks % fixed:
        raise ConfigError(
            f"workload {workload.name}: tensor {plan.tensor} × pipeline {plan.pipeline} = {fixed} ranks do not divide "
            f"the {ranks} ranks of {cluster.machine.name}; choose --nodes so that they do"
        )
    data = ranks // fixed
    expert = data * plan.tensor if plan.expert == "all" else plan.expert
    if workload.model.experts is None and expert > 1:
        raise ConfigError(f"workload {workload.name}: parallel.expert = {plan.expert}, but the model has no experts")
    if workload.model.experts is not None and (data * plan.tensor % expert or workload.model.experts.count % expert):
        raise ConfigError(
            f"workload {workload.name}: expert groups of {expert} ranks must divide the {data * plan.tensor} ranks of "
            f"a pipeline stage and the {workload.model.experts.count} experts; choose --nodes so that they do"
        )
    shard = plan.shard or data
    if data % shard:
        raise ConfigError(f"workload {workload.name}: shard = {shard} does not divide the {data} data-parallel ranks")

    def meet(size: int, stride: int, what: str) -> Grid | None:
        return grid(size, stride, cluster, f"workload {workload.name}: {what}") if size > 1 else None

    return Groups(
        meet(shard, plan.tensor, "parallel.data"),
        meet(data // shard, plan.tensor * shard, "parallel.shard"),
        meet(plan.tensor, 1, "parallel.tensor"),
        meet(expert, 1, "parallel.expert"),
        meet(data * plan.tensor // expert, expert, "parallel.expert"),
    )


@dataclass
class _Block:
    """One unit of sharding: a layer, the embedding or the head; forward operations by part."""

    name: str
    weights: int  # on every data-parallel rank
    routed: int  # expert weights of one expert-parallel rank
    operations: shape.Operations
    sparse: bool = False
    stays: bool = False  # gathered from its forward to its backward


def build_step(workload: Workload, cluster: Cluster) -> Step:
    """All tasks of one step on a middle rank. Raises ConfigError when workload and cluster do not fit."""
    return _Builder(workload, cluster).step()


class _Builder:
    def __init__(self, workload: Workload, cluster: Cluster) -> None:
        self.workload, self.parallel = workload, workload.parallel
        self.groups = groups(workload, cluster)
        self.blocks = self._blocks()
        self.tasks: list[Task] = []
        self.last: tuple[int, ...] = ()  # what the next compute follows
        self.unreduced = 0  # bytes of gradients that wait for a ddp bucket to fill
        self.speed = self._speed(cluster)
        self.sharded = self.parallel.data in ("fsdp", "hsdp")

    def _blocks(self) -> list[_Block]:
        workload, tensor = self.workload, self.parallel.tensor
        model = workload.model
        stage = -(-model.layers // self.parallel.pipeline)
        all_layers = shape.layers(model)
        first = (len(all_layers) - stage) // 2 if self.parallel.pipeline > 2 else 0
        share = self.groups.expert.ranks if self.groups.expert else 1
        blocks = [
            _Block(
                f"layer {first + number}",
                layer.replicated // tensor,
                layer.routed // share,
                shape.operations(workload, layer),
                layer.routed > 0,
            )
            for number, layer in enumerate(all_layers[first : first + stage])
        ]
        if self.parallel.pipeline == 1:
            nothing = shape.Operations(0, 0, 0)
            projected = shape.Operations(0, shape.head_operations(workload), 0)
            blocks.insert(0, _Block("embedding", shape.embedding(model) // tensor, 0, nothing))
            blocks.append(_Block("head", shape.head(model) // tensor, 0, projected, stays=True))
        return blocks

    def _speed(self, cluster: Cluster) -> float:
        """Operations per picosecond."""
        compute = self.workload.compute
        if compute.micro_batch_time is None:
            return operations_per_second(self.workload, cluster) / 1e12
        repeated = 1 if compute.recompute == "full" else 0
        total = sum(block.operations.all for block in self.blocks) * (1 + self._backward() + repeated)
        return total / compute.micro_batch_time

    def _backward(self) -> float:
        return 1.0 if self.workload.adapters else BACKWARD  # frozen weights need no gradient

    # ---- the step

    def step(self) -> Step:
        batches = self.workload.batch.micro_batches
        for batch in range(batches):
            self._forward(first=batch == 0)
            self._backward_pass(last=batch == batches - 1)
        return Step(tuple(self.tasks), (batches + self.parallel.pipeline - 1) / batches)

    def _forward(self, first: bool) -> None:
        gathers = self.sharded or (first and self.parallel.data == "zero1")
        gathered = self._gather_ahead(self.blocks) if gathers else None
        for block in self.blocks:
            self._need(gathered)
            self._compute(block, forward=True)

    def _backward_pass(self, last: bool) -> None:
        back = self.blocks[::-1]
        again = self._gather_ahead([b for b in back if not b.stays]) if self.sharded else None
        for block in back:
            if not block.stays:
                self._need(again)
            if self.workload.compute.recompute == "full":
                self._compute(block, forward=True)
            self._compute(block, forward=False)
            if self.sharded or last:
                self._reduce(block, at_end=block is back[-1])

    def _gather_ahead(self, blocks: list[_Block]) -> Iterable[None]:
        """Before each block's compute: its gather is waited for, the next one is issued (one ahead, if prefetching)."""
        calls = [self._gathers(block) for block in blocks]
        ahead = 2 if self.parallel.prefetch else 1
        issued: list[tuple[int, ...]] = []
        for number in range(len(blocks)):
            while len(issued) < min(number + ahead, len(blocks)):
                # A block's buffer is free once the block two before it has computed.
                issued.append(tuple(self._issue(call, self.last) for call in calls[len(issued)]))
            self.last += issued[number]
            yield

    @staticmethod
    def _need(gathered: Iterable[None] | None) -> None:
        if gathered is not None:
            next(iter(gathered))

    def _gathers(self, block: _Block) -> list[Call]:
        width, profile = self.workload.precision.parameters, self.workload.values.parameters
        parts = (("parameters", block.weights, self.groups.data), ("experts", block.routed, self.groups.expert_data))
        return [
            Call(what, Collective.ALL_GATHER, weights * ELEMENT_BYTES[width], width, profile, where)
            for what, weights, where in parts
            if weights and where is not None
        ]

    def _trained(self, block: _Block) -> int:
        """Weights of a block that every data-parallel rank trains."""
        if self.workload.adapters is None:
            return block.weights
        return shape.adapter_parameters(self.workload) if block.name.startswith("layer") else 0

    def _reduce(self, block: _Block, at_end: bool) -> None:
        """Gradients of a block after its backward: at once, or (ddp) when a bucket is full."""
        width, profile = self.workload.precision.gradients, self.workload.values.gradients
        if self.parallel.data == "ddp":
            self.unreduced += self._trained(block) * ELEMENT_BYTES[width]
            while self.groups.data is not None and self.unreduced >= (1 if at_end else self.parallel.bucket):
                size = min(self.unreduced, self.parallel.bucket)
                self.unreduced -= size
                call = Call("gradients", Collective.ALL_REDUCE, size, width, profile, self.groups.data)
                self._issue(call, self.last)
            return
        parts = (
            ("gradients", self._trained(block), self.groups.data, self.groups.replicas),
            ("expert gradients", 0 if self.workload.adapters else block.routed, self.groups.expert_data, None),
        )
        for what, weights, where, replicas in parts:
            size = weights * ELEMENT_BYTES[width]
            after = self.last
            if size and where is not None:
                after = (self._issue(Call(what, Collective.REDUCE_SCATTER, size, width, profile, where), after),)
                size //= where.ranks
            if size and replicas is not None:
                self._issue(Call("replicas", Collective.ALL_REDUCE, size, width, profile, replicas), after)

    # ---- one block

    def _compute(self, block: _Block, forward: bool) -> None:
        """Attention, then feed-forward or experts, each with the calls around it; backward the other way round."""
        times = 1.0 if forward else self._backward()
        ops = block.operations
        attention, dense, routed = (round(part * times / self.speed) for part in (ops.attention, ops.dense, ops.routed))
        around = self._around() if block.name.startswith("layer") and self.groups.tensor is not None else None
        exchange = self._exchange(routed) if block.sparse else None
        parts = [
            (f"{block.name} attention", attention, around),
            (f"{block.name} {'experts' if block.sparse else 'feed-forward'}", dense + routed, exchange or around),
        ]
        for name, ps, pair in parts if forward else parts[::-1]:
            self._between(name, ps, pair)

    def _between(self, name: str, ps: int, pair: tuple[Call, Call] | None) -> None:
        """Compute, with the call that feeds it before and the call that its result needs after it."""
        if pair is not None:
            self.last = (self._issue(pair[0], self.last),)
        if ps:
            self.tasks.append(Task(name, self.last, ps))
            self.last = (len(self.tasks) - 1,)
        if pair is not None:
            self.last = (self._issue(pair[1], self.last),)

    def _around(self) -> tuple[Call, Call]:
        """Sequence parallelism (Korthikanti et al., arXiv 2205.05198): gather before, reduce-scatter after."""
        assert self.groups.tensor is not None
        dtype, profile = self.workload.precision.activations, self.workload.values.activations
        size = self.workload.batch.tokens * self.workload.model.hidden * ELEMENT_BYTES[dtype]
        gather, scatter = (
            Call("activations", collective, size, dtype, profile, self.groups.tensor)
            for collective in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER)
        )
        return gather, scatter

    def _exchange(self, routed: int) -> tuple[Call, Call] | None:
        """Dispatch and combine; the second waits for the rank whose experts got the most tokens."""
        experts, where = self.workload.model.experts, self.groups.expert
        if experts is None or where is None:
            return None
        dtype, profile = self.workload.precision.activations, self.workload.values.activations
        copies = experts.active * (self._distinct(where.ranks) if experts.deduplicate else 1.0)
        tokens = self.workload.batch.tokens / self.parallel.tensor * copies
        size = round(tokens * self.workload.model.hidden * experts.narrow) * ELEMENT_BYTES[dtype]
        busiest = experts.imbalance
        late = round((busiest - 1) * routed)
        dispatch, combine = (
            Call(what, Collective.ALL_TO_ALL, size, dtype, profile, where, waits, busiest)
            for what, waits in (("tokens", 0), ("tokens back", late))
        )
        return dispatch, combine

    def _distinct(self, ranks: int) -> float:
        """Expected share of a token's experts that live on different ranks, experts drawn evenly.

        HierMoE, arXiv 2508.09591: what is sent once for several experts of one rank.
        """
        experts = self.workload.model.experts
        assert experts is not None
        missed, here = 1.0, experts.count // ranks
        for drawn in range(experts.active):
            missed *= max(0, experts.count - here - drawn) / (experts.count - drawn)
        return ranks * (1 - missed) / experts.active

    def _issue(self, call: Call, after: tuple[int, ...]) -> int:
        self.tasks.append(Task(call.what, after, call=call))
        return len(self.tasks) - 1
