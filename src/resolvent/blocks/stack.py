"""Blocks in sequence, themselves one block: the body of a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from resolvent.blocks.block import Block, Layer, State


class Stack(Block):
    """y = block_r(... block_1(x)). Bidirectional if any of the blocks is.

    Examples:
        >>> stack = rv.blocks.Stack([rv.blocks.Residual(rv.S5(4, 8)), rv.blocks.Residual(rv.S5(4, 8))])
        >>> stack(torch.randn(2, 10, 4))[0].shape
        torch.Size([2, 10, 4])
    """

    quick = True  # may bypass its modules; a whole model, which has fast forms of its own, sets False

    def __init__(self, blocks: Sequence[Layer]) -> None:
        if not blocks:
            raise ValueError("Stack: expected at least one block, got none.")
        widths = [block.d_model for block in blocks]
        if len(set(widths)) > 1:
            raise ValueError(f"Stack: every block must have the same width, got {widths}.")
        super().__init__(widths[0], bidirectional=any(block.bidirectional for block in blocks))
        self.blocks = nn.ModuleList(blocks)

    def forward(
        self, x: Tensor, state: State = None, lengths: Tensor | None = None, **more: Any
    ) -> tuple[Tensor, State]:
        """As for any layer; short whole sequences of our blocks run in one layout, `lowering.stack_form`."""
        whole = state is None and lengths is None and not more
        found = _quick_form()(self, x) if self.quick and whole and not torch.compiler.is_compiling() else None
        return super().forward(x, state, lengths, **more) if found is None else found

    def _sequence(self, x: Tensor, state: State, lengths: Tensor | None) -> tuple[Tensor, State]:
        end = {}
        for i, block in enumerate(self.blocks):
            x, end[f"blocks.{i}"] = block(x, state.get(f"blocks.{i}"), lengths)
        return x, end

    def _step(self, x_t: Tensor, state: State) -> tuple[Tensor, State]:
        end = {}
        for i, block in enumerate(self.blocks):
            assert isinstance(block, Layer)
            x_t, end[f"blocks.{i}"] = block._step(x_t, state[f"blocks.{i}"])
        return x_t, end


@cache
def _quick_form() -> Callable[[Stack, Any], tuple[Tensor, State] | None]:
    """Lazy: it reads blocks, and is imported above them."""
    found: Callable[[Stack, Any], tuple[Tensor, State] | None] = import_module("resolvent.lowering.stack_form").serve
    return found
