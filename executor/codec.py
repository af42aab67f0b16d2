"""Frames of equal slots on torch tensors: the seam between the interpreter and zipplan.kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor

from zipplan import kernels
from zipplan.executor.coders import Coder
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
    """Codes slots of `elements` elements each; flat uint8 tensors in and out, sizes in bytes.

    `codec`, `dtype`: ids of zipplan.kernels; `parameters`: as a plan holds them. Raises PlanError, CodecError.
    """

    def __init__(
        self, coder: Coder, codec: str, parameters: Mapping[str, int | float | str], dtype: str, elements: int
    ) -> None:
        self._coder, self._named = coder, (codec, parameters, dtype)
        self._others: dict[int, SlotCodec] = {}
        self._codec, self._params = codec_of(codec, parameters, dtype)
        self._elements = elements
        self.slot_bytes = elements * self._codec.item_bytes
        self.static_bytes = kernels.static_size(self._codec, elements)
        self.dynamic_bound = kernels.max_dynamic_size(self._codec, elements)

    def of(self, elements: int) -> SlotCodec:
        """The same codec for slots of another size."""
        if elements == self._elements:
            return self
        if elements not in self._others:
            self._others[elements] = SlotCodec(self._coder, *self._named, elements)
        return self._others[elements]

    def encode(self, src: Tensor, static: Tensor, dynamic: Tensor) -> None:
        """Encode all slots of `src`; dynamic regions packed from the start of `dynamic`."""
        self._coder.encode(self._codec, self._params, self._slots(src), static, dynamic)

    def sizes(self, *statics: Tensor) -> list[np.ndarray]:
        """Sizes of the dynamic regions, from the headers in each of these static regions. On a GPU it waits, once."""
        counts = [[self._elements] * (static.numel() // self.static_bytes) for static in statics]
        return self._coder.sizes(*((self._codec, s, n) for s, n in zip(statics, counts, strict=True)))

    def decode(self, static: Tensor, dynamic: Tensor, offsets: np.ndarray, dst: Tensor) -> None:
        """Decode frame i, its dynamic region at offsets[i], to slot i of `dst`."""
        self._coder.decode(self._codec, static, dynamic, self._slots(dst), offsets)

    def decode_reduce(self, static: Tensor, dynamic: Tensor, offsets: np.ndarray, senders: int, dst: Tensor) -> None:
        """Slot j of `dst` = sum over senders s of frame s · slots + j, in FP32 in that order, rounded once."""
        self._coder.decode_reduce(self._codec, static, dynamic, self._slots(dst), offsets, senders)

    def _slots(self, flat: Tensor) -> Sequence[Tensor]:
        return flat.view(-1, self.slot_bytes).unbind()
