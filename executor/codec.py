"""Frames of equal slots on torch tensors: the seam between the interpreter and zipplan.kernels."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from zipplan import kernels
from zipplan.planner.errors import PlanError, nearest

_PARAMETERS = ("slack", "base")


def codec_of(
    codec: str, parameters: Mapping[str, int | float | str], dtype: str
) -> tuple[kernels.Codec, kernels.Params]:
    """What a plan names, for zipplan.kernels. Raises PlanError, CodecError."""
    for name in parameters:
        if name not in _PARAMETERS:
            raise PlanError(f"codec {codec}: parameter {name!r} in the plan is unknown; {nearest(name, _PARAMETERS)}")
    return (
        kernels.Codec(codec, dtype, slack=int(parameters.get("slack", 0))),
        kernels.Params(base=int(parameters["base"]) if "base" in parameters else None),
    )


class SlotCodec:
    """Codes slots of `elements` elements each, on the CPU; flat uint8 tensors in and out, sizes in bytes.

    `codec`, `dtype`: ids of zipplan.kernels; `parameters`: as a plan holds them. Raises PlanError, CodecError.
    """

    def __init__(self, codec: str, parameters: Mapping[str, int | float | str], dtype: str, elements: int) -> None:
        self._codec, self._params = codec_of(codec, parameters, dtype)
        self._elements = elements
        self.slot_bytes = elements * self._codec.item_bytes
        self.static_bytes = kernels.static_size(self._codec, elements)
        self.dynamic_bound = kernels.max_dynamic_size(self._codec, elements)

    def encode(self, src: Tensor, static: Tensor, dynamic: Tensor) -> np.ndarray:
        """Encode all slots of `src`; dynamic regions packed from the start of `dynamic`. Returns their sizes."""
        encoded = kernels.encode(
            self._codec, self._slots(src), static.numpy(), dynamic.numpy(), params=self._params, threads=threads()
        )
        return encoded.sizes

    def sizes(self, static: Tensor) -> np.ndarray:
        """Sizes of the dynamic regions, from the headers in the static regions."""
        count = static.numel() // self.static_bytes
        return kernels.dynamic_sizes(self._codec, static.numpy(), [self._elements] * count)

    def decode(self, static: Tensor, dynamic: Tensor, offsets: np.ndarray, dst: Tensor) -> None:
        """Decode frame i, its dynamic region at offsets[i], to slot i of `dst`."""
        kernels.decode(
            self._codec, static.numpy(), dynamic.numpy(), self._slots(dst), offsets=offsets, threads=threads()
        )

    def decode_reduce(self, static: Tensor, dynamic: Tensor, offsets: np.ndarray, senders: int, dst: Tensor) -> None:
        """Slot j of `dst` = sum over senders s of frame s · slots + j, in FP32 in that order, rounded once."""
        kernels.decode_reduce(
            self._codec,
            static.numpy(),
            dynamic.numpy(),
            self._slots(dst),
            senders=senders,
            offsets=offsets,
            threads=threads(),
        )

    def _slots(self, flat: Tensor) -> list[np.ndarray]:
        return list(flat.numpy().reshape(-1, self.slot_bytes))


def threads() -> int:
    """As many as torch uses; torchrun sets one per rank unless OMP_NUM_THREADS says otherwise."""
    return torch.get_num_threads()
