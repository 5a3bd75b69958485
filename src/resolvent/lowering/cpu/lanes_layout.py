"""A stack of residual blocks as numbers: an integer program, and one array with every matrix and vector.

The program says per block which parts it has and their offsets in the array; -1 means absent. A block's layer is a
convolution, which has a kernel, or a recurrence, which has states.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

WIDTH = 8  # samples per set of lanes
PAD = 12  # zeros before a kernel: as many as a convolution tile has rows
# Offsets in the program's header ...
L, D, C, LAYERS, POOL, SAVED, NORMS, TRACES, WIDE = range(9)
ENTRY, ENTRY_BACK, ENTRY_BIAS, START_NORM, START_UNIT, END_NORM, END_UNIT = range(9, 16)
HEADER = 16
# ... and in each block's part: its kind, the offsets of its numbers, and its saved arrays.
PRENORM, SKIP, NORM, KERNEL, KERNEL_BACK = range(5)
ADS, ADS_BACK, ADS_BIAS, SIGMA, ACT, MIX, MIX_BACK, MIX_BIAS, FINAL = range(5, 14)
UNIT, SCALED, LEVER, BENT, CURVED = range(14, 19)
# Saved when parameters are trained: the inputs of layer, AdS and mixer, and the states of a recurrence.
INPUT, RAW, MIXED, TRACE = range(19, 23)
# Of a recurrence: reals in its state (0: none), and the offsets of lam, W_in, W_out and D, which bypasses the states.
STATES, LAM, IN, IN_BACK, OUT, OUT_BACK, PAST = range(23, 30)
BLOCK = 30


@dataclass(frozen=True)
class Source:
    """A tensor copied into the array of numbers, so that its gradient can be found in an array of the same layout.

    kind  "row": (n,), each number repeated per lane; "plain": unchanged; "kernel": (d, l) with zeros before each row
    """

    place: int
    kind: str
    tensor: Tensor


@dataclass(frozen=True)
class Plan:
    """Everything a pass through the stack needs besides x."""

    program: Tensor  # int64
    numbers: Tensor
    l: int
    d: int
    c: int
    layers: int
    saved: int  # arrays (l, d) per sample saved for the backward pass
    norms: int
    wide: int  # numbers of a row of states
    sources: tuple[Source, ...]
    kernels: Any  # the compiled module that runs it
    learnt: int = 0  # how many of the saved arrays, the last ones, are for parameter gradients
    traces: int = 0  # arrays (l + 1, wide) of states, for parameter gradients too
