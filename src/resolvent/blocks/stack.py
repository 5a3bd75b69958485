"""Blocks one after the other, themselves one block: the body of a model."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from resolvent.blocks.block import Block, Layer, State, any_bidirectional


class Stack(Block):
    """y = block_r(... block_1(x)). Bidirectional as soon as one of the blocks is."""

    def __init__(self, blocks: Sequence[Layer]) -> None:
        if not blocks:
            raise ValueError("Stack: expected at least one block, got none.")
        widths = [block.d_model for block in blocks]
        if len(set(widths)) > 1:
            raise ValueError(f"Stack: every block must have the same width, got {widths}.")
        super().__init__(widths[0], bidirectional=any_bidirectional(*blocks))
        self.blocks = nn.ModuleList(blocks)

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
