"""zipplan.kernels on torch tensors: one interface over the CPU's codec and the GPU's.

A coder fills and reads the regions of frames; flat uint8 tensors, sizes in bytes. On a GPU every call only launches on
the current stream, except `sizes` and `check`, which wait: a collective asks for sizes once, so it waits once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from zipplan import kernels
from zipplan.kernels import Codec, Params
from zipplan.kernels.batch import HEADER
from zipplan.planner.errors import CodecError, DeviceError

Asked = tuple[Codec, Tensor, Sequence[int]]
"""Codec, static regions back to back, elements of each frame."""


class Coder(Protocol):
    """What the executor needs of a codec."""

    def encode(self, codec: Codec, params: Params, chunks: Sequence[Tensor], static: Tensor, dynamic: Tensor) -> None:
        """Encode each chunk; dynamic regions packed from the start of `dynamic`."""

    def sizes(self, *asked: Asked) -> list[np.ndarray]:
        """Bytes of every dynamic region, as the headers say; raises CodecError for frames that are not as asked."""

    def decode(
        self, codec: Codec, static: Tensor, dynamic: Tensor, outs: Sequence[Tensor], offsets: np.ndarray
    ) -> None:
        """Decode frame i, its dynamic region at offsets[i], into outs[i]."""

    def decode_reduce(
        self, codec: Codec, static: Tensor, dynamic: Tensor, outs: Sequence[Tensor], offsets: np.ndarray, senders: int
    ) -> None:
        """outs[j] = sum over senders s of frame s · len(outs) + j, in FP32 in that order, rounded once."""

    def check(self) -> None:
        """Raise CodecError for what earlier decoding found wrong and has not told yet."""


class CpuCoder:
    """On CPU tensors; faults are raised at once."""

    def encode(self, codec: Codec, params: Params, chunks: Sequence[Tensor], static: Tensor, dynamic: Tensor) -> None:
        """See Coder."""
        kernels.encode(codec, _arrays(chunks), static.numpy(), dynamic.numpy(), params=params, threads=threads())

    def sizes(self, *asked: Asked) -> list[np.ndarray]:
        """See Coder."""
        return [kernels.dynamic_sizes(codec, static.numpy(), counts) for codec, static, counts in asked]

    def decode(
        self, codec: Codec, static: Tensor, dynamic: Tensor, outs: Sequence[Tensor], offsets: np.ndarray
    ) -> None:
        """See Coder."""
        kernels.decode(codec, static.numpy(), dynamic.numpy(), _arrays(outs), offsets=offsets, threads=threads())

    def decode_reduce(
        self, codec: Codec, static: Tensor, dynamic: Tensor, outs: Sequence[Tensor], offsets: np.ndarray, senders: int
    ) -> None:
        """See Coder."""
        kernels.decode_reduce(
            codec, static.numpy(), dynamic.numpy(), _arrays(outs), senders=senders, offsets=offsets, threads=threads()
        )

    def check(self) -> None:
        """Nothing is ever left untold."""


class GpuCoder:
    """On CUDA tensors. What decoding finds wrong is told by the next `sizes` or `check`, which wait anyway.

    `waits` counts them. `library`: zipplan.kernels.cuda, or what stands in for it in tests.
    """

    def __init__(self, library: Any = None) -> None:
        if library is None:
            from zipplan.kernels import cuda as library
        self._library = library
        self._worst: Tensor | None = None  # one word: the largest status that decoding left; -1 is all well
        self._work: Tensor | None = None
        self.waits = 0

    def encode(self, codec: Codec, params: Params, chunks: Sequence[Tensor], static: Tensor, dynamic: Tensor) -> None:
        """See Coder."""
        counts = [chunk.nbytes // codec.item_bytes for chunk in chunks]
        work = self._workspace(self._library.workspace_size(codec, counts, encoding=True), static)
        self._library.encode(codec, chunks, static, dynamic, params=params, workspace=work)

    def sizes(self, *asked: Asked) -> list[np.ndarray]:
        """See Coder. Waits for the device once."""
        heads = [_heads(codec, static, counts) for codec, static, counts in asked]
        if self._worst is not None:
            heads.append(self._worst.view(torch.uint8))
        if not heads:
            return []
        self.waits += 1
        found = torch.cat(heads).cpu().numpy()
        if self._worst is not None:
            word, self._worst = int(found[-8:].view(np.int64)[0]), None
            self._raise(word)
        out, at = [], 0
        for codec, _, counts in asked:
            end = at + HEADER * len(counts)
            out.append(kernels.dynamic_sizes(codec, found[at:end], counts, headers_only=True))
            at = end
        return out

    def decode(
        self, codec: Codec, static: Tensor, dynamic: Tensor, outs: Sequence[Tensor], offsets: np.ndarray
    ) -> None:
        """See Coder."""
        self._decode(codec, static, dynamic, outs, offsets, None)

    def decode_reduce(
        self, codec: Codec, static: Tensor, dynamic: Tensor, outs: Sequence[Tensor], offsets: np.ndarray, senders: int
    ) -> None:
        """See Coder."""
        self._decode(codec, static, dynamic, outs, offsets, senders)

    def check(self) -> None:
        """See Coder. Waits for the device if anything was decoded since it last did."""
        if self._worst is not None:
            self.waits += 1
            word, self._worst = int(self._worst.item()), None
            self._raise(word)

    def _decode(
        self, codec: Codec, static: Tensor, dynamic: Tensor, outs: Sequence[Tensor], offsets: np.ndarray,
        senders: int | None,
    ) -> None:  # fmt: skip
        counts = [out.nbytes // codec.item_bytes for out in outs]
        size = self._library.workspace_size(codec, counts, senders=senders or 1, encoding=False)
        more: dict[str, Any] = {"offsets": offsets.tolist(), "workspace": self._workspace(size, static)}
        if senders is None:
            status = self._library.decode(codec, static, dynamic, outs, **more)
        else:
            status = self._library.decode_reduce(codec, static, dynamic, outs, senders=senders, **more)
        self._worst = status.word if self._worst is None else torch.maximum(self._worst, status.word)

    def _raise(self, word: int) -> None:
        if word != -1:
            raise CodecError(self._library.describe(word), **self._library.located(word))

    def _workspace(self, size: int, like: Tensor) -> Tensor:
        """Kept from call to call, which follow one another on one stream or wait for each other (Lane)."""
        if self._work is None or self._work.numel() < size or self._work.device != like.device:
            self._work = like.new_empty(size, dtype=torch.uint8)
        return self._work


def coder_for(device: torch.device) -> Coder:
    """A coder for tensors on this device."""
    return CpuCoder() if device.type == "cpu" else GpuCoder()


def missing(device: torch.device, used: Iterable[tuple[str, str]]) -> str:
    """Why tensors on this device cannot be coded with these (codec id, dtype) pairs; "" when they can.

    On a GPU it compiles and loads their kernels, so that no collective waits for a compiler.
    """
    if device.type == "cpu":
        return ""
    from zipplan.kernels.cuda import driver, launch

    try:
        for codec, dtype in sorted(set(used)):
            driver.module(*launch.ids(Codec(codec, dtype)), device.index or 0)
    except (DeviceError, CodecError) as error:
        return f"no codec on the GPU: {error}"
    return ""


def threads() -> int:
    """As many as torch uses; torchrun sets one per rank unless OMP_NUM_THREADS says otherwise."""
    return torch.get_num_threads()


def _arrays(tensors: Sequence[Tensor]) -> list[np.ndarray]:
    return [tensor.numpy() for tensor in tensors]


def _heads(codec: Codec, static: Tensor, counts: Sequence[int]) -> Tensor:
    """The headers of the frames, back to back."""
    strides = [kernels.static_size(codec, n) for n in counts]
    if len(set(strides)) == 1:
        return static.view(len(strides), strides[0])[:, :HEADER].reshape(-1)
    return torch.cat([frame[:HEADER] for frame in static.split(strides)]) if strides else static[:0]
