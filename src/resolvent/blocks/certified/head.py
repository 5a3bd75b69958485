"""The head of a model with a prescribed gain: pool, 1-Lipschitz hidden layer, norm-limited decoder."""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor, nn

from resolvent.blocks.certified.sandwich import Sandwich
from resolvent.blocks.certified.spectral import Spectral
from resolvent.blocks.certified.state_pool import StatePool
from resolvent.blocks.pool import initial, pool, running
from resolvent.layers.checks import padding_mask

CertifiedPooling = Literal["mean", "last", "max", "none", "state"]


class LipschitzReadout(nn.Module):
    """(b, l, d) -> (b, outputs), or (b, l, outputs) with pooling "none"; Lipschitz constant at most `gain`.

    pooling   "state" keeps `memory` states per channel and reads them at the end (`StatePool`)
    hidden    width of one sandwich layer between pooling and decoder; 0: none
    """

    def __init__(
        self,
        d_model: int,
        outputs: int,
        pooling: CertifiedPooling = "state",
        *,
        gain: float = 1.0,
        memory: int = 64,
        hidden: int = 0,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.d_model = d_model
        self.pooling = pooling
        self.pool = StatePool(d_model, memory) if pooling == "state" else None
        width = d_model if self.pool is None else d_model * memory
        self.hidden = Sandwich(width, hidden, bias=bias) if hidden else nn.Identity()
        self.out = Spectral(hidden or width, outputs, largest=gain, bias=bias)

    def forward(self, features: Tensor, lengths: Tensor | None = None) -> Tensor:
        y = self.out(self.hidden(self._pool(features, lengths)))
        mask = padding_mask(features, lengths) if self.pooling == "none" else None
        return y if mask is None else y.masked_fill(mask, 0)

    def initial_state(self, batch: int, like: Tensor) -> dict[str, Any]:
        if self.pool is not None:
            return {"state": self.pool.initial(batch, like)}
        assert self.pooling != "state"
        return initial(batch, self.d_model, self.pooling, like)

    def stream(self, features: Tensor, state: dict[str, Any]) -> tuple[Tensor, dict[str, Any]]:
        """The output at each step: (b, l, d) -> (b, l, outputs)."""
        if self.pool is not None:
            pooled, end = self.pool.running(features, state["state"])
            return self.out(self.hidden(pooled)), {"state": end}
        assert self.pooling != "state"
        pooled, state = running(features, state, self.pooling)
        return self.out(self.hidden(pooled)), state

    def _pool(self, features: Tensor, lengths: Tensor | None) -> Tensor:
        if self.pool is not None:
            return self.pool(features, lengths)
        assert self.pooling != "state"
        return pool(features, lengths, self.pooling)
