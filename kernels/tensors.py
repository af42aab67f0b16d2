"""Tensors out of files, and what the codec makes of each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from zipplan.kernels.batch import encode
from zipplan.kernels.codec import ITEM_BYTES, Codec, max_dynamic_size, static_size
from zipplan.planner.errors import ConfigError, ZipplanError

SAFETENSORS = {"F32": "fp32", "BF16": "bf16", "F16": "fp16", "F8_E4M3": "fp8_e4m3", "F8_E5M2": "fp8_e5m2"}
NUMPY = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
TORCH = {
    "float32": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "float8_e4m3fn": "fp8_e4m3",
    "float8_e5m2": "fp8_e5m2",
}
# dtype -> exponent bits, mantissa bits
FIELDS = {"bf16": (8, 7), "fp16": (5, 10), "fp32": (8, 23), "fp8_e4m3": (4, 3), "fp8_e5m2": (5, 2)}
PIECE = 1 << 22  # elements looked at or encoded at a time


@dataclass(frozen=True)
class Tensor:
    """`dtype` as the codec names it; "u8" for whatever only travels raw. `data`: its bytes, perhaps still on disk."""

    name: str
    dtype: str
    stored_as: str
    shape: tuple[int, ...]
    data: np.ndarray


@dataclass(frozen=True)
class Shape:
    """What decides how a float tensor compresses. Values are None where there are none to look at.

    `sigma`: root mean square of the finite values. `kurtosis`: excess over a normal distribution's (0: normal, 3:
    Laplace). `zeros`: share. `floor_bits`: bits per element if exponents were coded at their entropy. `bits`: bits per
    element of each codec, measured, frames of at most 4 Mi elements.
    """

    elements: int
    sigma: float | None
    kurtosis: float | None
    zeros: float | None
    floor_bits: float | None
    bits: dict[str, float]


def read_tensors(path: str) -> Iterator[Tensor]:
    """Tensors of a .safetensors, .npy, .npz, .pt or .pth file, in file order; ConfigError if it is not one."""
    file = Path(path)
    readers = {".safetensors": safetensors, ".npy": npy, ".npz": npz, ".pt": checkpoint, ".pth": checkpoint}
    if file.suffix not in readers:
        raise ConfigError(f"{path}: cannot tell the format; expected a name that ends in {', '.join(readers)}")
    if not file.is_file():
        raise ConfigError(f"{path}: expected a file, found {'a folder' if file.is_dir() else 'nothing'}")
    try:
        yield from readers[file.suffix](file)
    except ZipplanError:
        raise
    except Exception as error:  # zipfile, pickle, json and struct each have a tree of their own
        why = str(error).partition("\n")[0].partition(". ")[0] or type(error).__name__
        raise ConfigError(
            f"{path}: expected a {file.suffix} file, found something else or a part of one: {why}"
        ) from error


def safetensors(file: Path) -> Iterator[Tensor]:
    """https://github.com/huggingface/safetensors#format: u64 length, JSON header, data."""
    data = np.memmap(file, np.uint8, "r")
    length = int.from_bytes(data[:8].tobytes(), "little")
    if not 2 <= length <= data.size - 8:
        raise ValueError(f"its header claims {length} bytes, the file has {data.size}")
    header = json.loads(data[8 : 8 + length].tobytes())
    body = data[8 + length :]
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        first, last = entry["data_offsets"]
        if not 0 <= first <= last <= body.size:
            raise ValueError(f"tensor {name!r} claims bytes {first} to {last} of {body.size}")
        kind = entry["dtype"]
        yield Tensor(name, SAFETENSORS.get(kind, "u8"), kind, tuple(entry["shape"]), body[first:last])


def npy(file: Path) -> Iterator[Tensor]:
    yield from_numpy(file.stem, np.load(file, mmap_mode="r", allow_pickle=False))


def npz(file: Path) -> Iterator[Tensor]:
    with np.load(file, allow_pickle=False) as arrays:
        for name in arrays.files:
            yield from_numpy(name, arrays[name])


