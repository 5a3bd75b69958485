"""A stack of residual blocks as numbers: a program of whole numbers, and one array with every matrix and vector.

The program says per block which parts it has and where in the array their numbers lie; -1 stands for "has none". A
block's layer is a convolution, which has a kernel, or a recurrence, which has states.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

WIDTH = 8  # samples of a cohort
PAD = 12  # zeros beside a kernel: as many as a tile of the convolution has rows
# Places in the program's header ...
L, D, C, LAYERS, POOL, SAVED, NORMS, TRACES, WIDE = range(9)
ENTRY, ENTRY_BACK, ENTRY_BIAS, START_NORM, START_UNIT, END_NORM, END_UNIT = range(9, 16)
HEADER = 16
# ... and in the part of each block: what it is, where its numbers are, and which of the saved arrays are its own.
PRENORM, SKIP, NORM, KERNEL, KERNEL_BACK = range(5)
ADS, ADS_BACK, ADS_BIAS, SIGMA, ACT, MIX, MIX_BACK, MIX_BIAS, FINAL = range(5, 14)
UNIT, SCALED, LEVER, BENT, CURVED = range(14, 19)
# Kept where parameters are learnt: what layer, AdS and mixer were given, and the states of a recurrence.
INPUT, RAW, MIXED, TRACE = range(19, 23)
# Of a recurrence: reals of its state (0: none), and where lam, W_in, W_out and D, which goes past the states, lie.
STATES, LAM, IN, IN_BACK, OUT, OUT_BACK, PAST = range(23, 30)
BLOCK = 30


@dataclass(frozen=True)
class Source:
    """A tensor that lies in the array of numbers, so that its gradient can be found in an array of the same layout.

    kind  "row": (n,), each number once for every lane; "plain": as it is; "kernel": (d, l) with zeros before each row
    """

    place: int
    kind: str
    tensor: Tensor


@dataclass(frozen=True)
class Plan:
    """What a walk through the stack needs besides x."""

    program: Tensor  # int64
    numbers: Tensor
    l: int
    d: int
    c: int
    layers: int
    saved: int  # arrays (l, d) per sample that the way back needs
    norms: int
    wide: int  # numbers of a row of states
    sources: tuple[Source, ...]
    kernels: Any  # the compiled module that walks
    learnt: int = 0  # how many of the saved arrays, the last ones, the parameters' gradients need
    traces: int = 0  # arrays (l + 1, wide) of states, which they need too
