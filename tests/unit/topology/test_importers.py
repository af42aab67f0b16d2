"""Every sample file is read into the graph that it describes, or refused for the reason given here."""

from __future__ import annotations

from pathlib import Path

import pytest

from zipplan.planner.errors import TopologyError
from zipplan.planner.topology import (
    Imported,
    bisection,
    build_cluster,
    import_text,
    load_described,
    load_machine,
    parse_machine,
)
from zipplan.planner.topology.combine import with_fabric
from zipplan.planner.topology.describe import counts, path_classes
from zipplan.planner.topology.write import to_toml

SAMPLES = Path(__file__).parents[2] / "fixtures" / "topologies"

# file: (--gpu or None where the text tells, devices, path classes of the pairs of a node, bisection in GB/s)
EXPECTED = {
    "iblinkinfo_4node_v100.txt": ("V100", {"cpu": 4, "gpu": 4, "nic": 4, "pci": 4, "switch": 1}, {}, 25),
    "ibnetdiscover_hdr_3level_small.txt": ("H100", {"cpu": 10, "gpu": 10, "nic": 10, "pci": 10, "switch": 8}, {}, 50),
    "nccl_topo_aws_p4d.xml": (
        None,
        {"cpu": 2, "gpu": 8, "nic": 4, "pci": 4, "switch": 1},
        {"PHB": 8, "PIX": 4, "SYS": 16},
        10,
    ),
    "nccl_topo_azure_ndv2.xml": ("V100", {"cpu": 2, "gpu": 8, "nic": 1, "switch": 1}, {"PHB": 12, "SYS": 16}, 10),
    "nccl_topo_azure_ndv4.xml": (
        "A100",
        {"cpu": 4, "gpu": 8, "hub": 1, "nic": 8, "pci": 4, "switch": 1},
        {"PIX": 4, "SYS": 24},
        32,
    ),
    "nccl_topo_azure_ndv5.xml": (
        "H100",
        {"cpu": 2, "gpu": 8, "nic": 8, "pci": 8, "switch": 1},
        {"PHB": 12, "SYS": 16},
        22,
    ),
    "nccl_topo_oci_a100_flattened.xml": (
        "A100",
        {"cpu": 4, "gpu": 8, "hub": 1, "nic": 8, "pci": 4, "switch": 1},
        {"PIX": 4, "SYS": 24},
        32,
    ),
    "nccl_topo_oci_b4_flattened.xml": (
        "A100",
        {"cpu": 4, "gpu": 8, "hub": 1, "nic": 8, "pci": 4, "switch": 1},
        {"PIX": 4, "SYS": 24},
        48,
    ),
    "rccl_topo_mi100_4p3l_2h.xml": (
        None,
        {"cpu": 4, "gpu": 8, "hub": 1, "nic": 1, "pci": 8, "switch": 1},
        {"NVL": 12, "SYS": 16},
        32,
    ),
    "rccl_topo_mi250_8p1h.xml": (
        None,
        {"cpu": 2, "gpu": 8, "nic": 4, "pci": 14, "switch": 1},
        {"NVB": 16, "NVL": 12},
        424,
    ),
    "rccl_topo_mi300x_8p.xml": (None, {"cpu": 2, "gpu": 8, "nic": 8, "pci": 24, "switch": 1}, {"NVL": 28}, 1046),
    "rccl_topo_mi350_8p_950.xml": (None, {"cpu": 2, "gpu": 8, "nic": 8, "pci": 16, "switch": 1}, {"NVL": 28}, 1256),
    "rccl_topo_vega20_8p_pcie.xml": (
        None,
        {"cpu": 1, "gpu": 8, "nic": 1, "pci": 10, "switch": 1},
        {"PHB": 16, "PXB": 12},
        15.75,
    ),
    "rocm_linktype_8gpu_full_xgmi.txt": ("MI300X", {"cpu": 1, "gpu": 8}, {"NVL": 28}, 1276),
    "smi_topo_2gpu_nv2.txt": ("V100", {"cpu": 1, "gpu": 2}, {"NVL": 1}, 65.75),
    "smi_topo_2gpu_phb.txt": ("L40S", {"cpu": 1, "gpu": 2}, {"PHB": 1}, 31.5),
    "smi_topo_4xGH200_nv6.txt": ("GH200", {"cpu": 4, "gpu": 4, "hub": 1}, {"NVL": 6}, 632),
    "smi_topo_8gpu_all_sys.txt": ("L40S", {"cpu": 8, "gpu": 8, "hub": 1}, {"SYS": 28}, 64),
    "smi_topo_8x4090_dual_socket_phb_pairs.txt": ("RTX4090", {"cpu": 2, "gpu": 8}, {"PHB": 16, "SYS": 12}, 79),
    "smi_topo_8xA100_nv12_stas.txt": (None, {"cpu": 2, "gpu": 8, "nvswitch": 1}, {"NVL": 28}, 1216),
    "smi_topo_8xA100pcie_nv12_pairs.txt": ("A100", {"cpu": 2, "gpu": 8}, {"NVL": 4, "PHB": 8, "SYS": 16}, 16),
    "smi_topo_8xB200_16nic.txt": (
        "B200",
        {"cpu": 2, "gpu": 8, "idle_nic": 8, "nic": 8, "nvswitch": 1, "pci": 24, "switch": 1},
        {"NVL": 28},
        3616,
    ),
    "smi_topo_8xH100_9nic.txt": (
        "H100",
        {"cpu": 3, "gpu": 8, "hub": 1, "idle_nic": 1, "nic": 8, "nvswitch": 1, "pci": 8, "switch": 1},
        {"NVL": 28},
        1816,
    ),
    "smi_topo_8xH100_nv18_stas.txt": ("H100", {"cpu": 2, "gpu": 8, "nvswitch": 1}, {"NVL": 28}, 1816),
    "smi_topo_dell_c4140_4xV100_nv2.txt": ("V100", {"cpu": 1, "gpu": 4, "nic": 1, "switch": 1}, {"NVL": 6}, 231.5),
    "smi_topo_dgx1v_4hca.txt": (
        "V100",
        {"cpu": 2, "gpu": 8, "nic": 4, "pci": 4, "switch": 1},
        {"NVB": 12, "NVL": 16},
        166,
    ),
    "smi_topo_dgx2_16xV100_nv6_partial.txt": (
        "V100",
        {"cpu": 2, "gpu": 16, "nic": 10, "nvswitch": 1, "pci": 3, "switch": 1},
        {"NVL": 120},
        1278.75,
    ),
    "smi_topo_dgxA100_12nic_partial.txt": (
        None,
        {"cpu": 3, "gpu": 8, "hub": 1, "nic": 12, "nvswitch": 1, "pci": 10, "switch": 1},
        {"NVL": 28},
        1216,
    ),
    "smi_topo_g5_48xlarge.txt": ("A10G", {"cpu": 1, "gpu": 8}, {"PHB": 28}, 126),
    "smi_topo_gb200_4gpu_partial.txt": (
        "GB200",
        {"cpu": 3, "gpu": 4, "hub": 1, "nic": 6, "nvswitch": 1, "switch": 1},
        {"NVL": 6},
        1816,
    ),
    "smi_topo_p4d_24xlarge.txt": (None, {"cpu": 2, "gpu": 8, "nvswitch": 1}, {"NVL": 28}, 1216),
    "smi_topo_p5_48xlarge.txt": ("H100", {"cpu": 2, "gpu": 8, "nvswitch": 1}, {"NVL": 28}, 1816),
    "smi_topo_p5_48xlarge_with_ansi_escapes.txt": ("H100", {"cpu": 2, "gpu": 8, "nvswitch": 1}, {"NVL": 28}, 1816),
    "smi_topo_polaris_4xA100_nv4.txt": ("A100", {"cpu": 4, "gpu": 4, "hub": 1, "nic": 2, "switch": 1}, {"NVL": 6}, 432),
}
REFUSED = {"nccl_topo_aws_g5_48xl.xml": "line 3: <cpu> without arch"}


