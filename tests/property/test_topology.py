"""Properties of descriptions and importers that must hold for any input."""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zipplan.planner.errors import TopologyError, ZipplanError
from zipplan.planner.topology import build_cluster, import_text, load_machine, parse_machine
from zipplan.planner.topology.exact import exact_rate, exact_time
from zipplan.planner.topology.write import to_toml
from zipplan.planner.units import parse_bandwidth, parse_time

SAMPLES = sorted((Path(__file__).parents[1] / "fixtures" / "topologies").iterdir())


@st.composite
def meshes(draw: st.DrawFn) -> tuple[int, list[tuple[int, int, int, int]]]:
    """(GPUs, links as (a, b, lanes, ns)); every GPU also has a PCIe link, so that nothing falls apart."""
    count = draw(st.integers(2, 8))
    pair = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)).filter(lambda p: p[0] < p[1])
    links = draw(st.lists(st.tuples(pair, st.integers(1, 4), st.sampled_from([100, 150, 300])), max_size=12))
    return count, [(a, b, lanes, ns) for (a, b), lanes, ns in links]


def described(count: int, links: list[tuple[int, int, int, int]], cpus: list[int], order: list[int]) -> str:
    rows = [
        f'[[node.link]]\na = "gpu{a}"\nb = "gpu{b}"\nkind = "nvlink"\nlanes = {n}\nlatency = "{t}ns"\nsource = "test"\n'
        for a, b, n, t in links
    ]
    rows += [f'[[node.link]]\na = "gpu{g}"\nb = "cpu{cpus[g % 2]}"\nkind = "pcie"\n' for g in range(count)]
    rows.append(f'[[node.link]]\na = "cpu{cpus[0]}"\nb = "cpu{cpus[1]}"\nkind = "cpu"\n')
    head = 'schema = 1\nname = "m"\nsource = "test"\n[gpu]\nmodel = "V100"\n[[node]]\n'
    return head + f'ranks = {count}\nsource = "test"\n' + "".join(rows[i] for i in order)


@given(meshes(), st.data())
def test_fingerprint_sees_numbers_and_not_names_or_order(
    mesh: tuple[int, list[tuple[int, int, int, int]]], data: st.DataObject
) -> None:
    count, links = mesh
    rows = len(links) + count + 1
    order = data.draw(st.permutations(range(rows)))
    plain = build_cluster(parse_machine(described(count, links, [0, 1], list(range(rows))), "x"))
    turned = build_cluster(parse_machine(described(count, links, [41, 7], order), "x"))
    assert plain.fingerprint == turned.fingerprint
    assert build_cluster(parse_machine(to_toml(plain.machine), "x")).fingerprint == plain.fingerprint
    if links:
        victim = data.draw(st.integers(0, len(links) - 1))
        a, b, lanes, ns = links[victim]
        for change in ((a, b, lanes + 1, ns), (a, b, lanes, ns + 1)):
            other = [*links[:victim], change, *links[victim + 1 :]]
            changed = build_cluster(parse_machine(described(count, other, [0, 1], list(range(rows))), "x"))
            assert changed.fingerprint != plain.fingerprint


@given(meshes())
def test_paths_are_chains_and_reverse_paths_cost_the_same(mesh: tuple[int, list[tuple[int, int, int, int]]]) -> None:
    count, links = mesh
    cluster = build_cluster(parse_machine(described(count, links, [0, 1], list(range(len(links) + count + 1))), "x"))
    for a in range(count):
        for b in range(a + 1, count):
            there, back = ([cluster.links[i] for i in cluster.path(*p)] for p in ((a, b), (b, a)))
            assert all(x.dst == y.src for x, y in pairwise(there))
            assert (there[0].src, there[-1].dst) == (f"n0/gpu{a}", f"n0/gpu{b}")
            assert sum(x.latency for x in there) == sum(x.latency for x in back)
            assert cluster.label(a, b) == cluster.label(b, a)


@given(st.sampled_from(SAMPLES), st.data())
@settings(max_examples=200)
def test_damaged_files_are_read_or_refused_never_crash(sample: Path, data: st.DataObject) -> None:
    text = sample.read_text()
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text)))
        length = data.draw(st.sampled_from([0, 1, 3, 40, 400]))
        new = data.draw(st.sampled_from(["", "X", "\t", "\n", "NV0", "\x1b[4m", '"', "<", "-1", "9" * 30, "é", "\x00"]))
        text = text[:at] + new + text[at + length :]
    with suppress(ZipplanError):
        build_cluster(import_text(text, name=sample.name, gpu="H100").machine)


@given(st.sampled_from(["hgx-h100", "gh200-quad", "lab", "loopback", "p5"]), st.data())
@settings(max_examples=200)
def test_damaged_machine_files_are_read_or_refused_never_crash(name: str, data: st.DataObject) -> None:
    lines = to_toml(load_machine(name)).split("\n")
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(lines) - 1))
        key = lines[at].partition(" = ")[0]
        value = data.draw(
            st.sampled_from(["-1", "0", "nan", '""', '"gpu0"', "[]", "true", '"1GB/s"', '"0ns"', "4096", "99999999"])
        )
        lines[at] = data.draw(st.sampled_from(["", f"{key} = {value}", "[node]", "[[node.link]]", "[override]"]))
    with suppress(ZipplanError):
        build_cluster(parse_machine("\n".join(lines), name), nodes=2)


@given(st.text(max_size=300))
def test_any_text_as_toml_is_refused_cleanly(text: str) -> None:
    with pytest.raises(TopologyError, match=r"x\.toml"):
        parse_machine(text, "x.toml")


@given(st.integers(1, 10**15), st.booleans())
def test_exact_rates_parse_back(rate: int, bits: bool) -> None:
    assert parse_bandwidth(exact_rate(rate, bits)) == rate


@given(st.integers(0, 10**15))
def test_exact_times_parse_back(time: int) -> None:
    assert parse_time(exact_time(time)) == time
