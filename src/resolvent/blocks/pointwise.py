"""A map of each time step by itself, as a block: it contains no layer, so its state is the empty dict."""

from __future__ import annotations

from torch import Tensor, nn

from resolvent.blocks.block import Block, State


class Pointwise(Block):
    """Wraps any module (..., d) -> (..., d) with parameters in the layer contract.

    Examples:
        >>> rv.blocks.Pointwise(4, torch.nn.Linear(4, 4))(torch.randn(2, 10, 4))[0].shape
        torch.Size([2, 10, 4])
    """

    def __init__(self, d_model: int, inner: nn.Module) -> None:
        super().__init__(d_model)
        self.inner = inner

    def _sequence(self, x: Tensor, state: State, lengths: Tensor | None) -> tuple[Tensor, State]:
        return self.inner(x), {}

    def _step(self, x_t: Tensor, state: State) -> tuple[Tensor, State]:
        return self.inner(x_t), {}
