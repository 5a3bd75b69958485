"""Launching Triton kernels, and the fallback where that fails.

Triton comes with a CUDA build of torch and is never required: it is imported when a kernel is about to run.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import nullcontext
from functools import cache, partial
from subprocess import CalledProcessError
from typing import Any, TypeVar

import torch
from torch import Tensor

from resolvent.runtime.dispatch import log

T = TypeVar("T")
_refused: set[Hashable] = set()


def attempt(key: Hashable, run: Callable[[], T], other: Callable[[], T]) -> T:
    """`run`, or `other` if Triton cannot compile or launch it here (too little shared memory), logged once."""
    if key not in _refused:
        try:
            return run()
        except _failures() as error:
            if isinstance(error, RuntimeError) and "C compiler" not in str(error):  # needed for the launchers
                raise
            _refused.add(key)
            log.warning("%s: the triton backend fails here, torch takes over: %s", key, str(error))
    return other()


@cache
def _failures() -> tuple[type[Exception], ...]:
    """Exceptions of a compiler or launcher on an unsupported device."""
    from triton.compiler.errors import CompilationError
    from triton.runtime.errors import OutOfResources, PTXASError

    return CompilationError, OutOfResources, PTXASError, CalledProcessError, RuntimeError


class Quick:
    """A Triton kernel that caches which machine code its arguments need, which Triton determines at every launch.

    That takes the host longer than most of our kernels run. A launch that agrees in everything Triton checks (the
    types and alignment of tensors, the values of numbers) calls the machine code directly; any other, and all launches
    under versions of Triton with another launcher, go through Triton.
    """

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.known: dict[Any, Any] = {}
        self.__doc__, self.__name__ = kernel.__doc__, getattr(kernel, "__name__", "")

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return partial(self.launch, grid)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.kernel, name)

    def launch(self, grid: tuple[int, ...], *args: Any, **meta: Any) -> None:
        device = args[0].get_device()  # the current device: see `on_device`
        marks = [(a.dtype, a.data_ptr() & 15) if isinstance(a, Tensor) else a for a in args]
        key = device, *meta.values(), *marks
        known = self.known.get(key) if _direct else None
        if known is None:
            made = self.kernel[grid](*args, **meta)
            if _direct and device >= 0 and hasattr(made, "packed_metadata"):
                self._remember(key, made, args, meta)
            return
        run, function, packed, rest = known
        stream = torch._C._cuda_getCurrentRawStream(device)
        try:
            run(*grid, *(1,) * (3 - len(grid)), stream, function, packed, None, None, None, *args, *rest)
        except TypeError:  # nothing was launched
            _direct.clear()
            self.kernel[grid](*args, **meta)

    def _remember(self, key: Any, made: Any, args: tuple[Any, ...], meta: dict[str, Any]) -> None:
        if len(self.known) >= MOST:  # bounds the cache when lengths keep changing
            self.known.clear()
        names = self.kernel.arg_names[len(args) :]
        if all(name in meta for name in names):  # one with a default goes through Triton
            self.known[key] = made.run, made.function, made.packed_metadata, [meta[name] for name in names]


def quick_jit(kernel: Callable[..., None] | None = None, **options: Any) -> Any:
    """`triton.jit`, with or without options, for a kernel that is launched through `Quick`."""
    import triton

    return partial(quick_jit, **options) if kernel is None else Quick(triton.jit(kernel, **options))


MOST = 4096
_direct = [True]  # empty if Triton cannot be bypassed


def either(t: Tensor | None, other: Tensor) -> Tensor:
    """A substitute for an argument that the kernel does not read."""
    return other if t is None else t


def on_device(x: Tensor) -> Any:
    """The context in which a kernel on x's device is launched; usually none is needed."""
    if x.is_cuda and x.device.index != torch.cuda.current_device():
        return torch.cuda.device(x.device)
    return nullcontext()
