"""Texts as people post them: quoted, fenced, logged, wrapped, in another encoding. All must read as the plain file."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from zipplan.planner.errors import TopologyError
from zipplan.planner.topology import build_cluster, load_described
from zipplan.planner.topology.importers import import_text

SAMPLES = Path(__file__).parents[2] / "fixtures" / "topologies"
ONE_OF_EACH = (
    "smi_topo_8xH100_9nic.txt", "smi_topo_p5_48xlarge_with_ansi_escapes.txt", "nccl_topo_azure_ndv5.xml",
    "rocm_linktype_8gpu_full_xgmi.txt", "ibnetdiscover_hdr_3level_small.txt", "iblinkinfo_4node_v100.txt",
)  # fmt: skip


def each_line(before: str) -> Callable[[str], bytes]:
    return lambda text: "".join(f"{before}{line}\n" for line in text.splitlines()).encode()


POSTED: dict[str, Callable[[str], bytes]] = {
    "fence": lambda t: f"Here it is:\n\n```\n{t}\n```\nthanks!\n".encode(),
    "quote": each_line("> "),
    "mpirun": each_line("[1,0]<stdout>:"),
    "srun -l": each_line("0: "),
    "pdsh": each_line("node01: "),
    "log": each_line("2024-05-01T10:00:00.123Z "),
    "prompt": lambda t: f"root@node01:~# show\n{t}\nroot@node01:~# \n".encode(),
    "PowerShell": lambda t: t.replace("\n", "\r\n").encode("utf-16"),
    "UTF-16 without a mark": lambda t: t.encode("utf-16-le"),
    "UTF-8 with a mark": lambda t: t.encode("utf-8-sig"),
    "doubled line ends": lambda t: t.replace("\n", "\r\r\n").encode(),
    "old code page": lambda t: ("Rémi:\n" + t).encode("cp1252"),
}


@pytest.mark.parametrize("how", POSTED)
@pytest.mark.parametrize("file", ONE_OF_EACH)
def test_posted_text_reads_as_the_plain_file(file: str, how: str, tmp_path: Path) -> None:
    plain = SAMPLES / file
    text = re.sub(r"[^\x00-\x7f]", "?", plain.read_text())
    posted = tmp_path / f"posted{plain.suffix}"
    posted.write_bytes(POSTED[how](text))
    one, other = (build_cluster(load_described(str(path), gpu="H100").machine) for path in (plain, posted))
    assert one.fingerprint == other.fingerprint


MATRIX = """\
        GPU0    GPU1    GPU2    GPU3    NIC0    NIC1    CPU Affinity    NUMA Affinity
GPU0     X      NV12    NV12    NV12    SYS     PXB     48-63,176-191   3
GPU1    NV12     X      NV12    NV12    SYS     PXB     48-63,176-191   3
GPU2    NV12    NV12     X      NV12    PXB     SYS     16-31,144-159   1
GPU3    NV12    NV12    NV12     X      PXB     SYS     16-31,144-159   1
NIC0    SYS     SYS     PXB     PXB      X      SYS
NIC1    PXB     PXB     SYS     SYS     SYS      X
"""


@pytest.mark.parametrize("width", [47, 54, 58, 62, 64, 70, 79])
def test_a_matrix_that_a_narrow_terminal_broke_is_put_together_again(width: int) -> None:
    """Nothing gets lost: the header and the rows are whole again, whatever the width was."""
    lines = [line[i : i + width] for line in MATRIX.splitlines() for i in range(0, len(line), width)]
    whole, broken = (import_text(text, name="m.txt").machine for text in (MATRIX, "\n".join(lines) + "\n"))
    assert build_cluster(whole, nodes=2).fingerprint == build_cluster(broken, nodes=2).fingerprint


def test_a_markdown_table_is_a_matrix() -> None:
    text = "| |GPU0|GPU1|CPU Affinity|\n|---|---|---|---|\n|GPU0| X |NV4|0-15|\n|GPU1|NV4| X |0-15|\n"
    assert build_cluster(import_text(text, name="t.md", gpu="A6000").machine).label(0, 1) == "NVL"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (MATRIX + MATRIX, "a second matrix"),
        ("\tGPU0\tGPU1\nGPU0\t X \tOK\nGPU1\tOK\t X \n\n  CNS  = Chipset not supported\n", "topo -p2p"),
        (MATRIX.replace("    NIC1    CPU", "    CPU"), "row NIC1 has no column"),
        ('<graphs version="1"><graph id="0"/></graphs>', "NCCL_TOPO_DUMP_FILE writes the topology"),
    ],
)
def test_texts_that_look_alike_are_refused_with_the_way_out(text: str, says: str) -> None:
    with pytest.raises(TopologyError, match=says):
        import_text(text, name="m.txt", gpu="H100")


def test_one_gpu_without_affinities_and_mig() -> None:
    listed = "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-1)\n  MIG 3g.20gb     Device  0: (UUID: MIG-1)\n"
    described = import_text(listed + "\tGPU0\nGPU0\t X \n", name="m.txt")
    assert build_cluster(described.machine).ranks == 1
    assert described.machine.gpu is not None
    assert described.machine.gpu.model == "A100-40GB"
    assert any("MIG" in text for text in described.warnings)


def test_a_matrix_that_hides_nvlink_is_not_taken_for_a_pcie_machine_in_silence() -> None:
    """`nvidia-smi topo -mp` as in https://github.com/deepseek-ai/DeepEP/issues/60."""
    rows = [
        "\tGPU0\tGPU1\tNIC0\tCPU Affinity",
        "GPU0\t X \tNODE\tPIX\t0-47,96-143",
        "GPU1\tNODE\t X \tNODE\t0-47,96-143",
    ]
    described = import_text("\n".join(["~# nvidia-smi topo -mp", *rows, ""]), name="m.txt", gpu="H100")
    assert any("no entry shows one" in text for text in described.unknown)


