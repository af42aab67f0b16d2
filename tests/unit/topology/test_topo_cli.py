"""`zipplan topo` as a user types it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from zipplan.planner.topology import shipped

SAMPLES = Path(__file__).parents[2] / "fixtures" / "topologies"
MAIN = "import sys; from zipplan.planner.cli import main; sys.argv[0] = 'zipplan'; main()"


def zipplan(*args: object, cwd: Path | None = None, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", MAIN, "topo", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=50, cwd=cwd, input=stdin)


def test_list_names_every_machine() -> None:
    plain, document = zipplan("list"), zipplan("list", "--json")
    assert [m["name"] for m in json.loads(document.stdout)["machines"]] == shipped()
    assert all(name in plain.stdout for name in shipped())


def test_show_draws_tree_and_matrix() -> None:
    done = zipplan("show", "hgx-h100", "--nodes", 2)
    assert done.returncode == 0
    assert "gpu7  63 GB/s up  450 GB/s to peers" in done.stdout
    assert "NVL 450" in done.stdout
    data = json.loads(zipplan("show", "hgx-h100", "--nodes", 2, "--json").stdout)
    assert (data["ranks"], data["counts"]["gpu"], data["path_classes"]) == (16, 16, {"NVL": 28})


@pytest.mark.parametrize("ending", ["svg", "png"])
def test_show_writes_a_picture(tmp_path: Path, ending: str) -> None:
    pytest.importorskip("matplotlib", reason="pictures need the plot extra")
    done = zipplan("show", "dgx-1v", "-o", tmp_path / f"x.{ending}")
    assert done.returncode == 0, done.stderr
    data = (tmp_path / f"x.{ending}").read_bytes()
    if ending == "svg":
        assert ElementTree.fromstring(data).tag.endswith("svg")
        zipplan("show", "dgx-1v", "-o", tmp_path / "y.svg")
        assert (tmp_path / "y.svg").read_bytes() == data, "equal input, equal bytes"
    else:
        assert data.startswith(b"\x89PNG")


def test_import_writes_toml_that_other_commands_take(tmp_path: Path) -> None:
    done = zipplan("import", SAMPLES / "smi_topo_8xH100_9nic.txt", "--gpu", "H100", "-o", "n.toml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "assumed" in done.stdout
    assert "every NIC runs at 400Gb/s" in done.stdout
    assert zipplan("check", "n.toml", "--nodes", 4, cwd=tmp_path).returncode == 0
    assert str(tmp_path) not in (tmp_path / "n.toml").read_text()


def test_import_reads_standard_input_and_prints_toml() -> None:
    text = (SAMPLES / "smi_topo_p4d_24xlarge.txt").read_text()
    done = zipplan("import", "-", stdin=text)
    assert done.returncode == 0, done.stderr
    assert 'model = "A100"' in done.stdout


def test_a_matrix_that_was_cut_off_is_said_on_stderr_and_in_json() -> None:
    """Not in a comment of the TOML alone, which nobody reads who pipes it on; `check` reads standard input once."""
    whole = (SAMPLES / "smi_topo_p4d_24xlarge.txt").read_text().splitlines(keepends=True)
    text = "".join(line for line in whole if not line.startswith("GPU7"))
    done = zipplan("import", "-", stdin=text)
    assert done.returncode == 0
    assert done.stderr == "zipplan: warning: -: rows missing: GPU7; the other rows were mirrored\n"
    done = zipplan("import", "-", "--json", stdin=text)
    assert json.loads(done.stdout)["warnings"] == ["rows missing: GPU7; the other rows were mirrored"]
    assert "rows missing: GPU7" in zipplan("show", "-", stdin=text).stderr
    done = zipplan("check", "-", "--json", stdin=text)
    assert done.stderr == ""
    assert "rows missing: GPU7" in json.loads(done.stdout)["findings"][0]["text"]


def test_check_fails_on_a_degraded_link(tmp_path: Path) -> None:
    zipplan("import", SAMPLES / "smi_topo_8xH100_nv18_stas.txt", "--gpu", "H100", "-o", "n.toml", cwd=tmp_path)
    text = (tmp_path / "n.toml").read_text()
    text += '\n[[override]]\nnode = 0\nlink = "gpu5-nvswitch0"\nbandwidth = "300GB/s"\nsource = "test"\n'
    (tmp_path / "n.toml").write_text(text)
    done = zipplan("check", "n.toml", "--json", cwd=tmp_path)
    assert done.returncode == 1
    report = json.loads(done.stdout)
    assert not report["ok"]
    assert [f["rule"] for f in report["findings"]] == ["degraded-link"]
    assert "gpu5" in report["findings"][0]["text"]


def test_check_compares_two_descriptions() -> None:
    same = SAMPLES / "smi_topo_p5_48xlarge.txt"
    other = SAMPLES / "nccl_topo_azure_ndv5.xml"
    assert zipplan("check", same, "--gpu", "H100", "--against", same).returncode == 0
    done = zipplan("check", same, "--gpu", "H100", "--against", other)
    assert done.returncode == 1
    assert "differs gpu0-gpu1: NV18 (nvidia-smi topo -m) here, PHB (NCCL topology XML)" in done.stdout


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["show", "hgx-h10"], "did you mean hgx-h100"),
        (["show", "."], "is a directory"),
        (["show", "/dev/null"], "is empty"),
        (["import", sys.executable], "not text"),
        (["import", "no/such/file"], "no such file"),
        (["import", SAMPLES / "smi_topo_2gpu_nv2.txt"], "--gpu"),
        (["import", SAMPLES / "smi_topo_2gpu_nv2.txt", "--gpu", "H1000"], "did you mean H100"),
        (["show", "hgx-h100", "-o", "x.gif"], "use .svg, .png or .pdf"),
        (["show", "hgx-h100", "--gpus", "0,x"], "expected numbers"),
        (["show", "hgx-h100", "--nodes", "1000000000"], "expected 1 to 100,000"),
        (["show", "loopback", "--ranks-per-node", "1000000000"], "1000000000 ranks per node"),
        (["import", SAMPLES / "smi_topo_p4d_24xlarge.txt", "-o", "no/such/dir/x.toml"], "cannot write"),
        (["import", SAMPLES / "smi_topo_p4d_24xlarge.txt", "--nodes", "2"], "no [fabric]"),
    ],
)  # fmt: skip
def test_bad_input_is_one_message_and_exit_2(args: list[object], message: str, tmp_path: Path) -> None:
    done = zipplan(*args, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == [], "nothing half-written"


@pytest.mark.parametrize("name", ["dgx-2", "gb200-nvl72", "hgx-a100-hdr8", "mi250-8", "dgx-1v"])
@pytest.mark.parametrize("width", [80, 120])
def test_show_fits_a_terminal_and_cuts_no_number_off(
    name: str, width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from rich.console import Console

    from zipplan.planner.cli import topo as commands

    monkeypatch.setattr(commands, "console", lambda: Console(width=width, highlight=False))
    for arguments in (["show", name], ["list"]):
        commands.topo(arguments, standalone_mode=False)
        out = capsys.readouterr().out
        assert "…" not in out
        assert max(map(len, out.splitlines())) <= width
        assert name in out


def test_a_degraded_part_of_a_rack_is_not_shown_as_one_of_many(tmp_path: Path) -> None:
    from zipplan.planner.cli.topo import _tree
    from zipplan.planner.topology import build_cluster, load_machine

    override = '[[override]]\nnode = 0\nlink = "gpu20-nvswitch0"\nbandwidth = "450GB/s"\nsource = "a test"\n'
    text = (Path(__file__).parents[3] / "topologies" / "gb200-nvl72.toml").read_text() + "\n" + override
    (tmp_path / "rack.toml").write_text(text)
    labels = [str(branch.label) for branch in _tree(build_cluster(load_machine(str(tmp_path / "rack.toml")))).children]
    assert any("cpu10" in label and "more like" not in label for label in labels)


@pytest.mark.parametrize(
    ("name", "nodes", "says"), [("hgx-h100", 40, "25 more"), ("gh200-quad", 3, "fabric: dragonfly")]
)
def test_the_picture_of_a_cluster_shows_its_fabric(name: str, nodes: int, says: str, tmp_path: Path) -> None:
    import matplotlib

    from zipplan.planner.topology import build_cluster, load_machine
    from zipplan.planner.topology.picture import save_picture

    with matplotlib.rc_context({"svg.fonttype": "none"}):
        save_picture(build_cluster(load_machine(name), nodes=nodes), str(tmp_path / "x.svg"))
    text = (tmp_path / "x.svg").read_text()
    assert says in text
    assert "node0" in text
