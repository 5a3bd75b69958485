"""Tables of a diagonal bank as a function of its layer's parameters: discretisation, powers, Toeplitz blocks.

`Modes` says how a layer class makes its bank; `blocks` gives the tables of `ops.blocked` by the fastest method: in a
traced pass one opaque node (`resolvent::s4d_tables`, ...), so that graphs stay small and contain no complex numbers;
on a GPU one kernel, and one more for the gradients; elsewhere `blocked.tables`, which is also the reference for
probing kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from resolvent.ops.blocked.operation import Blocks, DiagonalCarry
from resolvent.ops.blocked.tables import DiagonalBank, diagonal_blocks, first_number, make_tables
from resolvent.ops.blocked.traced import PairCarry, tables_shapes
from resolvent.ops.opaque import Opaque, Parameters
from resolvent.ops.pairs import Make, join_pairs, join_parts, stack_parts
from resolvent.runtime.transforms import is_recorded, is_traced, is_untransformed

MakeBank = Callable[..., DiagonalBank]  # (parameters, option, make): complex numbers by `join_parts`, if none is given


class Kind(Enum):
    """The kind of parameters."""

    S4D = "s4d"  # log_decay, frequency (d, n), log_dt (d,), B, C (d, n, 2)
    DSS = "dss"  # decay, frequency (n,), log_dt (d, 1 or 2), W (d, n, 2)
    EMA = "ema"  # alpha, damping, beta, eta (d, n)
    # each followed by D (d,), if any


KNOWN: dict[str, Modes] = {}  # by the name of their kind, which an operator's schema supports


class Modes:
    """How one kind of layer makes its bank: `bank(parameters, option)`.

    `example` gives small parameters for probing kernels, and `fused` are the options they support. Created once per
    layer class, at module level, which registers the operator.
    """

    def __init__(
        self, kind: Kind, bank: MakeBank, example: Callable[[], Parameters], fused: tuple[str, ...] = ("",)
    ) -> None:
        self.kind, self.bank, self.example, self.fused = kind, bank, example, fused
        sizes = (11, False), (20, True)  # an odd number of steps, and with a delay
        self.opaque = Opaque(
            f"{kind.value}_tables", self.graph, lambda own, _, T, delay: tables_shapes(own, T, 3), self._load, example,
            fused, sizes, exactly=True,
        )  # fmt: skip
        KNOWN[kind.value] = self

    def blocks(self, parameters: Parameters, option: str, T: int, delay: bool) -> Blocks:
        if is_traced(*parameters):
            toeplitz, M_in, M_out, powers, whole = self.opaque.operator(parameters, option, T, delay)
            return Blocks(toeplitz, M_in, M_out, PairCarry(powers, whole))  # type: ignore[arg-type]
        like = parameters[0]
        if like.is_cuda and T > 1 and is_untransformed() and self.opaque.kernels(like, option) is not None:
            toeplitz, M_in, M_out, powers, whole = self.opaque.tables(parameters, option, T, delay)
            return Blocks(toeplitz, M_in, M_out, DiagonalCarry(join_pairs(powers, 4), join_pairs(whole, 3)))
        return diagonal_blocks(self.bank(parameters, option), T, like.dtype, delay)

    def graph(self, parameters: Parameters, option: str, T: int, delay: bool) -> list[Tensor]:
        """Toeplitz, M_in, M_out, powers and A^T as a differentiable function; numbers in real pairs."""
        bank = self.bank(parameters, option, torch.complex)
        by_hand = is_untransformed() and not is_recorded(*parameters)
        made = make_tables(bank, first_number(bank, delay).to(parameters[0].dtype), T, delay, by_hand)
        return [stack_parts(t).contiguous() for t in made]

    def _load(self) -> Any:
        from resolvent.ops.modes.triton import maker

        return maker(self.kind)


@dataclass(frozen=True, eq=False)
class Source:
    """One layer's bank: made when called, or skipped in making tables directly from parameters."""

    modes: Modes
    parameters: Parameters
    option: str = ""

    def __call__(self, make: Make = join_parts) -> DiagonalBank:
        return self.modes.bank(self.parameters, self.option, make)

    def blocks(self, T: int, delay: bool) -> Blocks:
        return self.modes.blocks(self.parameters, self.option, T, delay)
