"""Random numbers for Square, many queries at a time: one by one they would cost more than the windows."""

from __future__ import annotations

import torch
from torch import Tensor

from resolvent.attacks.draws import Draws

_STREAM = 1
_AT_ONCE = 64  # queries, fewer if each needs very many numbers
_NUMBERS = 4096  # per sample


class Deck:
    """`deck.deal(sample, query)` is (m, width), uniform in [0, 1): row i depends only on its sample and query.

    The queries of one deal must be in one block: before `deck.end(query)`.
    """

    def __init__(self, draws: Draws, width: int) -> None:
        self.draws = draws
        self.width = width
        self.size = max(min(_AT_ONCE, _NUMBERS // width), 1)
        self._block: Tensor | None = None
        self._number = -1

    def end(self, query: int) -> int:
        """The first query of the next block; draws the current block if necessary."""
        number = query // self.size
        if self._block is None or number != self._number:
            self._block = self.draws.uniform(_STREAM, number, (self.size, self.width))
            self._number = number
        return (number + 1) * self.size

    @property
    def first(self) -> int:
        """The first query of the block."""
        return self._number * self.size

    @property
    def block(self) -> Tensor:
        """All its numbers: (b, size, width)."""
        assert self._block is not None, "end(query) draws the block"
        return self._block

    def deal(self, sample: Tensor, query: Tensor) -> Tensor:
        block, column = self.block, query - self.first
        if block.is_cpu:  # numpy's indexing takes a fifth of the time
            return torch.from_numpy(block.numpy()[sample.numpy(), column.numpy()])
        return block[sample, column]

    def select(self, index: Tensor) -> Deck:
        chosen = Deck(self.draws.select(index), self.width)
        if self._block is not None:
            chosen._block, chosen._number = self._block[index], self._number
        return chosen


def whole(u: Tensor, limit: int | Tensor) -> Tensor:
    """Integers 0 .. limit - 1 from uniform numbers."""
    return (u * limit).to(torch.int64)
