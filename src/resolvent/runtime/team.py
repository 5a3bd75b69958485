"""Compiled kernels on torch's own team of threads.

torch's OpenMP threads spin for about a millisecond after each of its operations. Threads of any other pool compete with
them for the same cores and lose half of their time; torch's own are awake and start work within microseconds. So
if torch uses GNU OpenMP (its Linux builds), kernels are passed to that very library; otherwise to `workers`.

A kernel is a C function of one table of 64-bit numbers: addresses and sizes of its arrays and its settings. It calls
`share` for its own tasks. Imported by compiled backends only, because numba is an extra.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import llvmlite.binding as llvm
import torch
from numba import cfunc, njit, types
from numba.extending import intrinsic

from resolvent.runtime.threads import spread

# The table's head, filled in by `run`: the tasks of a part and their end, or (0, tasks) for a team that deals them out.
FIRST, END, DEALT, HEAD = 0, 1, 2, 3
PER_THREAD = 1 << 16  # element updates worth waking a thread: some 20 microseconds of work
_KERNEL = types.void(types.CPointer(types.int64))
_keep: list[Any] = []
_TYPES = {
    torch.float32: types.float32,
    torch.float64: types.float64,
    torch.complex64: types.complex64,
    torch.complex128: types.complex128,
}


def threads_for(work: int) -> int:
    """The number of threads for `work` element updates, at most `torch.get_num_threads`."""
    return max(1, min(torch.get_num_threads(), work // PER_THREAD))


@cache
def compile_for(make: Callable[..., Any], *dtypes: torch.dtype) -> Any:
    """The kernel of `make` for these dtypes, compiled once each."""
    return make(*(_TYPES[dtype] for dtype in dtypes))


@cache
def _openmp() -> ctypes.CDLL | None:
    """The GNU OpenMP library loaded by torch, if any."""
    if not sys.platform.startswith("linux"):
        return None
    with open("/proc/self/maps", encoding="utf-8") as maps:
        found = {line.split()[-1] for line in maps if "libgomp" in line}
    inside = sorted(found, key=lambda path: "torch" not in path)  # torch's own copy, if there are two
    try:
        library = ctypes.CDLL(inside[0])
        library.GOMP_parallel.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
    except (IndexError, OSError, AttributeError):
        return None
    return library if hasattr(library, "omp_get_thread_num") and hasattr(library, "omp_get_num_threads") else None


@cfunc("int32()")
def _alone_number() -> int:
    return 0


@cfunc("int32()")
def _alone_size() -> int:
    return 1


def _link() -> None:
    """Bind the two names that kernels call: to OpenMP, or to a team of one."""
    library = _openmp()
    number = _alone_number.address if library is None else _address(library.omp_get_thread_num)
    size = _alone_size.address if library is None else _address(library.omp_get_num_threads)
    llvm.add_symbol("resolvent_team_number", number)
    llvm.add_symbol("resolvent_team_size", size)


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


_forked = False  # a child has torch's pool but not its threads


def _left_the_team() -> None:
    global _forked
    _forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_left_the_team)

_link()
_number: Any = types.ExternalFunction("resolvent_team_number", types.int32())
_size: Any = types.ExternalFunction("resolvent_team_size", types.int32())


@njit
def share(table: Any) -> tuple[int, int]:
    """The tasks (first, end) of the calling thread."""
    first, end = table[FIRST], table[END]
    if table[DEALT] == 0:
        return first, end
    me, team = _number(), _size()
    return end * me // team, end * (me + 1) // team


def _pointer(context: Any, address: Any, dtype: Any) -> Any:
    """A 64-bit address as a pointer to numbers of `dtype`."""
    kind = types.CPointer(dtype.dtype)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(kind))

    return kind(address, dtype), generate


pointer: Any = intrinsic(_pointer)  # pointer(address, dtype) in compiled code


def _take(context: Any, address: Any) -> Any:
    """Atomically increment the 64-bit number at an address; returns its old value."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = builder.inttoptr(args[0], context.get_value_type(types.CPointer(types.int64)))
        return builder.atomic_rmw("add", place, context.get_constant(types.int64, 1), "monotonic")

    return types.int64(types.int64), generate


taken: Any = intrinsic(_take)  # taken(address) in compiled code: the next task, for dynamic scheduling


@dataclass(frozen=True)
class Kernel:
    """A compiled `body(table)`: its address, and a callable."""

    address: int
    call: Callable[[bytes], None]


def kernel(body: Callable[[Any], None]) -> Kernel:
    """Compile `body(table)` to a C function."""
    try:
        compiled: Any = cfunc(_KERNEL, cache=True)(body)
    except RuntimeError:  # no writable cache folder
        compiled = cfunc(_KERNEL)(body)
    _keep.append(compiled)  # keeps the code alive
    return Kernel(compiled.address, ctypes.CFUNCTYPE(None, ctypes.c_char_p)(compiled.address))


@cache
def _packer(size: int) -> Callable[..., bytes]:
    """Numbers as a table: bytes are made and passed several times as fast as an array of ctypes."""
    return struct.Struct(f"{size}q").pack


def run(compiled: Kernel, settings: Sequence[int], tasks: int, threads: int) -> None:
    """The kernel over all its tasks by at most `threads` threads. `settings` is the table after its head."""
    table = _packer(HEAD + len(settings))
    if threads <= 1 or tasks <= 1:
        compiled.call(table(0, tasks, 0, *settings))
        return
    library, threads = _openmp(), min(threads, tasks)
    if library is not None and not _forked:
        library.GOMP_parallel(compiled.address, table(0, tasks, 1, *settings), threads, 0)
    else:
        spread(lambda lo, hi: compiled.call(table(lo, hi, 0, *settings)), tasks, threads)
