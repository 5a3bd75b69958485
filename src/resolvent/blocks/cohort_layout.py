"""A stack of residual blocks as numbers: a program of whole numbers, and one array with every matrix and vector.

The program says per block which parts it has and where in the array their numbers lie; -1 stands for "has none".
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

# Places in the program's header ...
L, D, C, LAYERS, POOL, SAVED, NORMS = range(7)
ENTRY, ENTRY_BACK, ENTRY_BIAS, START_NORM, START_UNIT, END_NORM, END_UNIT = range(7, 14)
HEADER = 14
# ... and in the part of each block: what it is, where its numbers are, and which of the saved arrays are its own.
PRENORM, SKIP, NORM, KERNEL, KERNEL_BACK = range(5)
ADS, ADS_BACK, ADS_BIAS, SIGMA, ACT, MIX, MIX_BACK, MIX_BIAS, FINAL = range(5, 14)
UNIT, SCALED, LEVER, BENT, CURVED = range(14, 19)
INPUT, RAW, MIXED = range(19, 22)  # kept where parameters are learnt: what convolution, AdS and mixer were given
BLOCK = 22


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
    sources: tuple[Source, ...]
    learnt: int = 0  # how many of the saved arrays, the last ones, the parameters' gradients need

    def still(self) -> Plan:
        """The same for gradients in x alone."""
        program, saved = self.program.clone(), self.saved - self.learnt
        program[SAVED] = saved
        program[HEADER:].view(self.layers, BLOCK)[:, INPUT : MIXED + 1] = -1
        return replace(self, program=program, saved=saved, sources=(), learnt=0)
