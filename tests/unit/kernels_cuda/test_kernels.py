"""The CUDA kernels' source, run by the shim: frames byte-equal to the CPU's and the oracle's, data back bit by bit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from emulator import Emulator, aligned
from samples import CODECS, FLOATS, SIZES, on_cpu, sample

from zipplan.kernels import Codec, Params, cuda, decode, decode_reduce, max_dynamic_size, reference, static_size
from zipplan.kernels.codec import ITEM_BYTES
from zipplan.planner.errors import CodecError

FINE = 2**64 - 1
BOTH = [codec for codec in CODECS if codec.slack == 0 and codec.id != "raw"]


def name(value: object) -> str:
    return f"{value.id}-{value.dtype}-{value.slack}" if isinstance(value, Codec) else str(value)


def check(
    emulator: Emulator, codec: Codec, chunks: Sequence[np.ndarray], params: Params | None = None, seed: int = 1
) -> None:
    """Encodes on both, compares all bytes, and decodes what the CPU made."""
    static, dynamic, encoded = on_cpu(codec, chunks, params)
    own_static, own_dynamic, sizes = emulator.encode(codec, chunks, params, seed)
    assert own_static.tobytes() == static.tobytes()
    assert own_dynamic.tobytes() == dynamic.tobytes()
    assert sizes.T.tolist() == [
        encoded.sizes.tolist(),
        encoded.below.tolist(),
        encoded.above.tolist(),
        encoded.stored.tolist(),
    ]
    outs = [aligned(chunk.nbytes) for chunk in chunks]
    assert emulator.decode(codec, own_static, own_dynamic, outs, seed=seed + 1) == FINE
    for chunk, out in zip(chunks, outs, strict=True):
        assert out.tobytes() == chunk.tobytes()


@pytest.mark.parametrize("kind", ["normal", "scales", "zeros", "upcast", "random"])
@pytest.mark.parametrize("codec", CODECS, ids=name)
def test_every_size_in_one_launch_equals_the_cpu(emulator: Emulator, codec: Codec, kind: str) -> None:
    """F001, F013, F017, F032, F132, F133: uneven chunks, empty ones among them, in one call."""
    if kind == "upcast" and codec.dtype != "fp32":
        kind = "normal"
    sizes = SIZES if kind == "normal" else SIZES[:-1]
    check(emulator, codec, [sample(kind, codec.dtype, n, i) for i, n in enumerate(sizes)], seed=len(kind) + codec.slack)


@pytest.mark.parametrize("codec", [c for c in BOTH if c.item_bytes == 2], ids=name)
def test_every_16_bit_pattern_in_three_orders(emulator: Emulator, codec: Codec) -> None:
    """F006, F008: NaN payloads, -0, subnormals; also strewn into ordinary values, where tiles stay coded."""
    patterns = np.arange(65536, dtype=np.uint16)
    shuffled = np.random.default_rng(6).permutation(patterns)
    strewn = sample("normal", codec.dtype, 16 * 65536).view(np.uint16).copy()
    strewn[3::16] = shuffled
    check(emulator, codec, [p.copy().view(np.uint8) for p in (patterns, patterns[::-1], shuffled, strewn)])


@pytest.mark.parametrize("codec", [c for c in BOTH if c.dtype in ("bf16", "fp32", "fp8_e5m2")], ids=name)
def test_frames_equal_the_numpy_oracle(emulator: Emulator, codec: Codec) -> None:
    for n in (0, 1, 5000):
        raw = sample("scales", codec.dtype, n)
        static, dynamic, _ = emulator.encode(codec, [raw])
        assert static.tobytes() + dynamic.tobytes() == reference.encode_frame(codec, raw.tobytes())


@pytest.mark.parametrize("offset", [1, 2, 3, 4, 6, 7, 8, 14])
@pytest.mark.parametrize("codec", ["raw", "window", "cascade"])
def test_input_and_output_at_any_address(emulator: Emulator, codec: str, offset: int) -> None:
    """F021: contiguous is not aligned. Nothing before or after the elements is written."""
    for dtype in ("bf16", "fp32", "fp8_e4m3"):
        raw = sample("normal", dtype, 4096 + 333, offset)
        store = aligned(raw.nbytes + 32)
        store[offset : offset + raw.nbytes] = raw
        static, dynamic, _ = on_cpu(Codec(codec, dtype), [raw])
        own_static, own_dynamic, _ = emulator.encode(Codec(codec, dtype), [store[offset : offset + raw.nbytes]])
        assert (own_static.tobytes(), own_dynamic.tobytes()) == (static.tobytes(), dynamic.tobytes())
        store = aligned(raw.nbytes + 32)
        assert emulator.decode(Codec(codec, dtype), static, dynamic, [store[offset : offset + raw.nbytes]]) == FINE
        assert store[offset : offset + raw.nbytes].tobytes() == raw.tobytes()
        assert set(store[:offset].tolist() + store[offset + raw.nbytes :].tolist()) == {0xEE}


@pytest.mark.parametrize("codec", ["window", "cascade"])
def test_chunks_of_several_segments_and_more_than_one_upload(emulator: Emulator, codec: str) -> None:
    counts = [0, 3, 4096 * 70 + 9, 0, 1, 4096 * 33] + [n % 7 for n in range(200)] + [4096 * 32, 0]
    check(emulator, Codec(codec, "bf16"), [sample("scales", "bf16", n, i) for i, n in enumerate(counts)])


@pytest.mark.parametrize("codec", ["window", "cascade"])
def test_given_parameters(emulator: Emulator, codec: str) -> None:
    ranking = tuple(np.random.default_rng(3).permutation(16).tolist()) if codec == "cascade" else None
    for dtype in FLOATS:
        for params in (Params(base=0), Params(base=117, ranking=ranking), Params(base=255), Params(ranking=ranking)):
            check(emulator, Codec(codec, dtype), [sample("scales", dtype, n) for n in (5000, 300)], params)
    if codec == "window":
        check(emulator, Codec(codec, "bf16"), [sample("normal", "bf16", 5000)], Params(shift=-2))


@pytest.mark.parametrize("codec", ["window", "cascade"])
def test_the_schedule_of_threads_changes_no_byte(emulator: Emulator, codec: str) -> None:
    raw = sample("scales", "bf16", 6000)
    results = {seed: emulator.encode(Codec(codec, "bf16"), [raw], seed=seed) for seed in range(2, 12)}
    assert len({(static.tobytes(), dynamic.tobytes()) for static, dynamic, _ in results.values()}) == 1


@pytest.mark.parametrize("codec", [c for c in CODECS if c.slack == 0 and c.dtype != "u8"], ids=name)
def test_decode_reduce_equals_the_cpu(emulator: Emulator, codec: Codec) -> None:
    """Sums in the order of senders with one rounding, random bits (NaN, infinities, subnormals) among them."""
    counts, senders = [5000, 0, 77], 3
    frames = [
        sample("random" if sender == 1 else "scales", codec.dtype, n, sender)
        for sender in range(senders)
        for n in counts
    ]
    static, dynamic, _ = on_cpu(codec, frames)
    outs, own = ([aligned(n * codec.item_bytes) for n in counts] for _ in range(2))
    decode_reduce(codec, static, dynamic, outs, senders=senders)
    assert emulator.decode(codec, static, dynamic, own, senders=senders) == FINE
    for expected, found in zip(outs, own, strict=True):
        assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize("codec", [Codec(c, "bf16", 0, True) for c in ("raw", "window", "cascade")], ids=name)
def test_checksums(emulator: Emulator, codec: Codec) -> None:
    chunks = [sample("scales", "bf16", n) for n in (9000, 0, 40)]
    check(emulator, codec, chunks)
    static, dynamic, _ = on_cpu(codec, chunks)
    static[static_size(codec, 9000) - 200] ^= 16
    word = emulator.decode(codec, static, dynamic, [aligned(c.nbytes) for c in chunks])
    assert word == 12  # frame 0, no tile, field 12: the checksum


def test_dynamic_regions_at_given_offsets(emulator: Emulator) -> None:
    codec = Codec("window", "bf16")
    chunks = [sample("scales", "bf16", n, n) for n in (9000, 5000, 0)]
    static, dynamic, encoded = on_cpu(codec, chunks)
    ends, offsets = np.cumsum(encoded.sizes), [int(encoded.sizes[1]) + 8, 4, 0]  # the second before the first
    spread = aligned(dynamic.nbytes + 8)
    for start, end, to in zip(ends - encoded.sizes, ends, offsets, strict=True):
        spread[to : to + end - start] = dynamic[start:end]
    outs = [aligned(c.nbytes) for c in chunks]
    assert emulator.decode(codec, static, spread, outs, offsets=offsets) == FINE
    assert [o.tobytes() for o in outs] == [c.tobytes() for c in chunks]


def verdicts(emulator: Emulator, codec: Codec, static: np.ndarray, dynamic: np.ndarray, sizes: Sequence[int]) -> list:
    """What is wrong by the CPU and by the kernels, as (frame, tile, field), or the decoded bytes."""
    outs = [[aligned(n * codec.item_bytes) for n in sizes] for _ in range(2)]
    found = []
    try:
        decode(codec, static, dynamic, outs[0])
        found.append([out.tobytes() for out in outs[0]])
    except CodecError as error:
        found.append(tuple(error.details[key] for key in ("chunk", "tile", "field")))
    word = emulator.decode(codec, static, dynamic, outs[1])
    if word == FINE:
        return [*found, [out.tobytes() for out in outs[1]]]
    return [*found, tuple(cuda.located(word)[key] for key in ("chunk", "tile", "field"))]


def test_a_wrong_header_is_reported_as_on_the_cpu(emulator: Emulator) -> None:
    """F010, F012: every byte of the second of three headers."""
    sizes = (5000, 6000, 40)
    for codec in (Codec("window", "bf16"), Codec("cascade", "bf16", 112)):
        static, dynamic, _ = on_cpu(codec, [sample("normal", "bf16", n, n) for n in sizes])
        for at in range(64):
            bad = static.copy()
            bad[static_size(codec, sizes[0]) + at] ^= 1
            expected, found = verdicts(emulator, codec, bad, dynamic, sizes)
            assert isinstance(expected, tuple)
            if at == 7:  # a checksum that nobody asked for: the CPU checks it, the kernels refuse the frame
                expected = (1, -1, "flags")
            if at == 5:  # another codec: which field is wrong then is for those who know that codec
                assert found[:2] == expected[:2]
            elif expected[2] != "length":  # the kernels take regions that are longer than the headers say
                assert found == expected


def test_a_wrong_tile_is_reported_as_on_the_cpu(emulator: Emulator) -> None:
    """Every byte of a record, then damage anywhere: one verdict, or the same bytes."""
    rng = np.random.default_rng(12)
    for codec in (
        Codec("window", "bf16"),
        Codec("cascade", "bf16"),
        Codec("cascade", "fp32", 112),
        Codec("cascade", "fp16"),
    ):
        sizes = (5000, 300)
        static, dynamic, _ = on_cpu(codec, [sample("zeros", codec.dtype, n, n) for n in sizes])
        second = slot_size(codec) + 64
        places = [second + at for at in range(16)] + rng.integers(64, static.nbytes, 40).tolist()
        for at in places:
            bad = static.copy()
            bad[at] ^= 1 << int(rng.integers(8))
            expected, found = verdicts(emulator, codec, bad, dynamic, sizes)
            assert found == expected
        for at in rng.integers(0, dynamic.nbytes, 20).tolist():
            bad = dynamic.copy()
            bad[at] ^= 1 << int(rng.integers(8))
            expected, found = verdicts(emulator, codec, static, bad, sizes)
            assert found == expected


def slot_size(codec: Codec) -> int:
    """Bytes of a full tile's slot, from what a second tile adds to the static region."""
    return (static_size(codec, 129 * 4096) - static_size(codec, 4096)) // 128


def test_bounds_of_a_call() -> None:
    """Empty calls launch nothing, and sizes past 2^32 bytes are counted whole (F001, F018)."""
    from zipplan.kernels.cuda import launch, workspace_size

    codec = Codec("cascade", "fp32")
    places = {"static": 0, "dynamic": 0, "work": 0, "status": 0}
    assert launch.encode_launches(codec, [], [], sizes=0, **places) == []
    assert launch.decode_launches(codec, [], [], dynamic_bytes=0, **places) == []
    huge = 2**32 - 4096
    steps = launch.encode_launches(codec, [0, 0], [huge, 5], sizes=0, **places)
    upload = steps[0].parameters[1]
    assert upload.chunks[1].static_at == static_size(codec, huge) > 2**32
    assert upload.chunks[1].first_tile == 2**20 - 1
    assert workspace_size(codec, [huge], encoding=True) > max_dynamic_size(codec, huge)
    assert ITEM_BYTES[codec.dtype] * huge > 2**33
