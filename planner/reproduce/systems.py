"""What other systems published about their codecs, read from systems.toml."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources
from typing import Any

import numpy as np

from zipplan.planner.units import PS_PER_SECOND


@cache
def systems() -> dict[str, Any]:
    """The whole table."""
    return tomllib.loads(resources.files("zipplan.planner.reproduce").joinpath("systems.toml").read_text("utf-8"))


def dietgpu(direction: str, size: float, speed: float = 1.0) -> float:
    """ps of one DietGPU call ("encode" or "decode") on `size` raw bytes; between the published sizes time is linear.

    Below the smallest size the time is that of the smallest: what is left there is launch and synchronisation.
    `speed`: memory bandwidth over that of the A100; it scales what exceeds that fixed part.
    """
    row = systems()["dietgpu"]
    sizes = np.array(row["bytes"])
    times = sizes / (np.array(row[direction]) * 1e9) * PS_PER_SECOND
    fixed = float(times[0])
    return fixed + (float(np.interp(size, sizes, times)) - fixed) / speed


def uccl_encode(size: float) -> float:
    """ps of UCCL-Zip's encoder on H200 for `size` raw bytes, linear between the published sizes."""
    row = systems()["uccl_zip"]
    return float(np.interp(size, row["bytes"], np.array(row["encode_us"]) * 1e6))


def uccl_decode(size: float) -> float:
    """ps of its decoder: the encoder's, scaled as DietGPU, which it extends, decodes faster than it encodes."""
    return uccl_encode(size) * dietgpu("decode", size) / dietgpu("encode", size)