def test_every_sample_has_an_expectation() -> None:
    assert {path.name for path in SAMPLES.iterdir()} == set(EXPECTED) | set(REFUSED)


@pytest.mark.parametrize("name", EXPECTED)
def test_sample_becomes_the_expected_graph(name: str) -> None:
    gpu, devices, classes, width = EXPECTED[name]
    described = load_described(str(SAMPLES / name), gpu=gpu)
    cluster = build_cluster(described.machine)
    assert {kind: n for kind, n in counts(cluster).items() if n} == devices
    assert path_classes(cluster) == classes
    assert bisection(cluster) == pytest.approx(width * 1e9)
    assert described.read
    assert described.unknown


@pytest.mark.parametrize("name", REFUSED)
def test_sample_is_refused_with_the_reason(name: str) -> None:
    with pytest.raises(TopologyError, match=REFUSED[name]):
        load_described(str(SAMPLES / name), gpu="A10G")


@pytest.mark.parametrize("name", EXPECTED)
def test_written_toml_loads_back_to_the_same_fingerprint(name: str) -> None:
    described = load_described(str(SAMPLES / name), gpu=EXPECTED[name][0])
    text = to_toml(described)
    assert build_cluster(parse_machine(text, "out.toml")).fingerprint == build_cluster(described.machine).fingerprint
    assert "# Assumed:" in text


