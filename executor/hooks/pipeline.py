"""Pipelines: activations and gradients between stages as frames, static region first.

The receiver knows the static region's size from its tensor, so it needs no message before the data; the header says how
much follows. Plans do not choose for sends yet, so codec and least size are the caller's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from zipplan import kernels
from zipplan.executor import gloo
from zipplan.executor.calls import dtype_name, flat_bytes
from zipplan.executor.codec import codec_of
from zipplan.executor.coders import threads
from zipplan.executor.session import Session
from zipplan.kernels.codec import ITEM_BYTES
from zipplan.planner.units import format_size

Transfer = tuple[Tensor, int]
"""A tensor and the peer's rank in the session's group."""

_TAG = 0x5A50  # static region of the n-th tensor between two ranks: + 2n, dynamic: + 2n + 1


class Pipe:
    """Sends and receives between ranks of a session, compressed from `least` bytes on where the codec has the dtype.

    Both ends need tensors of equal dtype and number of elements.
    """

    def __init__(self, session: Session, codec: str = "cascade", *, least: int = 1 << 20) -> None:
        self.session, self.codec, self.least = session, codec, least

    def send(self, tensor: Tensor, to: int) -> None:
        """Send one tensor; returns when it may be written again."""
        self.exchange([(tensor, to)], [])

    def recv(self, tensor: Tensor, source: int) -> None:
        """Receive into one tensor."""
        self.exchange([], [(tensor, source)])

    @torch.no_grad()
    def exchange(self, sends: Sequence[Transfer], receives: Sequence[Transfer]) -> None:
        """All sends and receives at once, so that neighbours can send to each other; tensors of any layout.

        Between two ranks they are matched by order. Raises CollectiveError as collectives do.
        """
        what = ", ".join(
            [f"send of {format_size(t.nbytes)} to rank {p}" for t, p in sends]
            + [f"receive of {format_size(t.nbytes)} from rank {p}" for t, p in receives]
        )
        self.session.lane.run(lambda: self._exchange(sends, receives, what))

    def _exchange(self, sends: Sequence[Transfer], receives: Sequence[Transfer], what: str) -> None:
        watch, group = self.session.watch, self.session.group
        with watch.following(lambda: what):
            watch.stage = "encode"
            arriving = [self._room(tensor) for tensor, _ in receives]
            waits: list[tuple[str, Any, Tensor]] = []
            statics = []
            for (static, _), (_, peer), tag in zip(arriving, receives, _tags(receives), strict=True):
                statics.append(self._waited(group.recv([static], peer, tag), static) if static.numel() else None)
            for (tensor, peer), tag in zip(sends, _tags(sends), strict=True):
                for part, place in zip(self._encoded(tensor), (tag, tag + 1), strict=True):
                    if part.numel():
                        waits.append(("send", self._waited(group.send([part], peer, place), part), part))
            dynamics: list[tuple[Tensor, Any]] = []
            for (static, coder), handle, (tensor, peer), tag in zip(
                arriving, statics, receives, _tags(receives), strict=True
            ):
                watch.stage = "static"
                if handle is not None:
                    watch.wait(handle, static)
                size = 0 if coder is None else int(kernels.dynamic_sizes(coder, static.numpy(), [tensor.numel()])[0])
                dynamic = torch.empty(size, dtype=torch.uint8)
                handle = self._waited(group.recv([dynamic], peer, tag + 1), dynamic) if size else None
                dynamics.append((dynamic, handle))
            for (static, coder), (dynamic, handle), (tensor, _) in zip(arriving, dynamics, receives, strict=True):
                watch.stage = "dynamic"
                if handle is not None:
                    watch.wait(handle, dynamic)
                watch.stage = "decode"
                raw = static
                if coder is not None:
                    raw = torch.empty(tensor.nbytes, dtype=torch.uint8)
                    kernels.decode(coder, static.numpy(), dynamic.numpy(), [raw.numpy()], threads=threads())
                tensor.copy_(raw.to(tensor.device).view(tensor.dtype).view(tensor.shape))
            for stage, handle, part in waits:
                watch.stage = stage
                watch.wait(handle, part)

    def _waited(self, handle: Any, part: Tensor) -> Any:
        group = self.session.group
        return gloo.Moving(group, [handle], part) if gloo.serves(group, part) else handle

    def _coder(self, tensor: Tensor) -> tuple[kernels.Codec, kernels.Params] | None:
        """What both ends use for such a tensor; None: raw."""
        name = dtype_name(tensor.dtype)
        off = self.session.switches.disabled or tensor.device.type != "cpu"
        if off or name not in ITEM_BYTES or tensor.nbytes < max(self.least, 1) or tensor.dtype is torch.uint8:
            return None
        return codec_of(self.codec, {}, name)

    def _room(self, tensor: Tensor) -> tuple[Tensor, kernels.Codec | None]:
        """Where the static region (or the raw bytes) of a tensor arrives."""
        coder = self._coder(tensor)
        size = tensor.nbytes if coder is None else kernels.static_size(coder[0], tensor.numel())
        device = tensor.device if coder is None else torch.device("cpu")
        return torch.empty(size, dtype=torch.uint8, device=device), None if coder is None else coder[0]

    def _encoded(self, tensor: Tensor) -> tuple[Tensor, Tensor]:
        """Static and dynamic region of a tensor; its bytes and nothing where it goes raw."""
        flat = flat_bytes(tensor)
        if flat is None:
            flat = flat_bytes(tensor.resolve_conj().resolve_neg().contiguous())
        assert flat is not None
        coder = self._coder(tensor)
        if coder is None:
            return flat, flat[:0]
        codec, params = coder
        static = torch.empty(kernels.static_size(codec, tensor.numel()), dtype=torch.uint8)
        dynamic = torch.empty(kernels.max_dynamic_size(codec, tensor.numel()), dtype=torch.uint8)
        done = kernels.encode(codec, [flat.numpy()], static.numpy(), dynamic.numpy(), params=params, threads=threads())
        return static, dynamic[: int(done.sizes[0])]


def _tags(transfers: Sequence[Transfer]) -> list[int]:
    """Tag of each transfer's static region: by its place among those with the same peer."""
    seen: dict[int, int] = {}
    tags = []
    for _, peer in transfers:
        tags.append(_TAG + 2 * seen.get(peer, 0))
        seen[peer] = seen.get(peer, 0) + 1
    return tags
