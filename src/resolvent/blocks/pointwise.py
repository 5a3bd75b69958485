"""A map that looks at one time step only, as a block: it holds no layer, so its state is the empty dict."""

from __future__ import annotations

from torch import Tensor, nn

from resolvent.blocks.block import Block, State


class Pointwise(Block):
    """Any module (..., d) -> (..., d) with parameters behind the layer contract."""

    def __init__(self, d_model: int, inner: nn.Module) -> None:
        super().__init__(d_model)
        self.inner = inner

    def _sequence(self, x: Tensor, state: State, lengths: Tensor | None) -> tuple[Tensor, State]:
        return self.inner(x), {}

    def _step(self, x_t: Tensor, state: State) -> tuple[Tensor, State]:
        return self.inner(x_t), {}
