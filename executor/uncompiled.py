"""Methods that torch.compile steps around: it would follow NumPy arrays and handles as if they were tensors."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch

Method = TypeVar("Method", bound=Callable[..., Any])


def uncompiled(method: Method) -> Method:
    """`method`, run as it is written between the compiled parts of a function that calls it.

    With fullgraph=True the compiler refuses such a function and names the method. torch.compiler.disable loads the
    compiler, which takes as long as torch itself, so it is asked only in programs that have loaded it.
    """
    apart: list[Callable[..., Any]] = []

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        if "torch._dynamo" not in sys.modules:
            return method(*args, **kwargs)
        if not apart:
            apart.append(torch.compiler.disable(method))
        return apart[0](*args, **kwargs)

    call.__dict__["_torchdynamo_disable"] = True  # as torch.compiler.disable marks what it returns
    return cast(Method, call)
