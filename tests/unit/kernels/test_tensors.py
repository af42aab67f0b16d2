"""`inspect`: tensors out of files of every kind, what is said of them, and files that are no such thing."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from zipplan.kernels.codec import ITEM_BYTES
from zipplan.kernels.sample import sample, to_bytes
from zipplan.kernels.tensors import look, read_tensors, to_float
from zipplan.planner.cli.inspect_cmd import inspect
from zipplan.planner.errors import ConfigError

VALUES = np.random.default_rng(0).normal(0, 0.02, (64, 1024)).astype(np.float32)


def save_safetensors(path: Path, tensors: dict[str, tuple[str, list[int], bytes]]) -> None:
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}  # type: ignore[dict-item]
        at += len(data)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(t[2] for t in tensors.values()))


def rows_of(path: Path) -> dict[str, dict]:
    result = CliRunner().invoke(inspect, [str(path), "--json"], catch_exceptions=False)
    return {row["tensor"]: row for row in json.loads(result.stdout)["rows"]}


def test_every_format_gives_the_same_tensor(tmp_path: Path) -> None:
    """F002, F138: empty tensors and scalars stand beside ordinary ones; a ratio that cannot be told is null."""
    bf16 = torch.from_numpy(VALUES).bfloat16()
    raw = bf16.view(torch.uint8).numpy().tobytes()
    torch.save({"a": {"w": bf16}, "list": [torch.tensor(1.5), torch.zeros(0)], "step": 3}, tmp_path / "m.pt")
    save_safetensors(
        tmp_path / "m.safetensors",
        {"a.w": ("BF16", [64, 1024], raw), "ids": ("I64", [2], bytes(16)), "none": ("F32", [0], b"")},
    )
    np.save(tmp_path / "m.npy", VALUES)
    np.savez(tmp_path / "m.npz", x=VALUES.astype(np.float16), one=np.float32(2))
    from_torch, from_safe = rows_of(tmp_path / "m.pt"), rows_of(tmp_path / "m.safetensors")
    for key in ("bytes", "sigma", "floor_bits", "cascade_bits", "ratio", "shape", "codec"):
        assert from_torch["a.w"][key] == from_safe["a.w"][key]
    assert from_safe["a.w"]["sigma"] == pytest.approx(0.02, rel=0.02)
    assert from_safe["a.w"]["codec"] == "cascade"
    assert 10.4 < from_safe["a.w"]["floor_bits"] < from_safe["a.w"]["cascade_bits"] < 10.8
    assert (from_safe["ids"]["ratio"], from_safe["ids"]["codec"]) == (None, "raw")
    assert (from_safe["none"]["ratio"], from_torch["list.1"]["sigma"]) == (None, None)
    assert from_torch["list.0"]["shape"] == []
    assert rows_of(tmp_path / "m.npy")["m"]["dtype"] == "float32"
    assert rows_of(tmp_path / "m.npz")["x"]["ratio"] > 1.1
    text = CliRunner().invoke(inspect, [str(tmp_path / "m.safetensors")], catch_exceptions=False).stdout
    assert "n/a" in text
    assert "cascade" in text


def test_what_stays_raw_has_the_ratio_of_raw(tmp_path: Path) -> None:
    """A frame's header is larger than four elements; nobody would send it, so the tensor's ratio is 1."""
    np.save(tmp_path / "m.npy", VALUES[0, :4])
    row = rows_of(tmp_path / "m.npy")["m"]
    assert row["window_bits"] > 32
    assert (row["codec"], row["ratio"]) == ("raw", 1.0)
    assert " 1.000  raw" in CliRunner().invoke(inspect, [str(tmp_path / "m.npy")], catch_exceptions=False).stdout


@pytest.mark.parametrize("suffix", [".safetensors", ".npy", ".npz", ".pt", ".pth"])
@pytest.mark.parametrize("content", [b"", b"junk", bytes(4096), b"\x80\x02" + bytes(50)])
def test_files_that_are_no_such_thing(tmp_path: Path, suffix: str, content: bytes) -> None:
    """F128: one line with the path."""
    path = tmp_path / f"my file{suffix}"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=rf"^{re.escape(str(path))}: expected a \{suffix} file, found [^\n]*$"):
        list(read_tensors(str(path)))


def test_a_file_without_tensors(tmp_path: Path) -> None:
    save_safetensors(tmp_path / "m.safetensors", {})
    assert rows_of(tmp_path / "m.safetensors") == {}


@pytest.mark.parametrize("name", ["none.npy", "folder.npy", "text.txt"])
def test_paths_that_cannot_be_read(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder.npy").mkdir()
    with pytest.raises(ConfigError, match=rf"{name}.*expected"):
        list(read_tensors(str(tmp_path / name)))


def test_a_cut_off_file_names_the_tensor(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    save_safetensors(path, {"a": ("F32", [4], bytes(16))})
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ConfigError, match="tensor 'a' claims bytes 0 to 16 of 15"):
        list(read_tensors(str(path)))


@pytest.mark.parametrize("dtype", [d for d in ITEM_BYTES if d != "u8"])
def test_values_of_every_dtype_read_back(dtype: str) -> None:
    """Every pattern, against torch; rounding to the dtype too."""
    kinds = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
    kind = kinds.get(dtype) or (torch.float8_e4m3fn if dtype == "fp8_e4m3" else torch.float8_e5m2)
    item = ITEM_BYTES[dtype]
    raw = sample("random", dtype, 1 << 16) if item == 4 else np.arange(1 << 8 * item, dtype=f"<u{item}").view(np.uint8)
    expected = torch.from_numpy(raw.copy()).view(kind).float().numpy()
    assert np.array_equal(to_float(raw, dtype), expected, equal_nan=True)
    values = np.concatenate([VALUES.ravel(), np.float32([0, -0.0, 1e-9, -440, 448, 7e-6])])
    rounded = torch.from_numpy(values).to(kind).view(torch.uint8).numpy()
    assert np.array_equal(to_bytes(values, dtype), rounded.reshape(-1))


def test_shape_of_a_tensor_by_its_numbers(tmp_path: Path) -> None:
    np.save(
        tmp_path / "z.npy",
        np.where(np.arange(1 << 16) % 4 == 0, 0, np.random.default_rng(1).laplace(0, 1, 1 << 16)).astype(np.float32),
    )
    (tensor,) = read_tensors(str(tmp_path / "z.npy"))
    shape = look(tensor)
    assert shape.zeros == pytest.approx(0.25)
    assert shape.kurtosis is not None
    assert shape.kurtosis > 3
