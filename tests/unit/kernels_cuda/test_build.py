"""Kernels compiled by NVRTC, for every architecture and without a GPU; the cache under races, kills and damage."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from zipplan.kernels import Codec, cuda
from zipplan.kernels.cuda import build, driver
from zipplan.planner.errors import CodecError, DeviceError

BUILD = "from zipplan.kernels.cuda import build; print(len(build.module(0, 0, 80)[0]))"


def start(cache: Path) -> subprocess.Popen[str]:
    environment = os.environ | {"ZIPPLAN_CACHE_DIR": str(cache)}
    return subprocess.Popen([sys.executable, "-c", BUILD], env=environment, stdout=subprocess.PIPE, text=True)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ZIPPLAN_CACHE_DIR", str(tmp_path))
    return tmp_path / "kernels"


def test_importing_loads_no_torch_no_driver_no_compiler() -> None:
    program = (
        "import sys, zipplan.kernels.cuda\n"
        "print(sorted(m for m in sys.modules if m.split('.')[0] in ('torch', 'cuda')), 'libcuda' in "
        "open('/proc/self/maps').read())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[] False\n"


def test_the_text_includes_nothing() -> None:
    assert not any(line.lstrip().startswith("#include") for part in build.source() for line in part.splitlines())


def test_eight_processes_at_once_then_one_killed(tmp_path: Path) -> None:
    """F080: all get the same code, one file is left, and a killed build leaves nothing that stalls the next."""
    racing = [start(tmp_path) for _ in range(8)]
    sizes = {process.communicate(timeout=60)[0] for process in racing}
    assert len(sizes) == 1
    assert all(process.returncode == 0 for process in racing)
    assert len(list((tmp_path / "kernels").iterdir())) == 1

    other = tmp_path / "other"
    victim = start(other)
    time.sleep(0.4)
    victim.kill()
    victim.communicate(timeout=60)
    after = start(other)
    assert {after.communicate(timeout=60)[0]} == sizes


def test_the_second_time_comes_from_the_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, kind = build.module(0, 0, 90)
    assert (kind, code[:4]) == ("cubin", b"\x7fELF")
    monkeypatch.setattr(build, "compiled", lambda *_: pytest.fail("compiled again"))
    assert build.module(0, 0, 90) == (code, kind)


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-5], lambda data: data[:40] + b"?" + data[41:], lambda data: b""]
)
def test_a_damaged_cache_file_is_replaced(cache: Path, damage) -> None:  # type: ignore[no-untyped-def]
    code, _ = build.module(0, 0, 80)
    (file,) = cache.iterdir()
    whole = file.read_bytes()
    file.write_bytes(damage(whole))
    assert build.module(0, 0, 80)[0] == code
    assert file.read_bytes() == whole


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("ZIPPLAN_CACHE_DIR", str(tmp_path / "file"))
    assert build.module(0, 0, 80)[0][:4] == b"\x7fELF"


def test_a_device_newer_than_the_compiler_gets_ptx(cache: Path) -> None:
    """F126: the driver translates it, or says that it cannot."""
    code, kind = build.module(0, 0, 199)
    assert kind == "ptx"
    assert b".target sm_" in code


@pytest.mark.parametrize(
    ("arch", "words"), [(75, "expected compute capability 8.0 or newer, found 7.5"), (81, "knows compute capabilities")]
)
def test_a_device_that_is_too_old_or_unknown(arch: int, words: str) -> None:
    with pytest.raises(DeviceError, match=words):
        build.module(0, 0, arch)


def test_text_that_does_not_compile_shows_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DeviceError, match='identifier "nonsense" is undefined'):
        build.compiled("int x = nonsense;", ("--gpu-architecture=sm_90",))


@pytest.mark.skipif(os.path.exists("/dev/nvidiactl"), reason="this machine has a GPU driver")
def test_without_a_driver() -> None:
    with pytest.raises(DeviceError, match="no CUDA driver can be loaded"):
        driver.module(1, 1, 0)


def test_without_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    build.nvrtc.cache_clear()
    with pytest.raises(DeviceError, match=r"NVRTC cannot be loaded .* pip install 'zipplan\[cuda\]'"):
        build.nvrtc()


def test_tensors_on_the_cpu_are_refused_by_name() -> None:
    import torch

    data = torch.zeros(5, dtype=torch.bfloat16)
    with pytest.raises(CodecError, match="chunk 0: expected a contiguous CUDA tensor, found Tensor on cpu"):
        cuda.encode(Codec(), [data], data, data)
    with pytest.raises(CodecError, match=r"outs\[0\]: expected a contiguous CUDA tensor, found ndarray on cpu"):
        cuda.decode(Codec(), data, data, [data.view(torch.uint8).numpy()])


def test_a_wrong_tile_has_a_name() -> None:
    assert cuda.describe(3 << 32 | 18 << 8 | 15).startswith("frame 3, tile 17: tile counts: not as expected")
    assert cuda.describe(12).startswith("frame 0: checksum")
