"""Half precision of modules: layers keep at least float32, as bfloat16 cannot represent |lambda| = 0.999, and initial
values are drawn and computed in float32 before a module of another kind takes a half default dtype."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
T = TypeVar("T")
HALF = (torch.bfloat16, torch.float16)


def not_below_float32(old: Tensor, new: Tensor) -> Tensor:
    """`new`, the cast of a tensor, or where that is half, `old` on its device."""
    return old.to(new.device) if new.dtype in HALF and old.dtype not in HALF else new


def build_in_float32(build: Callable[P, T]) -> Callable[P, T]:
    """A constructor, or a function that returns a module: under a half default dtype as if built in float32 and cast.

    Modules that the constructor was given are cast along.
    """

    @wraps(build)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        default = torch.get_default_dtype()
        if default not in HALF:
            return build(*args, **kwargs)
        torch.set_default_dtype(torch.float32)
        try:
            made = build(*args, **kwargs)
        finally:
            torch.set_default_dtype(default)
        module: Any = args[0] if made is None else made
        module.float().to(default)
        return made

    return run
