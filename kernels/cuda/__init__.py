"""The codec on CUDA tensors: the same frames as on the CPU, byte for byte, on the current stream.

    sizes = encode(codec, chunks, static, dynamic).sizes        # int64[P] on the device: nothing waits for them
    decode(codec, static, dynamic, outs).check()                # check() alone waits for the device

Arguments are as in `zipplan.kernels`, with contiguous CUDA tensors of any dtype in place of arrays; regions start on
16 bytes. A call only launches: it neither waits nor copies, and with `workspace` given it takes no device memory but a
few words for its result. So it may be captured in a CUDA graph, once a first call has loaded the kernels. Everything
belongs to the current stream: tensors that other streams use are the caller's to record or wait for. Importing this
loads neither torch nor a driver nor a compiler.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zipplan.kernels.codec import Codec, Params, elements, max_dynamic_size, static_size
from zipplan.kernels.cuda import driver, launch
from zipplan.kernels.native import FIELDS
from zipplan.planner.errors import CodecError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Encoded", "Status", "decode", "decode_reduce", "encode", "workspace_size"]


@dataclass(frozen=True)
class Encoded:
    """What `encode` will have written once the stream gets there: int64 tensors on the device, one entry per chunk.

    Meanings as in `zipplan.kernels.Encoded`.
    """

    sizes: Tensor
    below: Tensor
    above: Tensor
    stored: Tensor


@dataclass(frozen=True)
class Status:
    """What a decoding call found, on the device: one int64 word, -1 if all was right."""

    word: Tensor

    def check(self) -> None:
        """Waits for the call. CodecError naming frame, tile and field of the first that was wrong."""
        word = int(self.word.item())
        if word != -1:
            raise CodecError(describe(word), **located(word))


def located(word: int) -> dict[str, object]:
    return {"chunk": word >> 32, "tile": (word >> 8 & 0xFFFFFF) - 1, "field": FIELDS[word & 255][0]}


def describe(word: int) -> str:
    at = located(word)
    place = f"frame {at['chunk']}" + (f", tile {at['tile']}" if at["tile"] != -1 else "")
    return (
        f"{place}: {at['field']}: not as expected; the data are damaged, cut off or written with other settings: "
        "encode again with the codec that decodes (zipplan.kernels.decode of a copy says what was expected and found)"
    )


def workspace_size(codec: Codec, counts: Sequence[int], *, senders: int = 1, encoding: bool) -> int:
    """Bytes of `workspace` for a call on chunks of `counts` elements."""
    return launch.workspace(codec, counts, senders=senders, encoding=encoding).size


def encode(
    codec: Codec,
    chunks: Sequence[Tensor],
    static_out: Tensor,
    dynamic_out: Tensor,
    *,
    params: Params | None = None,
    workspace: Tensor | None = None,
) -> Encoded:
    """Encodes each chunk to a frame; all in a handful of launches, however many chunks.

    Raises CodecError on a buffer that does not fit, DeviceError where kernels cannot be built or launched.
    """
    counts = [count(codec, chunk, f"chunk {i}") for i, chunk in enumerate(chunks)]
    room(static_out, sum(static_size(codec, n) for n in counts), "static_out", exact=True)
    room(dynamic_out, sum(max_dynamic_size(codec, n) for n in counts), "dynamic_out")
    work = workspace_or_new(workspace, workspace_size(codec, counts, encoding=True), static_out)
    sizes, status = words(static_out, 4 * len(counts)).view(-1, 4), words(static_out, 1)
    launches = launch.encode_launches(
        codec,
        [chunk.data_ptr() for chunk in chunks],
        counts,
        static=static_out.data_ptr(),
        dynamic=dynamic_out.data_ptr(),
        work=work.data_ptr(),
        sizes=sizes.data_ptr(),
        status=status.data_ptr(),
        params=params,
    )
    put(codec, launches, [*chunks, static_out, dynamic_out, work])
    return Encoded(*sizes.unbind(1))


def decode(
    codec: Codec,
    static: Tensor,
    dynamic: Tensor,
    outs: Sequence[Tensor],
    *,
    offsets: Sequence[int] | None = None,
    workspace: Tensor | None = None,
) -> Status:
    """Decodes frame i into outs[i].

    dynamic: at least the dynamic regions, back to back, or each at its byte `offsets` (multiples of 4). A frame that is
    damaged shows in the Status and leaves its `outs` undefined; nothing outside the tensors is touched.
    A checksum is checked where `codec` has one, and refused where it has none.
    """
    return launched(codec, static, dynamic, outs, None, offsets, workspace)


def decode_reduce(
    codec: Codec,
    static: Tensor,
    dynamic: Tensor,
    outs: Sequence[Tensor],
    *,
    senders: int,
    offsets: Sequence[int] | None = None,
    workspace: Tensor | None = None,
) -> Status:
    """Decodes and sums: outs[j] = the sum over senders of frame s * len(outs) + j, as on the CPU."""
    if codec.dtype == "u8" or senders < 1:
        raise CodecError(f"decode_reduce: expected a float dtype and ≥ 1 senders, found {codec.dtype!r} and {senders}")
    return launched(codec, static, dynamic, outs, senders, offsets, workspace)


def launched(  # type: ignore[no-untyped-def]
    codec: Codec, static: Tensor, dynamic: Tensor, outs: Sequence[Tensor], senders: int | None, offsets, workspace
) -> Status:
    counts = [count(codec, out, f"outs[{i}]") for i, out in enumerate(outs)]
    frames = (senders or 1) * len(outs)
    room(static, (senders or 1) * sum(static_size(codec, n) for n in counts), "static", exact=True)
    room(dynamic, 0, "dynamic")
    if offsets is not None and (len(offsets) != frames or any(at < 0 or at % 4 for at in offsets)):
        raise CodecError(f"offsets: expected {frames} of them, multiples of 4 from 0 up, found {list(offsets)}")
    size = workspace_size(codec, counts, senders=senders or 1, encoding=False)
    work, status = workspace_or_new(workspace, size, static), words(static, 1)
    if not counts:
        status.fill_(-1)
    launches = launch.decode_launches(
        codec,
        [out.data_ptr() for out in outs],
        counts,
        static=static.data_ptr(),
        dynamic=dynamic.data_ptr(),
        dynamic_bytes=dynamic.nbytes,
        work=work.data_ptr(),
        status=status.data_ptr(),
        senders=senders,
        offsets=offsets,
    )
    put(codec, launches, [static, dynamic, *outs, work])
    return Status(status)


def put(codec: Codec, launches: list[launch.Launch], tensors: Sequence[Tensor]) -> None:
    import torch

    device = tensors[-1].device
    other = next((t for t in tensors if t.device != device), None)
    if other is not None:
        raise CodecError(f"tensors of one call: expected all on {device}, found one on {other.device}")
    if launches:
        with torch.cuda.device(device):
            driver.run(codec, launches, device.index or 0, torch.cuda.current_stream(device).cuda_stream)


def words(like: Tensor, n: int) -> Tensor:
    return like.new_empty(n, dtype=torch_int64())


def torch_int64():  # type: ignore[no-untyped-def]
    import torch

    return torch.int64


def workspace_or_new(workspace: Tensor | None, size: int, like: Tensor) -> Tensor:
    if workspace is None:
        import torch

        return like.new_empty(size, dtype=torch.uint8)
    room(workspace, size, "workspace")
    return workspace


def count(codec: Codec, tensor: Tensor, what: str) -> int:
    room(tensor, 0, what, boundary=1)
    if tensor.nbytes % codec.item_bytes:
        raise CodecError(
            f"{what}: expected whole {codec.dtype} elements of {codec.item_bytes} bytes, found {tensor.nbytes} bytes"
        )
    return elements(codec, tensor.nbytes // codec.item_bytes)


def room(tensor: Tensor, size: int, what: str, *, exact: bool = False, boundary: int = 16) -> None:
    """CodecError unless it is a contiguous CUDA tensor of `size` bytes that starts on `boundary`."""
    if not getattr(tensor, "is_cuda", False) or not tensor.is_contiguous():
        found = f"{type(tensor).__name__} on {getattr(tensor, 'device', 'no device')}"
        raise CodecError(f"{what}: expected a contiguous CUDA tensor, found {found}; zipplan.kernels takes CPU arrays")
    if tensor.nbytes < size or (exact and tensor.nbytes != size):
        raise CodecError(f"{what}: expected {'exactly' if exact else 'at least'} {size} bytes, found {tensor.nbytes}")
    if tensor.data_ptr() % boundary:
        raise CodecError(f"{what}: expected to start on {boundary} bytes, found address {tensor.data_ptr():#x}")
