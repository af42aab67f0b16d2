"""Failures that people met with other tools when reading files, each under its number among the field cases."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from zipplan.planner.errors import TopologyError
from zipplan.planner.topology import build_cluster, import_text, load_machine
from zipplan.planner.topology.check import check
from zipplan.planner.topology.combine import compare
from zipplan.planner.topology.describe import rate_between
from zipplan.planner.topology.importers import Imported
from zipplan.planner.topology.model import Machine, Override


def matrix_text(
    rows: Sequence[Sequence[str]], nics: Sequence[str] = (), affinity: Sequence[tuple[str, str]] | None = None
) -> str:
    """An `nvidia-smi topo -m` text; `rows` has the entries of the GPU rows, NIC columns after the GPU columns."""
    gpus = [f"GPU{i}" for i in range(len(rows))]
    lines = ["\t" + "\t".join([*gpus, *nics, "CPU Affinity", "NUMA Affinity"])]
    for i, row in enumerate(rows):
        cpus, numa = affinity[i] if affinity else ("0-31", "0")
        lines.append("\t".join([gpus[i], *row, cpus, numa]))
    return "\n".join(lines) + "\n"


def uniform(count: int, label: str) -> list[list[str]]:
    """All pairs of `count` GPUs with one label."""
    return [["X" if i == j else label for j in range(count)] for i in range(count)]


XML = """<system version="1">
  <cpu numaid="0" affinity="ff" arch="x86_64" vendor="AuthenticAMD" familyid="143" modelid="49">
    <pci busid="0000:10:00.0" class="0x060400" link_speed="16 GT/s" link_width="16">
      <pci busid="0000:11:00.0" class="0x030200" vendor="0x10de" device="0x20b2" link_speed="16 GT/s" link_width="16">
        <gpu dev="0" sm="80" rank="0" gdr="1">
          <nvlink target="0000:21:00.0" count="12" tclass="0x030200"/>
        </gpu>
      </pci>
      <pci busid="0000:12:00.0" class="0x020700" link_speed="16 GT/s" link_width="16">
        <nic><net name="mlx5_0" dev="0" speed="200000" port="1"/></nic>
      </pci>
    </pci>
    <pci busid="0000:21:00.0" class="0x030200" vendor="0x10de" device="0x20b2" link_speed="16 GT/s" link_width="16">
      <gpu dev="1" sm="80" rank="1" gdr="1">
        <nvlink target="0000:11:00.0" count="12" tclass="0x030200"/>
      </gpu>
    </pci>
  </cpu>
