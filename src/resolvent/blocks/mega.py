"""Mega's gated attention (Ma et al. 2023, section 3.3): a moving average feeds single-head attention and two gates.

    x'       = silu(EMA(x))                                              eq. 7 (x normalised first when prenorm)
    q, k     = gamma_1 * z + beta_1,  gamma_2 * z + beta_2,  z = silu(W_z x')         eq. 8-9
    v        = silu(W_v x)                                               eq. 10: from x, not from x'
    o        = f(q k^T / scale + bias) v                                 f softmax or Laplace
    h        = silu(W_h x' + U_h (r * o)),  r = silu(W_r x')             eq. 12-13
    y        = x + u * (h - x),             u = sigmoid(W_u x')          eq. 14-15

The feed-forward part that follows in a Mega layer is a block of its own.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from resolvent.blocks.block import Block, State
from resolvent.blocks.norm import NormKind, make_norm
from resolvent.blocks.projection import Projection
from resolvent.layers.attention.attend import Cache, Reach, RelativeBias, attend, attend_cached, cache_spec, empty_cache
from resolvent.layers.checks import check_positive
from resolvent.layers.ema import EMA
from resolvent.runtime.transforms import without_autocast
from resolvent.usage.numbers import check_choice


class GatedAttention(Block):
    """z: width of queries and keys; hidden: width of values; d_state: moving averages per channel.

    chunk           attention only inside consecutive chunks of this many positions (None: everywhere); the moving
                    average still crosses chunk boundaries
    max_length      distances with separate biases when there is no chunk; larger ones share the last
    bidirectional   moving averages in both directions and attention to both sides; no streaming then
    unmasked        attention to both sides with a causal moving average; no streaming either
    ads             adaptive scaling (a module on d_model) of the moving average, before its silu

    Examples:
        >>> rv.blocks.GatedAttention(4, z=4, hidden=8, d_state=4)(torch.randn(2, 10, 4))[0].shape
        torch.Size([2, 10, 4])
    """

    def __init__(
        self,
        d_model: int,
        *,
        z: int = 64,
        hidden: int = 256,
        d_state: int = 16,
        attention: Literal["softmax", "laplace"] = "softmax",
        chunk: int | None = None,
        max_length: int = 1024,
        bidirectional: bool = False,
        unmasked: bool = False,
        norm: NormKind = "layer",
        norm_eps: float | None = None,
        prenorm: bool = False,
        dropout: float = 0.0,
        ads: nn.Module | None = None,
    ) -> None:
        sees_both = bidirectional or unmasked
        super().__init__(d_model, bidirectional=sees_both)
        check_positive("GatedAttention", z=z, hidden=hidden, max_length=max_length)
        check_choice("GatedAttention", "attention", attention, ("softmax", "laplace"))
        self.z, self.hidden, self.attention, self.prenorm = z, hidden, attention, prenorm
        self.reach = Reach("full" if chunk is None else "chunked", chunk, causal=not sees_both)
        self.norm = make_norm(norm, d_model, norm_eps)
        self.ema = EMA(d_model, d_state, bidirectional=bidirectional)
        self.ads = ads or nn.Identity()
        self.dropout = nn.Dropout(dropout)
        self.value = Projection(d_model, hidden, std=0.02)
        self.base = Projection(d_model, 2 * d_model + z + hidden, std=0.02)  # W_u, W_z, W_r, W_h
        self.leave = Projection(hidden, d_model, std=0.02)  # U_h
        self.gamma = nn.Parameter(torch.randn(2, z) * 0.02)
        self.beta = nn.Parameter(torch.zeros(2, z))
        self.bias = RelativeBias(chunk or max_length, causal=not sees_both)

    def state_spec(self, batch: int) -> dict[str, Any]:
        cache = cache_spec(self.reach, batch, 1, (self.z, self.hidden), self.dtype)
        return {"ema": self.ema.state_spec(batch), "cache": cache}

    def initial_state(self, batch: int) -> State:
        state: dict[str, Any] = super().initial_state(batch)
        return state | {"cache": self._empty_cache(batch)}

    def _sequence(self, x: Tensor, state: State, lengths: Tensor | None) -> tuple[Tensor, State]:
        h = self.norm(x, lengths) if self.prenorm else x
        average, ema = self.ema(h, state.get("ema"), lengths)
        y, cache = self._attention(x, h, average, state.get("cache"), lengths)
        return (y if self.prenorm else self.norm(y, lengths)), {"ema": ema, "cache": cache}

    def _step(self, x_t: Tensor, state: State) -> tuple[Tensor, State]:
        h = self.norm(x_t) if self.prenorm else x_t
        average, ema = self.ema._step(h, state["ema"])
        y, cache = self._attention(x_t[:, None], h[:, None], average[:, None], state["cache"], None)
        return (y[:, 0] if self.prenorm else self.norm(y[:, 0])), {"ema": ema, "cache": cache}

    def _attention(
        self, x: Tensor, h: Tensor, average: Tensor, cache: Cache | None, lengths: Tensor | None
    ) -> tuple[Tensor, Cache]:
        """Everything after the moving average, x the skip and h the moving average (both (b, l, d))."""
        base = self.base(self.dropout(F.silu(self.ads(average))))
        u, z, r, hx = base.split([self.d_model, self.z, self.hidden, self.d_model], -1)
        o, cache = self._attend(F.silu(z), F.silu(self.value(h)), cache, lengths)
        new = self.dropout(F.silu(hx + self.leave(F.silu(r) * o)))
        y = torch.addcmul(x, torch.sigmoid(u).to(x.dtype), new.to(x.dtype) - x)
        return y, cache

    def _attend(self, z: Tensor, v: Tensor, cache: Cache | None, lengths: Tensor | None) -> tuple[Tensor, Cache]:
        with without_autocast(z.device.type):
            z, v = z.to(self.dtype), v.to(self.dtype)
            q, k = (z[..., None, :] * self.gamma + self.beta).unbind(-2)  # (b, l, z)
            start = self._empty_cache(z.shape[0]) if cache is None else cache
            o, end = attend_cached(q[:, None], k[:, None], v[:, None], start, self.reach, lengths, self._score)
        return o[:, 0], end

    def _score(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, distance: Tensor) -> Tensor:
        return attend(q, k, v, mask, self.bias(distance), self.attention)

    def _empty_cache(self, batch: int) -> Cache:
        return empty_cache(self.reach, batch, 1, (self.z, self.hidden), self.gamma)