def test_fewer_nvlinks_than_the_model_has_are_named() -> None:
    """NV8 everywhere is an H800 (https://github.com/NVIDIA/nccl/issues/933); as an H100 it would be a broken one."""
    text = MATRIX.replace("NV12", "NV8 ")
    for gpu, warned in (("H100", True), ("H800", False)):
        warnings = import_text(text, name="m.txt", gpu=gpu).warnings
        assert any("8 NVLinks per GPU, H100 comes with 18" in text for text in warnings) == warned


def test_the_written_toml_of_every_sample_loads_again(tmp_path: Path) -> None:
    """Comments quote the text that was read, and must not make the TOML look like it."""
    from zipplan.planner.topology.write import to_toml

    for file in ONE_OF_EACH:
        described = load_described(str(SAMPLES / file), gpu="H100")
        path = tmp_path / "node.toml"
        path.write_text(to_toml(described))
        assert (
            build_cluster(load_described(str(path)).machine).fingerprint == build_cluster(described.machine).fingerprint
        )


BUSES = [f"0000:{b}:00.0" for b in ("c1", "c6", "c9", "ce")]
WEIGHTS = {(0, 1): 15, (0, 2): 30, (0, 3): 15, (1, 2): 15, (1, 3): 30, (2, 3): 15}
LINKS = {(0, 1): 4, (0, 3): 2, (1, 2): 1, (2, 3): 4}


def amd_table(title: str, names: list[str], entry: Callable[[int, int], object], own: str) -> str:
    rows = [
        " ".join([a, *(own if i == j else str(entry(*sorted((i, j)))) for j in range(4))]) for i, a in enumerate(names)
    ]
    return "\n".join([title, "      " + " ".join(names), *rows, "", ""])


@pytest.mark.parametrize("tool", ["rocm-smi", "amd-smi"])
def test_amd_weights_tell_neighbours_where_hops_are_always_one(tool: str) -> None:
    """https://github.com/ROCm/rocm-systems/issues/5763: an MI250X quad whose hops say 1 for pairs without a link."""
    amd = tool == "amd-smi"
    names = BUSES if amd else [f"GPU{i}" for i in range(4)]
    titles = ("WEIGHT TABLE:", "HOPS TABLE:", "LINK TYPE TABLE:") if amd else tuple(
        f"===== {t} between two GPUs =====" for t in ("Weight", "Hops", "Link Type")
    )  # fmt: skip
    text = amd_table(titles[0], names, lambda i, j: WEIGHTS[i, j], "0")
    text += amd_table(titles[1], names, lambda i, j: 1, "0")
    text += amd_table(titles[2], names, lambda i, j: "XGMI", "SELF" if amd else "0")
    cluster = build_cluster(import_text(text, name="t.txt", gpu="MI250").machine)
    assert [cluster.label(0, other) for other in (1, 2, 3)] == ["NVL", "NVB", "NVL"]
    assert cluster.links[cluster.path(0, 1)[0]].bandwidth == 50_000_000_000
    if amd:
        rates = amd_table(
            "NUMA BW TABLE:",
            names,
            lambda i, j: f"50000-{50000 * LINKS.get((i, j), 0)}" if (i, j) in LINKS else "N/A",
            "N/A",
        )
        cluster = build_cluster(import_text(text + rates, name="t.txt", gpu="MI250").machine)
        widths = [cluster.links[cluster.path(a, b)[0]].bandwidth // 50_000_000_000 for a, b in LINKS]
        assert widths == list(LINKS.values())


IB_LINE = (
    '0x0000000000200002 "   leaf1"  4 {p}[  ] ==( {rate} Active/  LinkUp)==>  '
    '0x00000000001000{p:02d} 5{p} 1[  ] "gpu{p:02d} mlx5_0" ( )'
)


@pytest.mark.parametrize(
    ("rate", "gigabit"),
    [("4X 106.25 Gbps", 400), ("4X 25.78 Gbps", 100), ("4X 10.0 Gbps (FDR10)", 40), ("2X 106.25 Gbps", 200),
     ("4X 212.5 Gbps", 800)],
)  # fmt: skip
def test_iblinkinfo_with_an_owner_on_every_line(rate: str, gigabit: int) -> None:
    text = "".join(IB_LINE.format(p=p, rate=rate) + "\n" for p in (1, 2, 3))
    machine = import_text(text, name="l.txt", gpu="H100").machine
    assert build_cluster(machine).nodes == 3
    assert machine.node[0].nic[0].bandwidth * 8 == gigabit * 10**9


def test_hosts_that_share_one_name_are_refused() -> None:
    text = "".join(
        f'Ca\t1 "H-{n}"\t\t# "localhost mlx5_0"\n[1](0{n}) \t"S-9"[{n}]\t\t# lid {n} lmc 0 "leaf" lid 9 4xNDR\n'
        for n in (1, 2)
    )
    with pytest.raises(TopologyError, match="several hosts have this name"):
        import_text(text, name="f.txt", gpu="H100")
