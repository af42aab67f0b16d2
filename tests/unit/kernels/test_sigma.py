"""Parameters from σ, and σ carried from call to call through the escape counts."""

from __future__ import annotations

import math

import numpy as np
import pytest

from zipplan.kernels import Codec, Params, encode, encode_frame, max_dynamic_size, static_size
from zipplan.kernels.sample import sample
from zipplan.kernels.sigma import carried_sigma, params_for

N = 1 << 16


def bits(codec: Codec, data: np.ndarray, params: Params | None = None) -> float:
    return 8 * len(encode_frame(codec, data, params=params)) * codec.item_bytes / data.nbytes


@pytest.mark.parametrize("sigma", [1e-4, 0.013, 0.0165, 0.02, 0.6, 0.75, 1.0, 37.0])
def test_sigma_places_the_window_where_no_other_does_better(sigma: float) -> None:
    codec, data = Codec("window"), sample("gaussian", "bf16", N, scale=sigma)
    base = params_for(codec, sigma).base
    assert base is not None
    best = min(bits(codec, data, Params(base=b)) for b in range(base - 3, base + 4))
    assert bits(codec, data, Params(base=base)) <= best + 0.02  # the two best are equal where frac(log2 σ) = 0.7196


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("codec", ["window", "cascade"])
def test_tiles_find_by_themselves_what_sigma_would_tell(codec: str, dtype: str) -> None:
    """A tile's mean exponent stands for σ: both bases and both rankings cost the same within 0.02 bit."""
    made = Codec(codec, dtype)
    data = sample("gaussian", dtype, N, scale=0.02)
    assert bits(made, data) == pytest.approx(bits(made, data, params_for(made, 0.02)), abs=0.02)


def test_one_base_per_tile_beats_one_per_tensor_on_rows_of_mixed_scale() -> None:
    rng = np.random.default_rng(1)
    rows = [
        sample("gaussian", "bf16", 4096, scale=0.02 * math.exp(s), seed=i) for i, s in enumerate(rng.normal(0, 1.5, 64))
    ]
    codec, data = Codec("window"), np.concatenate(rows)
    assert bits(codec, data) < 11.3
    assert min(bits(codec, data, Params(base=b)) for b in range(110, 130)) > 12


def encode_counted(codec: Codec, data: np.ndarray, params: Params) -> tuple[float, float | None]:
    n = data.nbytes // 2
    static, dynamic = np.empty(static_size(codec, n), np.uint8), np.empty(max_dynamic_size(codec, n), np.uint8)
    encoded = encode(codec, [data], static, dynamic, params=params)
    return 8 * (static.nbytes + int(encoded.sizes[0])) / n, carried_sigma(codec, params, encoded, n)


def test_the_base_follows_a_drifting_scale() -> None:
    """F136: 1,000 steps, the scale falling by 1 % each. Frozen parameters decay to stored tiles; carried ones hold."""
    codec, sigma = Codec("window"), 1.0
    frozen, params, curve = params_for(codec, 1.0), params_for(codec, 1.0), []
    for step in range(1000):
        data = sample("gaussian", "bf16", 1 << 15, scale=sigma, seed=step)
        got, carried = encode_counted(codec, data, params)
        curve.append(got)
        params = params_for(codec, carried) if carried else params
        sigma *= 0.99
    assert max(curve) < 11.4
    assert np.mean(curve) < 11.3
    assert bits(codec, data, frozen) > 16


@pytest.mark.parametrize("off", [-8, -3, -1, 1, 3, 8])
def test_a_wrong_base_is_mended_within_two_calls(off: int) -> None:
    codec, data = Codec("window"), sample("gaussian", "bf16", N, scale=0.02)
    right = params_for(codec, 0.02).base
    assert right is not None
    params = Params(base=right + off)
    for _ in range(2):
        _, carried = encode_counted(codec, data, params)
        assert carried is not None
        params = params_for(codec, carried)
    assert params.base == right


def test_no_escapes_tell_nothing() -> None:
    codec, data = Codec("window"), np.full(N, 0x3F80, np.uint16).view(np.uint8)
    assert encode_counted(codec, data, Params(base=125))[1] is None
    assert encode_counted(codec, data, Params())[1] is None


def test_sigma_of_nothing_is_zero_and_still_encodes() -> None:
    for name in ("window", "cascade"):
        codec = Codec(name)
        assert bits(codec, np.zeros(N, np.uint16).view(np.uint8), params_for(codec, 0.0)) < 20
