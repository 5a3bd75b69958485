"""The tables of a dense bank from its layer's parameters: `opaque` in a traced pass, or on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from resolvent.ops.blocked.operation import Blocks, DenseCarry
from resolvent.ops.blocked.tables import DenseBank, dense_blocks
from resolvent.ops.opaque import Opaque, Parameters
from resolvent.runtime.transforms import is_traced, is_untransformed


@dataclass(frozen=True, eq=False)
class DenseSource:
    """One layer's bank: made when called, or skipped in making tables directly from parameters."""

    opaque: Opaque
    parameters: Parameters
    option: str
    make: Callable[..., DenseBank]  # (parameters, option, make): complex numbers by `join_parts`, if none is given
    fused: tuple[str, ...] = ()  # options for which it is S4's, with kernels (`ops.dplr_bank`) from its parameters

    def __call__(self) -> DenseBank:
        return self.make(self.parameters, self.option)

    @property
    def states(self) -> int:
        """Reals of one channel's state."""
        return self.opaque.shapes(self.parameters, self.option, 1, False)[1][-1]

    def blocks(self, T: int, delay: bool) -> Blocks:
        if is_traced(*self.parameters):
            return form_blocks(self.opaque.operator(list(self.parameters), self.option, T, delay))
        if self.parameters[0].is_cuda and is_untransformed():
            return form_blocks(self.opaque.tables(self.parameters, self.option, T, delay))
        return dense_blocks(self(), T, self.parameters[0].dtype, delay)


def flat_blocks(blocks: Blocks, copy: bool = True) -> list[Tensor]:
    """The tables of a dense bank as a list, A^T last; with `copy` it shares no memory with the others."""
    carry = blocks.carry
    assert isinstance(carry, DenseCarry)
    whole = carry.whole.clone() if copy else carry.whole
    return [blocks.toeplitz, blocks.M_in, blocks.M_out, *carry.doublings, whole]


def form_blocks(tables: list[Tensor]) -> Blocks:
    toeplitz, M_in, M_out, *doublings, whole = tables
    return Blocks(toeplitz, M_in, M_out, DenseCarry(tuple(doublings), whole))
