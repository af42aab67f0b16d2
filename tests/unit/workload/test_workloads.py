"""Workload files, what a step of them issues, and its time."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from zipplan.planner.cli import main
from zipplan.planner.cli.plan import plan as plan_command
from zipplan.planner.contention import Cost
from zipplan.planner.errors import ConfigError, SimulationError
from zipplan.planner.plan import Plan
from zipplan.planner.schedule import Collective
from zipplan.planner.topology import Cluster, build_cluster, load_machine
from zipplan.planner.workload import Task, Workload, build_step, load_workload, plan_workload, run_step, shape, shipped
from zipplan.planner.workload.grid import Grid, grid, part
from zipplan.planner.workload.load import parse_workload
from zipplan.planner.workload.report import distinct
from zipplan.planner.workload.step import Call, Step

# Billions of parameters, from the checkpoints' model cards; DeepSeek-V3 without its extra prediction layer.
PARAMETERS = {
    "llama3-8b": 8.030, "llama3-70b": 70.554, "llama3-405b": 405.853, "mixtral-8x7b": 46.703, "deepseek-v3": 671.026,
    "qwen3-235b": 235.094, "olmoe": 6.919, "lora-8b": 8.030,
}  # fmt: skip


def cluster(machine: str = "a6000x8-200g", nodes: int = 2) -> Cluster:
    return build_cluster(load_machine(machine), nodes=nodes)


def changed(name: str, **tables: dict[str, object]) -> Workload:
    data = load_workload(name).model_dump(by_alias=True, exclude_unset=True)
    for table, values in tables.items():
        data.setdefault(table, {}).update(values)
    return Workload.model_validate(data)


@pytest.mark.parametrize("name", shipped())
def test_presets_load_and_name_their_sources(name: str) -> None:
    workload = load_workload(name)
    assert workload.name == name
    assert "http" in workload.source


@pytest.mark.parametrize(("name", "billions"), PARAMETERS.items())
def test_parameters_are_those_of_the_checkpoint(name: str, billions: float) -> None:
    assert shape.parameters(load_workload(name).model) / 1e9 == pytest.approx(billions, rel=2e-4)


def test_fsdp_gathers_twice_and_scatters_once() -> None:
    """Every weight once forward and once backward; the head stays gathered in between (TorchTitan)."""
    workload = load_workload("llama3-8b")
    step = build_step(workload, cluster())
    calls = [task.call for task in step.tasks if task.call is not None]
    weights, head = shape.parameters(workload.model), shape.head(workload.model)
    gathered = sum(c.size for c in calls if c.collective is Collective.ALL_GATHER)
    scattered = sum(c.size for c in calls if c.collective is Collective.REDUCE_SCATTER)
    assert gathered == 2 * (2 * weights - head)
    assert scattered == 4 * weights


def test_moe_layers_have_four_all_to_alls() -> None:
    workload = changed("qwen3-235b-cut", batch={"micro_batches": 1})
    calls = [task.call for task in build_step(workload, cluster()).tasks if task.call is not None]
    tokens = [c for c in calls if c.collective is Collective.ALL_TO_ALL]
    assert len(tokens) == 4 * 16
    assert {c.size for c in tokens} == {1024 * 8 * 4096 * 2}
    assert {c.late > 0 for c in tokens} == {True, False}


def test_a_narrow_or_deduplicated_dispatch_moves_less() -> None:
    def moved(**experts: object) -> int:
        workload = changed("qwen3-235b-cut", model={"experts": {**plain, **experts}})
        calls = [t.call for t in build_step(workload, cluster(nodes=1)).tasks if t.call is not None]
        return max(c.size for c in calls if c.collective is Collective.ALL_TO_ALL)

    plain = load_workload("qwen3-235b-cut").model_dump(by_alias=True)["model"]["experts"]
    assert moved(narrow=0.25) == moved() // 4
    # 8 of 128 experts on 8 ranks of 16: 8 · (1 − C(112, 8) / C(128, 8)) = 5.3 ranks of 8.
    assert moved(deduplicate=True) / moved() == pytest.approx(0.664, abs=0.005)


def test_tensor_parallel_layers_gather_and_scatter_around_each_part() -> None:
    workload = changed("llama3-8b", parallel={"tensor": 8, "data": "ddp"}, batch={"micro_batches": 1})
    calls = [
        t.call for t in build_step(workload, cluster()).tasks if t.call is not None and t.call.what == "activations"
    ]
    assert len(calls) == 2 * 2 * 2 * 32  # forward and backward, two parts, two calls, layers
    assert {c.grid for c in calls} == {Grid(1, 8)}


def test_hsdp_reduces_shards_over_the_replicas() -> None:
    workload = changed("llama3-8b", parallel={"data": "hsdp", "shard": 8})
    calls = [t.call for t in build_step(workload, cluster()).tasks if t.call is not None]
    scattered = sum(c.size for c in calls if c.collective is Collective.REDUCE_SCATTER)
    reduced = sum(c.size for c in calls if c.collective is Collective.ALL_REDUCE)
    assert reduced == scattered // 8
    assert {c.grid for c in calls} == {Grid(1, 8), Grid(2, 1)}


@pytest.mark.parametrize("name", ["llama3-8b", "qwen3-235b-cut", "deepseek-v3-cut", "olmoe", "mixtral-8x7b", "lora-8b"])
@pytest.mark.parametrize("machine", ["a6000x8-200g", "hgx-h100"])
def test_bounds_of_a_step(name: str, machine: str) -> None:
    planned = plan_workload(load_workload(name), cluster(machine))
    for step in (planned.raw, planned.planned):
        communicating, exposed = sum(step.communicating.values()), sum(step.exposed.values())
        assert step.time >= max(step.computing, communicating)
        assert step.time == step.computing + exposed
        assert 0 <= exposed <= communicating
        assert step.hidden + exposed == communicating
    assert planned.planned.time <= planned.raw.time
    assert sum(row.raw_exposed for row in planned.rows) == sum(planned.raw.exposed.values())


def test_small_adapters_are_left_raw() -> None:
    planned = plan_workload(load_workload("lora-8b"), cluster("hgx-h100", 4))
    assert {row.choice for row in planned.rows} == {"native"}
    assert planned.gain == 1


def test_plans_are_whole_plan_files(tmp_path: Path) -> None:
    planned = plan_workload(changed("llama3-8b", parallel={"data": "hsdp", "shard": 8}), cluster())
    assert len(planned.plans) == 2
    for number, made in enumerate(planned.plans.values()):
        made.save(tmp_path / f"{number}.json")
        assert Plan.load(tmp_path / f"{number}.json").hash == made.hash


def test_pipeline_bubble_stretches_the_step() -> None:
    workload = changed("llama3-8b", parallel={"pipeline": 4}, batch={"micro_batches": 12})
    assert build_step(workload, cluster()).stretch == pytest.approx((12 + 3) / 12)


def test_given_compute_time_is_taken() -> None:
    workload = changed("llama3-8b", compute={"micro_batch_time": "100ms", "source": "made up"})
    step = run_step(build_step(workload, cluster()), lambda call: Cost(1))
    assert step.computing == pytest.approx(100e9, rel=1e-6)


@given(
    st.lists(st.tuples(st.booleans(), st.integers(1, 1000), st.integers(0, 3)), min_size=1, max_size=40),
    st.integers(1, 3),
)
def test_the_timeline_loses_no_time(parts: list[tuple[bool, int, int]], queues: int) -> None:
    tasks: list[Task] = []
    for number, (computes, lasts, back) in enumerate(parts):
        after = (number - back,) if back and number >= back else ()
        call = Call(str(lasts), Collective.ALL_GATHER, lasts, "bf16", "gaussian", Grid(lasts % queues + 1, 1))
        tasks.append(Task(str(number), after, lasts) if computes else Task(str(number), after, call=call))
    step = run_step(Step(tuple(tasks), 1.0), lambda call: Cost(call.size))
    exposed = sum(step.exposed.values())
    assert step.time == step.computing + exposed
    assert step.time <= sum(lasts for _, lasts, _ in parts)
    assert step.hidden >= 0


def test_a_step_that_waits_for_itself_is_named() -> None:
    with pytest.raises(SimulationError, match="knot"):
        run_step(Step((Task("knot", (0,), 5),), 1.0), lambda call: Cost(0))


def test_groups_on_nodes() -> None:
    sixteen = cluster()
    assert grid(16, 1, sixteen, "x") == Grid(2, 8)
    assert grid(4, 1, sixteen, "x") == Grid(1, 4)
    assert grid(2, 8, sixteen, "x") == Grid(2, 1)
    assert grid(4, 4, sixteen, "x") == Grid(2, 2, 4)
    with pytest.raises(ConfigError, match="x: groups of 3 ranks"):
        grid(3, 1, sixteen, "x")


def test_groups_that_share_a_nic_get_their_share() -> None:
    """Eight GPUs and one NIC: a group of one GPU per node runs beside seven others."""
    assert min(part(cluster(), Grid(2, 1)).bandwidths) == 25_000_000_000 // 8
    own = part(cluster("hgx-h100"), Grid(2, 1))
    assert min(own.bandwidths) == min(build_cluster(load_machine("hgx-h100"), nodes=2, ranks_per_node=1).bandwidths)


def test_sizes_that_hardly_differ_are_planned_once() -> None:
    assert distinct([1000, 999, 500, 1000]) == [500, 1000]


TOML = (Path(__file__).parents[3] / "topologies" / "workloads" / "llama3-8b.toml").read_text()


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("layers = 32", "layers = 0", "model.layers"),
        ("layers = 32", "layerz = 32", "unknown key model.layerz"),
        ("hidden = 4096\n", "", "model.hidden is missing"),
        ('"fsdp"', '"fdsp"', "parallel.data"),
        ('gradients = "fp32"', 'gradients = "fp31"', "precision.gradients: unknown dtype"),
        ("schema = 1", "schema = 2", "schema"),
        ("feed_forward = 14336\n", "", "feed_forward is missing"),
        ("sequence = 1024", "sequence = nan", "batch.sequence"),
        ("[model]", "[model", "not a TOML file"),
        ('data = "fsdp"', 'data = "hsdp"', "hsdp needs shard"),
    ],
)
def test_a_bad_file_names_the_field(old: str, new: str, says: str) -> None:
    with pytest.raises(ConfigError, match=r"w\.toml") as caught:
        parse_workload(TOML.replace(old, new, 1), "w.toml")
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--workload", "lama3-8b"], "did you mean"),
        (["--workload", "deepseek-v3"], "choose --nodes"),
        (["--workload", "llama3-8b", "--dtype", "fp32"], "not both"),
    ],
)
def test_command_refuses_with_one_message(
    options: list[str], says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["zipplan", "plan", "--topology", "a6000x8-200g", "--nodes", "3", *options])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 2
    assert says in capsys.readouterr().err


def test_command_writes_plan_and_shows_step(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    options = ["--topology", "a6000x8-200g", "--nodes", "2", "--workload", "llama3-8b", "-o", str(path)]
    done = CliRunner().invoke(plan_command, options)
    assert done.exit_code == 0, done.output
    assert "exposed" in done.output
    assert Plan.load(path).topology.nodes == 2
