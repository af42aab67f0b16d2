"""The edge to torch, with the emulator in the driver's place: tensors that claim a GPU, memory that is the host's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from emulator import Emulator
from samples import on_cpu, sample
from stand_in import OnGpu

from zipplan.kernels import Codec, cuda, decode_reduce, max_dynamic_size, static_size
from zipplan.kernels.cuda.launch import Launch
from zipplan.planner.errors import CodecError

CODEC = Codec("cascade", "bf16", 112, True)
COUNTS = (5000, 0, 77)


def put(data: np.ndarray) -> torch.Tensor:
    store = torch.empty(data.nbytes + 128, dtype=torch.uint8)
    skip = -store.data_ptr() % 128
    store[skip : skip + data.nbytes] = torch.from_numpy(data)
    return store[skip : skip + data.nbytes].as_subclass(OnGpu)


def empty(size: int) -> torch.Tensor:
    return put(np.zeros(size, np.uint8))


def data_of(tensor: torch.Tensor) -> bytes:
    return tensor.as_subclass(torch.Tensor).numpy().tobytes()


@pytest.fixture(autouse=True)
def _emulated(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(codec: Codec, launches: list[Launch], tensors: Sequence[torch.Tensor]) -> None:
        assert len({tensor.device for tensor in tensors}) == 1
        emulator.run(codec, launches)

    monkeypatch.setattr(cuda, "put", run)


def encoded() -> tuple[list[np.ndarray], torch.Tensor, torch.Tensor, cuda.Encoded]:
    chunks = [sample("scales", "bf16", n, n) for n in COUNTS]
    static = empty(sum(static_size(CODEC, n) for n in COUNTS))
    dynamic = empty(sum(max_dynamic_size(CODEC, n) for n in COUNTS))
    work = empty(cuda.workspace_size(CODEC, COUNTS, encoding=True))
    return chunks, static, dynamic, cuda.encode(CODEC, [put(c) for c in chunks], static, dynamic, workspace=work)


def test_tensors_there_and_back() -> None:
    chunks, static, dynamic, made = encoded()
    expected = on_cpu(CODEC, chunks)
    total = int(made.sizes.sum())
    assert data_of(static) == expected[0].tobytes()
    assert data_of(dynamic)[:total] == expected[1].tobytes()
    assert [made.sizes.tolist(), made.below.tolist(), made.above.tolist(), made.stored.tolist()] == [
        values.tolist() for values in (expected[2].sizes, expected[2].below, expected[2].above, expected[2].stored)
    ]
    outs = [empty(chunk.nbytes) for chunk in chunks]
    cuda.decode(CODEC, static, dynamic, outs).check()
    assert [data_of(out) for out in outs] == [chunk.tobytes() for chunk in chunks]
    starts = (np.cumsum(expected[2].sizes) - expected[2].sizes).tolist()
    cuda.decode(CODEC, static, dynamic, outs, offsets=starts).check()


def test_sums_of_two_senders() -> None:
    frames = [sample("scales", "bf16", n, sender) for sender in range(2) for n in COUNTS]
    static, dynamic, _ = on_cpu(CODEC, frames)
    expected = [np.zeros(2 * n, np.uint8) for n in COUNTS]
    decode_reduce(CODEC, static, dynamic, expected, senders=2)
    outs = [empty(2 * n) for n in COUNTS]
    cuda.decode_reduce(CODEC, put(static), put(dynamic), outs, senders=2).check()
    assert [data_of(out) for out in outs] == [e.tobytes() for e in expected]


def test_a_codec_without_kernels_is_refused() -> None:
    other = Codec("window")
    object.__setattr__(other, "id", "other")
    with pytest.raises(CodecError, match=r"expected one with CUDA kernels \(raw, window, cascade\); use the CPU"):
        cuda.workspace_size(other, [3], encoding=True)


def test_nothing_to_do() -> None:
    assert cuda.encode(CODEC, [], empty(0), empty(0)).sizes.tolist() == []
    cuda.decode(CODEC, empty(0), empty(0), []).check()


def test_damage_is_named_when_asked() -> None:
    chunks, static, dynamic, _ = encoded()
    static[3000] ^= 1
    status = cuda.decode(CODEC, static, dynamic, [empty(chunk.nbytes) for chunk in chunks])
    with pytest.raises(CodecError, match="frame 0: checksum: not as expected"):
        status.check()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: cuda.encode(CODEC, [empty(10)], empty(127), empty(9999)), "static_out: expected exactly"),
        (
            lambda: cuda.encode(CODEC, [empty(8192)], empty(static_size(CODEC, 4096)), empty(0)),
            "dynamic_out: expected at least",
        ),
        (lambda: cuda.encode(CODEC, [empty(9)], empty(0), empty(0)), "chunk 0: expected whole bf16 elements"),
        (
            lambda: cuda.encode(CODEC, [empty(16)[::2]], empty(0), empty(0)),
            "chunk 0: expected a contiguous CUDA tensor",
        ),
        (lambda: cuda.decode(CODEC, empty(300)[4:], empty(0), []), "static: expected exactly 0 bytes, found 296"),
        (lambda: cuda.decode(CODEC, empty(0), empty(200)[4:], []), "dynamic: expected to start on 16 bytes"),
        (lambda: cuda.decode(CODEC, empty(256), empty(0), [empty(0)], offsets=[6]), "static: expected exactly 128"),
        (lambda: cuda.decode(CODEC, empty(128), empty(0), [empty(0)], offsets=[6]), "offsets: expected 1 of them"),
        (
            lambda: cuda.decode_reduce(CODEC, empty(0), empty(0), [], senders=0),
            "expected a float dtype and ≥ 1 senders",
        ),
        (
            lambda: cuda.decode(CODEC, empty(128), empty(0), [empty(0)], workspace=empty(5)),
            "workspace: expected at least",
        ),
    ],
)
def test_what_does_not_fit_is_refused(call, words: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(CodecError, match=words):
        call()
