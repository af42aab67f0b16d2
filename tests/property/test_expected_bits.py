"""The planner's closed form against what the codec really makes of such values, within 0.03 bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from zipplan import kernels
from zipplan.planner.costs import CODECS, FRAME_HEADER, wire
from zipplan.planner.profiles import FORMATS, expected_bits, parse_profile
from zipplan.planner.schedule import Payload

N = 1 << 20
TORCH = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "fp8_e4m3": torch.float8_e4m3fn,
         "fp8_e5m2": torch.float8_e5m2}  # fmt: skip


def values(profile: str, dtype: str) -> np.ndarray:  # type: ignore[type-arg]
    """Seeded values of a profile, cast to the dtype, as bytes."""
    name, _, sigma = profile.partition(":")
    random = torch.Generator().manual_seed(5)
    x = torch.randn(N, generator=random)
    if name == "laplace":
        x = torch.from_numpy(np.random.default_rng(5).laplace(0, 0.5**0.5, N)).float()
    if name == "relu":
        x = torch.relu(x)
    if name == "swiglu":
        x = torch.nn.functional.silu(x) * torch.randn(N, generator=random)
    return (x * float(sigma)).to(TORCH[dtype]).view(torch.uint8).numpy()


def measured(codec: str, dtype: str, data: np.ndarray) -> float:  # type: ignore[type-arg]
    """Bits per element of one frame, header left out."""
    frame = kernels.encode_frame(kernels.Codec(codec, dtype), data.tobytes())
    return (len(frame) - FRAME_HEADER) * 8 / N


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("codec", ["window", "cascade"])
@pytest.mark.parametrize("sigma", [0.02, 0.027, 1.0])
def test_normal_values_take_the_expected_bits(codec: str, dtype: str, sigma: float) -> None:
    profile = f"gaussian:{sigma}"
    wired = wire(codec, dtype, parse_profile(profile))
    expected = (wired.static_share + wired.dynamic_share) * FORMATS[dtype].bits
    assert measured(codec, dtype, values(profile, dtype)) == pytest.approx(expected, abs=0.03)


@pytest.mark.parametrize("codec", ["window", "cascade"])
@pytest.mark.parametrize("profile", ["laplace:0.02", "relu:0.02", "swiglu:1.0"])
def test_other_shapes_take_the_expected_bits(codec: str, profile: str) -> None:
    """Not a promise of the paper's theory, but what the planner says of such tensors must hold as well."""
    wired = wire(codec, "bf16", parse_profile(profile))
    expected = (wired.static_share + wired.dynamic_share) * 16
    assert measured(codec, "bf16", values(profile, "bf16")) == pytest.approx(expected, abs=0.1)


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("codec", ["window", "cascade"])
def test_static_size_is_what_the_planner_sends_first(codec: str, dtype: str) -> None:
    """The static region's size is exact but for its rounding to 128 bytes."""
    wired = wire(codec, dtype, parse_profile("gaussian"))
    raw = N * FORMATS[dtype].bits // 8
    have = kernels.static_size(kernels.Codec(codec, dtype), N)
    assert 0 <= have - wired.bytes(Payload.STATIC, raw) < 128


@pytest.mark.parametrize("dtype", FORMATS)
def test_random_bytes_never_expand_beyond_their_headers(dtype: str) -> None:
    profile = parse_profile("random")
    for codec in CODECS[dtype]:
        assert sum(expected_bits(codec, dtype, profile)) <= FORMATS[dtype].bits


def test_published_figures() -> None:
    """ZipCCL Table 1 and §4: 97.5 % coverage at best; entropy 2.545 of a normal bf16 tensor (calculated)."""
    normal = parse_profile("gaussian:0.02")
    static, dynamic = expected_bits("window", "bf16", normal)
    assert static == 11
    assert dynamic / 8 == pytest.approx(0.025, abs=0.004)
    assert normal.entropy_bits("bf16") == pytest.approx(2.545, abs=0.002)
    assert sum(expected_bits("cascade", "bf16", normal)) == pytest.approx(10.65, abs=0.01)
