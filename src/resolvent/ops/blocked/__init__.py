"""The blocked state-space pass: matrix products inside blocks of time, a state carried between them."""

from resolvent.ops.blocked.operation import Blocks, block_length, run
from resolvent.ops.blocked.tables import (
    DenseBank,
    DiagonalBank,
    as_state,
    deinterleave,
    dense_blocks,
    diagonal_blocks,
    inside,
    links,
    narrow,
)
from resolvent.ops.pairs import reals

__all__ = [
    "Blocks", "DenseBank", "DiagonalBank", "as_state", "block_length", "deinterleave", "dense_blocks",
    "diagonal_blocks", "inside", "links", "narrow", "reals", "run",
]  # fmt: skip
