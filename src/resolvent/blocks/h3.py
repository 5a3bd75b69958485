"""H3 (Fu et al. 2023, "Hungry hungry hippos", section 3): a shift SSM and a diagonal SSM joined by two products.

    q, k, v = W_q x, W_k x, W_v x
    k' = shift(k) + D_k * k                        shift: an FIR filter of n taps, the shift-register SSM with B = e_1
    s  = ssm(k' v^T)                               per head, every entry of the outer product through the same S4D
    y  = W_o (q^T s)                               summed over the key axis

With head_dim 1 the outer products are elementwise: y = W_o (q * ssm(k' * v)). There is no other non-linearity. Another
layer may replace S4D: S4, or S5 and LRU, which mix the heads.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from resolvent.blocks.block import Block, State
from resolvent.blocks.inner import check_inner
from resolvent.layers.checks import check_positive
from resolvent.layers.contract import Layer, Spec
from resolvent.layers.s4d import S4D
from resolvent.layers.shortconv import ShortConv


class H3(Block):
    """d_state taps and states; d_model / head_dim heads; `ads` scales the sum over keys before W_o.

    ssm   a causal layer on the heads in place of S4D(heads, d_state)

    Examples:
        >>> rv.blocks.H3(4, 8)(torch.randn(2, 10, 4))[0].shape
        torch.Size([2, 10, 4])
    """

    def __init__(
        self,
        d_model: int,
        d_state: int = 64,
        *,
        head_dim: int = 1,
        ads: nn.Module | None = None,
        ssm: Layer | None = None,
    ) -> None:
        super().__init__(d_model)
        check_positive("H3", d_state=d_state, head_dim=head_dim)
        if d_model % head_dim:
            raise ValueError(f"H3: head_dim must divide d_model, got head_dim={head_dim} and d_model={d_model}.")
        self.head_dim = head_dim
        self.query = nn.Linear(d_model, d_model)
        self.key = nn.Linear(d_model, d_model)
        self.value = nn.Linear(d_model, d_model)
        self.shift = ShortConv(d_model, d_state, bias=False)
        self.shift_D = nn.Parameter(torch.randn(d_model))
        heads = d_model // head_dim
        self.ssm: Layer = S4D(heads, d_state) if ssm is None else check_inner("H3", ssm, heads)
        if not isinstance(self.ssm.state_spec(1), Spec):
            raise ValueError(f"H3: expected an ssm with one tensor as its state, got {type(self.ssm).__name__}.")
        self.ads = ads or nn.Identity()
        self.out = nn.Linear(d_model, d_model)

    def state_spec(self, batch: int) -> dict[str, Any]:
        one = self.ssm.state_spec(batch)  # (b, ...) for each entry of the outer product
        assert isinstance(one, Spec)
        inner = Spec((batch, self.head_dim**2, *one.shape[1:]), one.dtype)
        return {"shift": self.shift.state_spec(batch), "ssm": inner}

    def initial_state(self, batch: int) -> State:
        check_positive("H3.initial_state", batch=batch)
        entries = self.ssm.initial_state(batch * self.head_dim**2)
        return {"shift": self.shift.initial_state(batch), "ssm": entries.unflatten(0, (batch, -1))}

    def _sequence(self, x: Tensor, state: State, lengths: Tensor | None) -> tuple[Tensor, State]:
        k = self.key(x)
        shifted, shift = self.shift(k, state.get("shift"), lengths)
        kv = self._outer(shifted + self.shift_D * k, self.value(x))
        each = None if lengths is None else lengths.repeat_interleave(self.head_dim**2)
        s, ssm = self.ssm(kv, state["ssm"].flatten(0, 1) if state else None, each)
        return self._read(x, s), {"shift": shift, "ssm": ssm.unflatten(0, (x.shape[0], -1))}

    def _step(self, x_t: Tensor, state: State) -> tuple[Tensor, State]:
        k = self.key(x_t)
        shifted, shift = self.shift._step(k, state["shift"])
        kv = self._outer((shifted + self.shift_D * k)[:, None], self.value(x_t)[:, None])
        s, ssm = self.ssm._step(kv[:, 0], state["ssm"].flatten(0, 1))
        return self._read(x_t[:, None], s[:, None])[:, 0], {"shift": shift, "ssm": ssm.unflatten(0, (x_t.shape[0], -1))}

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_dim))  # (b, l, h, p)

    def _outer(self, k: Tensor, v: Tensor) -> Tensor:
        """k v^T per head, with each entry as a sequence of its own: (b p p, l, h)."""
        b, l, _ = k.shape
        kv = self._heads(k)[..., :, None] * self._heads(v)[..., None, :]  # (b, l, h, p, p)
        return kv.permute(0, 3, 4, 1, 2).reshape(b * self.head_dim**2, l, -1)

    def _read(self, x: Tensor, s: Tensor) -> Tensor:
        b, l, _ = x.shape
        s = s.reshape(b, self.head_dim, self.head_dim, l, -1)  # (b, key, value, l, h)
        y = torch.einsum("blhk,bkvlh->blhv", self._heads(self.query(x)), s.to(x.dtype))
        return self.out(self.ads(y.flatten(-2)))
