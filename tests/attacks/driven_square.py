"""pyautoattack's Square with our random numbers, so that one search can be compared with the other and not two chances.

Upstream draws one window a query for its whole batch. `shared(n)` numbers n samples alike, so ours do the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from pyautoattack.square import SquareAttack
from torch import Tensor, nn

from resolvent.attacks import Draws
from resolvent.attacks.square.deck import Deck
from resolvent.attacks.square.step import _SIDE, _TILT
from resolvent.ops.ascent import LEFT, LEFT_2, SIGNS, TOP, TOP_2, TURN

WIDTH = SIGNS + 1  # numbers of one query on an image of one channel


def shared(n: int, seed: int = 0) -> Draws:
    """The same random numbers for n samples."""
    return Draws(seed, torch.zeros(n, dtype=torch.int64))


class DrivenSquare(SquareAttack):  # type: ignore[misc]
    """Takes its numbers from ours, in the order in which upstream asks for them; one channel, first restart."""

    def __init__(self, net: nn.Module, norm: str, n_queries: int, eps: float, seed: int) -> None:
        super().__init__(net, norm, n_queries, eps, seed=seed)
        self.draws = shared(1, seed).fold("square").fold(0)
        self.size = 0
        self.numbers = self._numbers()

    def perturb(self, x: Tensor, y: Tensor) -> Tensor:
        self.size = x.shape[-1]
        moved: Tensor = super().perturb(x, y)
        return moved

    def _numbers(self) -> Iterator[Tensor]:
        yield from self._first_linf() if self.norm == "Linf" else self._first_l2()
        deck, sample = Deck(self.draws, WIDTH), torch.zeros(1, dtype=torch.int64)
        order = (TOP, LEFT, SIGNS) if self.norm == "Linf" else (TOP, LEFT, TOP_2, LEFT_2, TURN, SIGNS)
        for query in range(1, self.n_queries + 1):
            deck.end(query)
            u = deck.deal(sample, torch.tensor([query]))[0]
            for column in order:
                yield u[column]

    def _first_linf(self) -> Iterator[Tensor]:
        yield (self.draws.bits(_SIDE, 0, (self.size,)) >= 0).float().view(1, 1, 1, -1) * 0.9

    def _first_l2(self) -> Iterator[Tensor]:
        side = self.size // 5
        count = (self.size // side) ** 2
        turned, sign = self.draws.bits(_TILT, 0, (count,))[0] < 0, self.draws.sign(_SIDE, 0, (count,))[0]
        for k in range(count):
            yield torch.tensor(0.1 if turned[k] else 0.9)
            yield (sign[k] > 0).float() * 0.9

    def random_int(self, low: int = 0, high: int = 1, shape: Any = (1,)) -> Tensor:
        return (low + (high - low) * next(self.numbers)).long().view(shape)

    def random_choice(self, shape: Any) -> Tensor:
        """Below a half is the low side; our Linf windows put it the other way round."""
        u = next(self.numbers)
        sign = torch.where(u < 0.5, -1.0, 1.0)
        return (-sign if self.norm == "Linf" else sign).expand(shape).clone()

    def eta(self, s: int) -> Tensor:
        """Turned below a half here, above it upstream."""
        turned = bool(next(self.numbers) < 0.5)
        with mock.patch("torch.rand", return_value=torch.tensor([1.0 if turned else 0.0])):
            bump: Tensor = super().eta(s)
        return bump
