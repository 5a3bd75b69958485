"""Shared by the parts of a pass by lanes: the leaf functions that compute, and the memory layout.

A row is one time step of a set of lanes, (d, WIDTH); an array is a sequence of rows. Pieces only handle addresses and
call the leaves, compiled for each dtype, by address (`leaf_numba`). Imported by compiled backends only.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any
from zlib import crc32

import torch
from numba import njit, types
from torch import Tensor

from resolvent.lowering.cpu import activation_numba, norm_numba, outer_numba, rotate_numba, row_numba, tile_numba
from resolvent.lowering.cpu import lanes_layout as at
from resolvent.runtime.cfunc_numba import call
from resolvent.runtime.jit import Array
from resolvent.runtime.vectors_numba import WIDTH

ROWS = 8  # time steps that pass through the maps together
TYPES = {torch.float32: types.float32, torch.float64: types.float64}
_LEAVES = (
    tile_numba.map_rows,
    tile_numba.convolve_rows,
    activation_numba.activate,
    norm_numba.normalise_rows,
    norm_numba.differentiate_rows,
    row_numba.combine,
    row_numba.gather_rows,
    row_numba.scatter_rows,
    row_numba.pool_rows,
    row_numba.unpool_rows,
    outer_numba.outer,
    outer_numba.correlate,
    outer_numba.sum_rows,
    rotate_numba.rotate,
    rotate_numba.slopes,
)
COUNT = len(_LEAVES)
MAP, CONVOLVE, BEND, NORM, SLOPE, COMBINE, GATHER, SCATTER, POOL, UNPOOL = range(10)
OUTER, CORRELATE, SUM, TURN, TURN_SLOPE = range(10, COUNT)

Ops = tuple[Array, Array, int, int, int]  # program, leaves, address of the numbers, bytes of one, numbers of a row
Work = tuple[int, int, int, int, int]  # h, y, u (l, row), scratch (2 ROWS, row), states (ROWS + 1, wide)
# Saved (arrays, l, row), 1 / deviation (norms, l, WIDTH), gradients of the numbers or 0, traces (arrays, l + 1, wide).
Kept = tuple[int, int, int, int]


def piece(f: Callable[..., Any]) -> Callable[..., Any]:
    """Compiled code inlined into a kernel; only the kernel is cached on disk."""
    compiled: Callable[..., Any] = njit(nogil=True, fastmath={"contract"})(f)
    return compiled


def stamp(*modules: ModuleType) -> int:
    """A number that changes with the sources of a kernel's pieces: a kernel that closes over it is then recompiled.

    numba's disk cache checks only the file of the kernel itself.
    """
    try:
        return crc32(b"".join(Path(m.__file__ or "").read_bytes() for m in modules))
    except OSError:  # no sources available: they cannot change
        return 0


@cache
def leaves(dtype: torch.dtype) -> Tensor:
    """The addresses of the leaf functions."""
    return torch.tensor([make(TYPES[dtype]) for make in _LEAVES])


@piece
def row_at(ops: Ops, array: int, t: int) -> int:
    """The address of row t."""
    return array + t * ops[4] * ops[3]


@piece
def number(ops: Ops, place: int) -> int:
    return ops[2] + place * ops[3]


@piece
def find_saved(ops: Ops, kept: Kept, i: int, t: int) -> int:
    """The address of row t of saved array i."""
    return row_at(ops, kept[0], i * ops[0][at.L] + t)


@piece
def apply_map(ops: Ops, place: int, x: int, y: int, count: int) -> None:
    """Multiply rows by a matrix (d, d)."""
    d = ops[0][at.D]
    call(ops[1][MAP], (number(ops, place), d, d, x, ops[4], y, ops[4], count))


@piece
def combine(ops: Ops, code: int, z: int, h: int, step: int, count: int) -> None:
    call(ops[1][COMBINE], (code, z, h, step, z, ops[4], count, ops[0][at.D] * WIDTH))


@piece
def learn_rows(ops: Ops, place: int, a: int, b: int, kept: Kept, count: int) -> None:
    """The gradient of a row of numbers: rows of a, times those of b unless b is 0, summed."""
    if kept[2]:
        call(ops[1][SUM], (kept[2] + place * ops[3], a, b, ops[4], count, ops[0][at.D] * WIDTH))