</system>
"""


def degraded(machine: Machine, *overrides: dict[str, object]) -> Machine:
    rows = tuple(Override.model_validate({"source": "test", **row}) for row in overrides)
    return machine.model_copy(update={"override": rows})


def test_f085_two_sources_that_disagree_are_listed_pair_by_pair() -> None:
    box = import_text(matrix_text(uniform(2, "NODE")), name="a.txt", gpu="A100")
    xml = import_text(re.sub(r"<nvlink.*/>", "", XML), name="b.xml")
    assert compare(box, xml) == [
        {"pair": "gpu0-gpu1", "a": "NODE (nvidia-smi topo -m)", "b": "PHB (NCCL topology XML)"},
        {"pair": "gpu0-nic0", "a": "absent (nvidia-smi topo -m)", "b": "PIX (NCCL topology XML)"},
        {"pair": "gpu1-nic0", "a": "absent (nvidia-smi topo -m)", "b": "PHB (NCCL topology XML)"},
    ]


@pytest.mark.parametrize("label", ["NV1", "NV18", "PIX", "PXB", "PHB", "NODE", "SYS"])
def test_f086_known_labels_are_kept_and_mapped(label: str) -> None:
    described = import_text(matrix_text(uniform(2, label)), name="m.txt", gpu="H100")
    expected = {"NV1": "NVL", "NV18": "NVL", "NODE": "PHB"}.get(label, label)
    assert described.labels == {("gpu0", "gpu1"): label}
    assert build_cluster(described.machine).label(0, 1) in (expected, "PIX" if label == "PXB" else expected)


def test_f086_not_available_counts_as_the_slowest_class_and_says_so() -> None:
    described = import_text(matrix_text(uniform(2, "N/A")), name="m.txt", gpu="H100")
    assert build_cluster(described.machine).label(0, 1) == "SYS"
    assert any("GPU0-GPU1" in text for text in described.unknown)


@pytest.mark.parametrize("token", ["NV0", "OK", "NV99", "pix", "GPU"])
def test_f086_unknown_token_names_row_column_and_text(token: str) -> None:
    rows = uniform(4, "SYS")
    rows[2][1] = token
    with pytest.raises(TopologyError, match=rf"row GPU2, column GPU1: unknown entry '{token}'"):
        import_text(matrix_text(rows), name="m.txt", gpu="H100")


def test_f088_wide_matrix_with_legend_carriage_returns_and_escapes() -> None:
    nics = [f"NIC{i}" for i in range(32)]
    rows = [[*row, *["PIX" if n == g else "NODE" for n in range(32)]] for g, row in enumerate(uniform(8, "NV18"))]
    text = matrix_text(rows, nics).replace("\tGPU0", "\t\x1b[4mGPU0", 1)
    text = text.replace("NUMA Affinity", "NUMA Affinity\x1b[0m")
    for n, nic in enumerate(nics):
        near = [["NODE", "PIX"][g == n] for g in range(8)]
        text += "\t".join([nic, *near, *["X" if m == n else "NODE" for m in range(32)]]) + "\n"
    text += "\nLegend:\n\n  X    = Self\n  SYS  = Connection traversing PCIe\n\nNIC Legend:\n\n"
    text += "".join(f"  NIC{i}: mlx5_{i}\n" for i in range(32))
    described = import_text(text.replace("\n", "\r\n"), name="wide.txt", gpu="H100")
    cluster = build_cluster(described.machine, nodes=2)
    assert [cluster.rail_of(rank) for rank in range(8)] == list(range(8))
    assert len(cluster.templates[0].idle_nics) == 24
    assert any("nic31 = mlx5_31" in text for text in described.read)


def test_f088_asymmetric_entries_are_refused_with_both_values() -> None:
    rows = uniform(3, "NV12")
    rows[1][2] = "NV6"
    with pytest.raises(TopologyError, match=r"row GPU1, column GPU2 says 'NV6', row GPU2, column GPU1 says 'NV12'"):
        import_text(matrix_text(rows), name="m.txt", gpu="A100")


def test_f089_partial_nvlink_leaves_the_third_gpu_on_the_slow_path() -> None:
    rows = [["X", "NV12", "SYS"], ["NV12", "X", "SYS"], ["SYS", "SYS", "X"]]
    home = [("0-31", "0"), ("0-31", "0"), ("32-63", "1")]
    described = import_text(matrix_text(rows, affinity=home), name="m.txt", gpu="A100")
    cluster = build_cluster(described.machine)
    assert [cluster.label(*pair) for pair in ((0, 1), (1, 2), (2, 0))] == ["NVL", "SYS", "SYS"]
    assert rate_between(cluster, 0, 1) == 300e9
    assert rate_between(cluster, 1, 2) == rate_between(cluster, 2, 0) == 16e9
    assert any(f.rule == "gpu-without-nvlink" and "gpu2" in f.text for f in check(described, cluster))


def test_f090_cube_mesh_subset_without_a_closed_nvlink_ring() -> None:
    cluster = build_cluster(load_machine("dgx-1v"), gpus=[0, 1, 2, 3, 7])
    direct = {b for b in range(4) if cluster.label(4, b) == "NVL"}
    assert direct == {3}, "GPU 7 has one direct neighbour left, so no ring of direct NVLinks can pass through it"
    assert [cluster.label(4, b) for b in (0, 1, 2)] == ["NVB", "NVB", "NVB"]
    hop = cluster.links[cluster.path(4, 0)[0]]
    assert (hop.src, hop.dst) == ("n0/gpu7", "n0/gpu3"), "only GPUs of the group pass traffic on"


@pytest.mark.parametrize("numa", ["-1", "N/A"])
def test_f092_virtual_machine_is_named_and_still_works(numa: str) -> None:
    rows = [[*row, *["PHB"] * 8] for row in uniform(8, "PHB")]
    text = matrix_text(rows, [f"NIC{i}" for i in range(8)], [("0-95", numa)] * 8)
    described = import_text(text, name="vm.txt", gpu="A100")
    assert any("virtualised" in text and "Supply" in text for text in described.warnings)
    cluster = build_cluster(described.machine, nodes=2)
    assert sorted({cluster.rail_of(rank) for rank in range(8)}) == list(range(8)), "the GPUs share out the NICs"
    assert cluster.path(0, 15)


def test_f092_numa_minus_one_in_xml_is_no_index() -> None:
    described = import_text(XML.replace('numaid="0"', 'numaid="-1"'), name="vm.xml")
    assert any("virtualised" in text for text in described.warnings)
    assert build_cluster(described.machine).label(0, 1) == "NVL"


@pytest.mark.parametrize(
    ("element", "attribute", "line"),
    [
        ("system", "version", 1),
        ("cpu", "numaid", 2),
        ("cpu", "arch", 2),
        ("cpu", "vendor", 2),
        ("pci", "busid", 3),
        ("pci", "class", 3),
        ("nvlink", "target", 6),
        ("nvlink", "count", 6),
        ("nvlink", "tclass", 6),
    ],
)
def test_f093_missing_attribute_is_named_with_line_and_element(element: str, attribute: str, line: int) -> None:
    broken = re.sub(rf'(<{element}\b[^>]*?) {attribute}="[^"]*"', r"\1", XML, count=1)
    assert broken != XML
    with pytest.raises(TopologyError, match=f"line {line}: <{element}> without {attribute}"):
        import_text(broken, name="t.xml", gpu="A100")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("<system ", "<sys ", "line 19: broken XML: mismatched tag"),
        ("0000:21:00.0", "0000:11:00.0", "already on line 4"),
        ('count="12" tclass="0x030200"/>\n        </gpu>', 'count="6" tclass="0x030200"/>\n        </gpu>', "way back"),
        ("<system ", "<topology><system ", "broken XML"),
        ("</system>", "", "broken XML: no element found"),
        ('speed="200000"', 'speed="fast"', "expected a whole number"),
        ("<system", "<!DOCTYPE x [<!ENTITY a 'b'>]>\n<system", "document type"),
        ('target="0000:21:00.0"', 'target="0000:99:00.0"', "no GPU of this file"),
    ],
)
def test_f093_broken_xml_is_an_error_at_load(old: str, new: str, message: str) -> None:
    assert old in XML
    with pytest.raises(TopologyError, match=message):
        import_text(XML.replace(old, new), name="t.xml", gpu="A100")


def test_f093_wrong_root() -> None:
    with pytest.raises(TopologyError, match="line 1: root element <graphs>, expected <system>"):
        import_text(XML.replace("system", "graphs"), name="t.xml")


def test_f093_no_gpu_at_all() -> None:
    text = '<system version="1"><cpu numaid="0" arch="x86_64" vendor="GenuineIntel"/></system>'
    with pytest.raises(TopologyError, match="no GPU in it"):
        import_text(text, name="t.xml", gpu="A100")


def test_f094_degraded_links_are_named_and_count() -> None:
    machine = degraded(
        load_machine("hgx-h100"),
        {"node": 1, "link": "gpu5-nvswitch0", "bandwidth": "300GB/s"},
        {"node": 0, "link": "nic2-fabric", "bandwidth": "200Gb/s"},
    )
    cluster = build_cluster(machine, nodes=2)
    whole = build_cluster(load_machine("hgx-h100"), nodes=2)
    assert rate_between(cluster, 8 + 5, 8 + 6) / rate_between(whole, 8 + 5, 8 + 6) == pytest.approx(12 / 18)
    assert rate_between(cluster, 2, 10) / rate_between(whole, 2, 10) == 0.5
    found = {(f.rule, f.text.split(" has ")[0]) for f in check(Imported(machine, ""), cluster)}
    assert found == {("degraded-link", "node 1: gpu5"), ("degraded-link", "node 0: nic2")}
    assert check(Imported(machine, ""), whole) == []


def test_f096_management_and_bonded_adapters_stay_out_of_the_data_path() -> None:
    adapters = [("eth0", 25000), ("roce0", 50000), ("mlx5_bond_0", 200000), ("mlx5_9", 200000)]
    extra = "".join(
        f'<pci busid="0000:3{i}:00.0" class="0x020000" link_speed="16 GT/s" link_width="16">'
        f'<nic><net name="{name}" dev="{i + 1}" speed="{speed}" port="1"/></nic></pci>'
        for i, (name, speed) in enumerate(adapters)
    )
    described = import_text(XML.replace("</cpu>", extra + "</cpu>"), name="t.xml")
    listed = next(text for text in described.assumed if "left out" in text)
    assert all(name in listed for name in ("eth0", "roce0", "mlx5_bond_0"))
    cluster = build_cluster(described.machine, nodes=2)
    assert cluster.templates[0].nics == ["nic0", "nic4"]
