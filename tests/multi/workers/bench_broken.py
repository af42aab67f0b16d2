"""The bench with a decoder that exchanges two blocks."""

from __future__ import annotations

from broken import swapping

from zipplan import kernels
from zipplan.executor.bench import main

kernels.decode = swapping(kernels.decode)  # type: ignore[assignment]
kernels.decode_reduce = swapping(kernels.decode_reduce)  # type: ignore[assignment]
main()
