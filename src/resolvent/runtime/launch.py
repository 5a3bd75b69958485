"""How a Triton kernel is launched, and what runs where it cannot be.

Triton comes with a CUDA build of torch and is never required: it is imported where a kernel is about to run.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import nullcontext
from functools import cache
from subprocess import CalledProcessError
from typing import Any, TypeVar

import torch
from torch import Tensor

from resolvent.runtime.dispatch import log

T = TypeVar("T")
_refused: set[Hashable] = set()


def attempt(key: Hashable, run: Callable[[], T], other: Callable[[], T]) -> T:
    """`run`, or `other` where Triton cannot compile or launch it here (a device with less on chip), said once."""
    if key not in _refused:
        try:
            return run()
        except _failures() as error:
            if isinstance(error, RuntimeError) and "C compiler" not in str(error):  # which makes the launchers
                raise
            _refused.add(key)
            log.warning("%s: the triton backend fails here, torch takes over: %s", key, str(error))
    return other()


@cache
def _failures() -> tuple[type[Exception], ...]:
    """What a compiler or a launcher throws on a device that it does not serve."""
    from triton.compiler.errors import CompilationError
    from triton.runtime.errors import OutOfResources, PTXASError

    return CompilationError, OutOfResources, PTXASError, CalledProcessError, RuntimeError


def on_device(x: Tensor) -> Any:
    """The context in which a kernel on x's device is launched; most often none is needed."""
    if x.is_cuda and x.device.index != torch.cuda.current_device():
        return torch.cuda.device(x.device)
    return nullcontext()