@pytest.mark.parametrize("name", [n for n in EXPECTED if EXPECTED[n][0] is not None])
def test_unknown_gpu_model_is_asked_for(name: str) -> None:
    with pytest.raises(TopologyError, match="--gpu"):
        load_described(str(SAMPLES / name))


def test_ansi_and_plain_text_are_the_same_machine() -> None:
    plain, escaped = (
        build_cluster(load_described(str(SAMPLES / f"smi_topo_p5_48xlarge{end}.txt"), gpu="H100").machine)
        for end in ("", "_with_ansi_escapes")
    )
    assert plain.fingerprint == escaped.fingerprint


def test_each_gpu_uses_the_nic_beside_it() -> None:
    described = load_described(str(SAMPLES / "smi_topo_8xH100_9nic.txt"), gpu="H100")
    cluster = build_cluster(described.machine, nodes=2)
    assert [cluster.rail_of(rank) for rank in range(8)] == [7, 6, 5, 4, 3, 2, 1, 0]
    assert any("NIC0" in text and "left out" in text for text in described.assumed)


def test_fabric_and_node_file_combine() -> None:
    node = load_described(str(SAMPLES / "smi_topo_dell_c4140_4xV100_nv2.txt"), gpu="V100")
    fabric = load_described(str(SAMPLES / "iblinkinfo_4node_v100.txt"), gpu="V100")
    cluster = build_cluster(with_fabric(node, fabric).machine, nodes=4)
    assert (cluster.ranks, cluster.label(0, 1), cluster.label(0, 5)) == (16, "NVL", "NET")
    assert [cluster.links[i].dst for i in cluster.path(0, 4) if cluster.links[i].kind == "nic"] == [
        "MF0;switch1:MQM8700.U1",
        "n1/nic0",
    ]


def test_three_level_fabric_routes_over_the_spine() -> None:
    described = load_described(str(SAMPLES / "ibnetdiscover_hdr_3level_small.txt"), gpu="A100")
    cluster = build_cluster(described.machine)
    hops = [cluster.links[i].src for i in cluster.path(0, 9) if cluster.links[i].kind == "fabric"]
    assert [name.split(":")[0].split(";")[1] for name in hops] == ["SW163", "SW162", "SW162", "SW162"]
    assert any("SHARP" in text for text in described.read)


def test_entries_that_lost_their_tab_are_taken_apart() -> None:
    text = (SAMPLES / "smi_topo_8xH100_9nic.txt").read_text().replace("SYS\tNODE", "SYSNODE", 5)
    plain = load_described(str(SAMPLES / "smi_topo_8xH100_9nic.txt"), gpu="H100")
    assert import_text(text, name="glued.txt", gpu="H100").machine.node[0].link == plain.machine.node[0].link