def from_numpy(name: str, array: np.ndarray) -> Tensor:
    raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return Tensor(name, NUMPY.get(array.dtype.name, "u8"), array.dtype.name, array.shape, raw)


def checkpoint(file: Path) -> Iterator[Tensor]:
    """Tensors anywhere inside a torch file, loaded without running code from it."""
    try:
        import torch
    except ImportError as error:
        raise ConfigError(f"{file}: reading it needs torch; install zipplan[torch]") from error

    def walk(name: str, item: object) -> Iterator[Tensor]:
        if isinstance(item, torch.Tensor):
            raw = item.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
            kind = str(item.dtype).removeprefix("torch.")
            yield Tensor(name, TORCH.get(kind, "u8"), kind, tuple(item.shape), raw)
        elif isinstance(item, dict):
            for key, value in item.items():
                yield from walk(f"{name}.{key}" if name else str(key), value)
        elif isinstance(item, list | tuple):
            for i, value in enumerate(item):
                yield from walk(f"{name}.{i}" if name else str(i), value)

    yield from walk("", torch.load(file, map_location="cpu", weights_only=True))


def to_float(raw: np.ndarray, dtype: str) -> np.ndarray:
    """float32 values of raw bytes (uint8) of a float dtype."""
    x = raw.view(f"<u{ITEM_BYTES[dtype]}")
    if dtype == "fp32":
        return x.view(np.float32)
    if dtype == "bf16":
        return (x.astype(np.uint32) << 16).view(np.float32)
    if dtype == "fp16":
        return x.view(np.float16).astype(np.float32)
    if dtype == "fp8_e5m2":
        return (x.astype(np.uint16) << 8).view(np.float16).astype(np.float32)
    magnitude = ((x & 0x7F).astype(np.uint32) << 20).view(np.float32) * np.float32(2.0**120)  # bias 127 less 7
    return np.where(x & 0x7F == 0x7F, np.float32(np.nan), np.where(x & 0x80, -magnitude, magnitude))


def look(tensor: Tensor, codecs: tuple[str, ...] = ("window", "cascade")) -> Shape:
    """Statistics of a tensor and its size under each codec. Floats only; of others only `elements` is filled in."""
    item = ITEM_BYTES[tensor.dtype]
    n = tensor.data.nbytes // item
    if tensor.dtype == "u8" or n == 0:
        return Shape(n, None, None, None, None, {})
    exponent_bits, mantissa_bits = FIELDS[tensor.dtype]
    counts = np.zeros(1 << exponent_bits, np.int64)
    finite, zeros, squares, fourths = 0, 0, 0.0, 0.0
    encoded = dict.fromkeys(codecs, 0)
    for start in range(0, n, PIECE):
        raw = np.ascontiguousarray(tensor.data[start * item : (start + PIECE) * item])
        fields = raw.view(f"<u{item}") >> mantissa_bits & ((1 << exponent_bits) - 1)
        counts += np.bincount(fields.astype(np.int64), minlength=counts.size)
        values = to_float(raw, tensor.dtype)
        values = values[np.isfinite(values)].astype(np.float64)
        finite, zeros = finite + values.size, zeros + int((values == 0).sum())
        squares, fourths = squares + float((values**2).sum()), fourths + float((values**4).sum())
        for name in codecs:
            encoded[name] += size_of(Codec(name, tensor.dtype), raw)
    share = counts[counts > 0] / n
    entropy = -float((share * np.log2(share)).sum())
    variance = squares / finite if finite else 0.0
    return Shape(
        elements=n,
        sigma=variance**0.5 if finite else None,
        kurtosis=fourths / finite / variance**2 - 3 if variance**2 > 0 else None,
        zeros=zeros / finite if finite else None,
        floor_bits=1 + mantissa_bits + entropy,
        bits={name: 8 * size / n for name, size in encoded.items()},
    )


def size_of(codec: Codec, raw: np.ndarray) -> int:
    n = raw.nbytes // codec.item_bytes
    static, dynamic = np.empty(static_size(codec, n), np.uint8), np.empty(max_dynamic_size(codec, n), np.uint8)
    return static.nbytes + int(encode(codec, [raw], static, dynamic).sizes[0])
