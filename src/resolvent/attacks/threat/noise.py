"""Points drawn from the unit ball of a norm, for attacks that start at random."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from resolvent.attacks.draws import Draws
from resolvent.attacks.threat.direction import safe


@dataclass(frozen=True, eq=False)
class Noise:
    """Uniform in the ball (Linf: each entry); on its surface by scaling (L1: normal numbers, left as they are)."""

    norm: str
    draws: Draws
    stream: int
    counter: int
    masked: Callable[[Tensor], Tensor]  # 0 where nothing may change
    count: Tensor  # (b,) entries that may change

    def draw(self, x: Tensor, surface: bool) -> Tensor:
        """(b, ...) like x."""
        where, shape = (self.stream, self.counter), x.shape[1:]
        if self.norm == "linf":
            noise = self.masked(2 * self.draws.uniform(*where, shape, x.dtype) - 1)
            return noise / safe(_length(noise, torch.inf)) if surface else noise
        normal = self.masked(self.draws.normal(*where, shape, x.dtype))
        if self.norm == "l1" and surface:
            return normal
        noise = normal if self.norm == "l2" else self._laplace(x)
        step = noise / safe(_length(noise, 2 if self.norm == "l2" else 1))
        return step if surface else step * self._depth(x)

    def _laplace(self, x: Tensor) -> Tensor:
        u = self.draws.fold("laplace").uniform(self.stream, self.counter, x.shape[1:], torch.float64)
        sign = self.draws.fold("sign").sign(self.stream, self.counter, x.shape[1:], x.dtype)
        return self.masked(-torch.log1p(-u).to(x.dtype) * sign)

    def _depth(self, x: Tensor) -> Tensor:
        """Radius of a uniform point of the unit ball of n free entries: U^(1/n).

        By logarithm, in float64: the last digit of torch's power hangs on how many others it is computed with.
        """
        u = self.draws.fold("depth").uniform(self.stream, self.counter, (), x.dtype).double()
        depth = torch.exp(torch.log(u) / self.count.clamp_min(1).double())
        return depth.to(x.dtype).view(-1, *[1] * (x.dim() - 1))


def _length(noise: Tensor, order: float) -> Tensor:
    return torch.linalg.vector_norm(noise.flatten(1), order, dim=1).view(-1, *[1] * (noise.dim() - 1))