def test_model_is_told_by_a_list_of_gpus_beside_the_matrix() -> None:
    text = (SAMPLES / "smi_topo_p5_48xlarge.txt").read_text()
    for line, model in (
        ("GPU 0: NVIDIA H200 (UUID: GPU-0)", "H200"),
        ("GPU 0,1,2,3,4,5,6,7: NVIDIA B200", "B200"),
        ("GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-0)", "A100-40GB"),
    ):
        described = import_text(f"{line}\n{text}", name="m.txt")
        assert described.machine.gpu is not None
        assert described.machine.gpu.facts is not None
        assert described.machine.gpu.facts.name == model


def rocm_text(types: str, hops: str, numa: str) -> str:
    def table(title: str, off: str) -> str:
        rows = [f"GPU{i}   " + " ".join("0" if i == j else off for j in range(4)) for i in range(4)]
        return "\n".join([f"====== {title} ======", "       GPU0 GPU1 GPU2 GPU3", *rows, ""])

    homes = "\n".join(numa.format(i=i, n=i // 2) for i in range(4))
    parts = [table("Weight between two GPUs", "15"), table("Hops between two GPUs", hops)]
    return "\n".join([*parts, table("Link Type between two GPUs", types), "==== Numa Nodes ====", homes])


@pytest.mark.parametrize("numa", ["GPU[{i}]\t\t: (Topology) Numa Node: {n}", "GPU {i}    : (Topology) Numa Node: {n}"])
@pytest.mark.parametrize(("types", "hops", "label"), [("XGMI", "1", "NVL"), ("XGMI", "2", "PHB"), ("PCIE", "2", "PHB")])
def test_rocm_smi_with_all_sections(types: str, hops: str, label: str, numa: str) -> None:
    cluster = build_cluster(import_text(rocm_text(types, hops, numa), name="r.txt", gpu="MI250").machine)
    assert cluster.label(0, 1) == label
    assert counts(cluster)["cpu"] == 2


def test_virtual_bridges_and_sleeping_links_do_not_slow_the_plan_down() -> None:
    text = (SAMPLES / "nccl_topo_azure_ndv5.xml").read_text()
    bridge = 'class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16"'
    described = import_text(
        text.replace(bridge, bridge.replace("32.0", "2.5").replace("16", "1")), name="v.xml", gpu="H100"
    )
    plain = load_described(str(SAMPLES / "nccl_topo_azure_ndv5.xml"), gpu="H100")
    assert build_cluster(described.machine).fingerprint == build_cluster(plain.machine).fingerprint
    assert any("8 PCIe links report 2.5 or 5 GT/s" in text for text in described.assumed)


def tray(host: str, first: int) -> str:
    gpus = "".join(
        f'<pci busid="000{i}:06:00.0" class="0x030200" vendor="0x10de" device="0x2941" link_speed="32.0 GT/s PCIe" '
        f'link_width="16"><gpu dev="{i}" sm="100" rank="{first + i}" gdr="1">'
        '<nvlink target="fffffff:ff:ff.0" count="18" tclass="0x068000"/><c2c bw="44712" count="5"/></gpu></pci>'
        for i in range(4)
    )
    port = '<nic><net name="eth0" dev="0" speed="10000"/></nic>'
    return f'<cpu host_hash="{host}" numaid="0" arch="arm64">{gpus}{port}</cpu>'


def test_two_trays_of_one_nvlink_domain() -> None:
    text = f'<system version="1">{tray("0x1", 0)}{tray("0x2", 4)}</system>'
    cluster = build_cluster(import_text(text, name="two.xml").machine)
    assert (cluster.ranks, path_classes(cluster)) == (8, {"NVL": 28})
    assert {link.kind for link in cluster.links if "cpu" in link.dst and "gpu" in link.src} == {"pcie", "c2c"}
    assert counts(cluster)["nic"] == 1, "a port without PCI path is listed below every CPU, and is one port"


def rail_fabric(hosts: int, rails: int) -> str:
    """ibnetdiscover text: leaf r has adapter r of every host, two split cables to one spine, and a SHARP node."""
    cables: list[tuple[str, int, str, int, str]] = []
    names = {"S-00f": "MF0;spine:MQM9700/U1"}
    for rail in range(rails):
        leaf = f"S-0a{rail}"
        names |= {leaf: f"MF0;leaf{rail}:MQM9700/U1", f"H-0c{rail}": "Mellanox Technologies Aggregation Node"}
        cables += [(leaf, 60 + k, "S-00f", 2 * rail + k, "2xNDR") for k in (0, 1)]
        cables.append((leaf, 65, f"H-0c{rail}", 1, "4xHDR"))
        for host in range(hosts):
            adapter = f"H-0b{host}{rail}"
            names[adapter] = f"dgx{host} mlx5_{rail}"
            cables.append((leaf, host + 1, adapter, 1, "4xNDR"))
    lines = []
    for device, name in names.items():
        lines.append(f'{"Switch" if device[0] == "S" else "Ca"} 65 "{device}"\t# "{name}" base port 0 lid 1 lmc 0')
        for a, p, b, q, rate in cables:
            for one, port, other, far in ((a, p, b, q), (b, q, a, p)):
                if one == device:
                    lines.append(f'[{port}]\t"{other}"[{far}]({other[2:]})\t# "{names[other]}" lid 2 {rate} s=1 w=2')
        lines.append("")
    return "\n".join(lines)


def test_rails_of_a_real_fabric_join_an_nvlink_node() -> None:
    fabric = import_text(rail_fabric(hosts=3, rails=8), name="ib.txt", gpu="H100")
    assert "9 switches, 3 hosts, 24 adapter ports, 48 cables" in fabric.read[0]
    cluster = build_cluster(with_fabric(Imported(load_machine("hgx-h100"), ""), fabric).machine)
    assert (cluster.nodes, cluster.label(0, 8), cluster.label(0, 9)) == (3, "NET", "PXN")
    trunks = {link.bandwidth for link in cluster.links if link.kind == "fabric"}
    assert trunks == {2 * 25e9}, "two cables of half a port each"


def test_fabric_that_contradicts_itself_is_refused() -> None:
    text = rail_fabric(hosts=2, rails=1)
    twice = text.replace('[1]\t"H-0b00"[1]', '[1]\t"H-0b10"[1]', 1)
    with pytest.raises(TopologyError, match=r"port 1 of .* goes to .* here, and to"):
        import_text(twice, name="ib.txt", gpu="H100")
    with pytest.raises(TopologyError, match="no rate; expected a rate such as 4xHDR"):
        import_text(text.replace("4xNDR", ""), name="ib.txt", gpu="H100")


@pytest.mark.parametrize(
    ("cpu", "rate"),
    [
        ('vendor="GenuineIntel" familyid="6" modelid="79"', 6),
        ('vendor="GenuineIntel" familyid="6" modelid="106"', 10),
        ('vendor="GenuineIntel" familyid="6" modelid="143"', 22),
        ('vendor="GenuineIntel" familyid="6" modelid="173"', 40),
        ('vendor="GenuineIntel" familyid="6" modelid="207"', 40),
        ('vendor="AuthenticAMD" familyid="143" modelid="49"', 16),
        ('vendor="AuthenticAMD" familyid="25" modelid="17"', 24),
        ('vendor="AuthenticAMD" familyid="26" modelid="2"', 32),
    ],
)
def test_rate_between_sockets_follows_the_cpu_as_nccl_counts_it(cpu: str, rate: int) -> None:
    gpus = "".join(
        f'<cpu numaid="{n}" arch="x86_64" {cpu}><pci busid="0{n}:00.0" class="0x030200" device="0x2330">'
        f'<gpu dev="{n}" sm="90"><c2c bw="44712" count="5"/></gpu></pci></cpu>'
        for n in range(2)
    )
    cluster = build_cluster(import_text(f'<system version="1">{gpus}</system>', name="c.xml").machine)
    rates = {link.kind: link.bandwidth for link in cluster.links}
    assert rates["cpu"] == rate * 10**9
    assert rates["c2c"] == 5 * 44_712 * 10**6
