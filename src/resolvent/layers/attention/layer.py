"""Attention: softmax (or Laplace) attention under the layer contract, with its key-value cache as explicit state."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from resolvent.layers import checks
from resolvent.layers.attention.attend import Cache, Reach, RelativeBias, attend, attend_cached, cache_spec, rotate
from resolvent.layers.contract import Layer, Spec
from resolvent.layers.groups import group_parameters, optim_overrides
from resolvent.usage.numbers import check_choice


class Attention(Layer):
    """y = W_o concat_h softmax(q_h k_g^T / sqrt(e) + bias) v_g + b_o, heads h in groups that share keys and values g.

    heads, kv_heads, head_dim   kv_heads = heads (the default) is multi-head, kv_heads = 1 multi-query attention;
                 head_dim is d_model / heads unless given.
    kind, size   "full"; "chunked": positions 0..size-1, size..2 size-1, ... attend to one another (Mega);
                 "local": a query sees itself and the size - 1 positions before it (Griffin: 1024, the default. Its
                 released code counts differently: its window w is size = w + 1 here).
    position     "rotary" on all of a head's entries, "half-rotary" on the first half (RecurrentGemma's), "relative": a
                 learned bias for each distance (Mega's; distances from `size` on share one), or "none".
    activation   "softmax" or "laplace" (Mega's; not normalised).
    fused        see `resolvent.layers.attention.attend.attend`; True gives faster first gradients and no second ones.
    bidirectional   non-causal: sees both sides within reach at once, with one set of weights.

    State: {"k": (b, g, s, e), "v": (b, g, s, e), "seen": (b,)}. The cache is right-aligned: slot j holds position
    seen - s + j and is empty where that is negative. s is size - 1, or all positions so far for "full". Projections
    are initialised normal with variance 1 / (inputs); b_o is zero.

    Examples:
        >>> y, cache = rv.Attention(8, heads=2)(torch.randn(2, 50, 8))
        >>> y.shape
        torch.Size([2, 50, 8])
    """

    is_recordable = False  # its state is as long as its input: copying it costs more than replay saves

    def __init__(
        self,
        d_model: int,
        *,
        heads: int = 1,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        kind: str = "full",
        size: int | None = None,
        position: str = "rotary",
        activation: str = "softmax",
        fused: bool | None = None,
        bidirectional: bool = False,
        check_finite: bool = False,
    ) -> None:
        super().__init__(d_model, bidirectional=bidirectional, check_finite=check_finite)
        groups, width = _check_heads(d_model, heads, kv_heads, head_dim)
        check_choice("Attention", "position", position, ("rotary", "half-rotary", "relative", "none"))
        check_choice("Attention", "activation", activation, ("softmax", "laplace"))
        if fused and activation == "laplace":
            raise ValueError("Attention: Laplace attention has no fused kernel; leave fused at None.")
        self.heads, self.kv_heads, self.head_dim = heads, groups, width
        self.reach = Reach(kind, 1024 if kind == "local" and size is None else size, causal=not bidirectional)
        self.activation, self.fused = activation, fused
        self.rotary_dims = _rotary_dims(position, width)
        self.W_q = nn.Parameter(torch.randn(heads * width, d_model) * d_model**-0.5)  # (h e, d)
        self.W_k = nn.Parameter(torch.randn(groups * width, d_model) * d_model**-0.5)  # (g e, d)
        self.W_v = nn.Parameter(torch.randn(groups * width, d_model) * d_model**-0.5)  # (g e, d)
        self.W_o = nn.Parameter(torch.randn(d_model, heads * width) * (heads * width) ** -0.5)  # (d, h e)
        self.b_o = nn.Parameter(torch.zeros(d_model))  # (d,)
        self.relative = _relative(self.reach, heads) if position == "relative" else None

    def state_spec(self, batch: int) -> dict[str, Spec]:
        return cache_spec(self.reach, batch, self.kv_heads, (self.head_dim, self.head_dim), self.dtype)

    def _sequence(self, x: Tensor, state: Cache, lengths: Tensor | None) -> tuple[Tensor, Cache]:
        q, k, v = (self._heads(x, W) for W in (self.W_q, self.W_k, self.W_v))
        if self.rotary_dims:
            at = state["seen"][:, None] + torch.arange(x.shape[1], device=x.device)  # (b, l)
            q, k = rotate(q, at, self.rotary_dims), rotate(k, at, self.rotary_dims)
        y, state = attend_cached(q, k, v, state, self.reach, lengths, self._score)
        return F.linear(y.transpose(1, 2).flatten(2), self.W_o, self.b_o), state

    def _step(self, x_t: Tensor, state: Cache) -> tuple[Tensor, Cache]:
        y, state = self._sequence(x_t[:, None], state, None)
        return y[:, 0], state

    def _both_directions(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        """Both sides at once: no second pass over the reversed sequence is needed."""
        b = x.shape[0]
        empty = x.new_zeros(b, self.kv_heads, 0, self.head_dim)
        start = {"k": empty, "v": empty, "seen": torch.zeros(b, dtype=torch.int64, device=x.device)}
        return self._sequence(x, start, lengths)[0]

    def _heads(self, x: Tensor, W: Tensor) -> Tensor:
        return F.linear(x, W).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # (b, heads, l, e)

    def _score(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, distance: Tensor) -> Tensor:
        bias = None if self.relative is None else self.relative(distance)
        return attend(q, k, v, mask, bias, self.activation, self.fused)

    def optim_groups(self) -> list[dict[str, Any]]:
        """b_o and the relative bias without weight decay."""
        return group_parameters(self, optim_overrides(("b_o", "relative.table"), None))


def _check_heads(d_model: int, heads: int, kv_heads: int | None, head_dim: int | None) -> tuple[int, int]:
    checks.check_positive("Attention", heads=heads)
    groups = heads if kv_heads is None else kv_heads
    checks.check_positive("Attention", kv_heads=groups)
    if heads % groups:
        raise ValueError(f"Attention: kv_heads must divide heads, got {groups} for {heads} heads.")
    if head_dim is None and d_model % heads:
        raise ValueError(f"Attention: heads must divide d_model ({d_model}), got {heads}; or give head_dim.")
    width = d_model // heads if head_dim is None else head_dim
    checks.check_positive("Attention", head_dim=width)
    return groups, width


def _rotary_dims(position: str, width: int) -> int:
    """How many entries are rotated: an even number; a left-over odd entry is unchanged."""
    share = {"rotary": width, "half-rotary": width // 2}.get(position)
    if share is None:
        return 0
    if share < 2:
        raise ValueError(
            f"Attention: position={position!r} turns pairs of entries, so head_dim must be at least "
            f"{2 if position == 'rotary' else 4}, got {width}; choose another head_dim or position."
        )
    return share - share % 2


def _relative(reach: Reach, heads: int) -> RelativeBias:
    if reach.size is None:
        raise ValueError("Attention: position='relative' needs a size: how many distances get a bias of their own.")
    return RelativeBias(reach.size, heads, causal=reach.causal)
