"""The emulator in the GPU's place for a whole process: CPU tensors go the way of CUDA tensors through kernels.cuda."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from emulator import Emulator

from zipplan.kernels import Codec, cuda
from zipplan.kernels.cuda.launch import Launch


class OnGpu(torch.Tensor):
    """A CPU tensor that passes for a CUDA one."""

    is_cuda = property(lambda self: True)


def install(emulator: Emulator) -> None:
    """Launches run on the CPU; every other check of kernels.cuda stays."""
    room = cuda.room

    def run(codec: Codec, launches: list[Launch], tensors: Sequence[torch.Tensor]) -> None:
        emulator.run(codec, launches)

    def checked(tensor: torch.Tensor, size: int, what: str, *, exact: bool = False, boundary: int = 16) -> None:
        room(tensor.as_subclass(OnGpu), size, what, exact=exact, boundary=boundary)

    cuda.put, cuda.room = run, checked


def emulator() -> Emulator:
    """Built once per change of the kernels' source, for bf16 only."""
    return Emulator(Path(__file__).parents[2] / "build" / "emulator", pairs=((0, 0), (0, 1), (1, 1), (2, 1)))
