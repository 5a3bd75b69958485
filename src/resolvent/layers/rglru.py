"""RG-LRU: the real-gated linear recurrent unit of Hawk and Griffin (De et al. 2024, section 2.4)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from resolvent.layers import checks
from resolvent.layers.contract import Layer, Spec, at_lengths
from resolvent.layers.groups import group_parameters, optim_overrides
from resolvent.ops.gated_scan import gated_scan, gates, project, project_in_one
from resolvent.ssm.system import Diagonal, System
from resolvent.usage.numbers import check_choice


class RGLRU(Layer):
    """One real state per channel; its decay and its input are gated by the input.

        r_t = sigmoid(W_a x_t + b_a),   i_t = sigmoid(W_x x_t + b_x),   log a_t = -c r_t softplus(L)
        h_t = a_t h_{t-1} + sqrt(1 - a_t^2) (i_t x_t),   y_t = h_t

    W_a and W_x are block-diagonal, one block per head: (heads, d / heads, d / heads), x on the left.

    The first step of a document has a_t = 0 and multiplier 1 in place of sqrt(1 - a_t^2). The state records whether
    that step has happened: {"h": (b, d), "started": (b,) bool}. A fresh state (`initial_state`, or None) has started =
    False, so only the first step after it is a document's first; every returned state has started = True.
    Whole, chunked and stepwise runs therefore agree exactly. To carry over an h without a reset, set started to True.

    radius       exp(-softplus(L)) is initialised with its square uniform in [low^2, high^2].
    convention   what lies in `radius`: "code" (the released code) exp(-softplus(L)), which is a_t at r_t = 1 / c;
                 "paper" exp(-c softplus(L)), which is a_t at r_t = 1.
    bidirectional   a second RG-LRU reads the reversed sequence (it includes x_t); the two outputs are added.

    Examples:
        >>> layer = rv.RGLRU(4)
        >>> y, state = layer(torch.randn(2, 50, 4))
        >>> layer.step(torch.randn(2, 4), state)[0].shape
        torch.Size([2, 4])
    """

    starts_from_none = True
    takes_half = True

    def __init__(
        self,
        d_model: int,
        heads: int = 1,
        *,
        c: float = 8.0,
        radius: tuple[float, float] = (0.9, 0.999),
        convention: str = "code",
        bidirectional: bool = False,
        check_finite: bool = False,
    ) -> None:
        super().__init__(d_model, bidirectional=bidirectional, check_finite=check_finite)
        checks.check_positive("RGLRU", heads=heads)
        check_choice("RGLRU", "convention", convention, ("code", "paper"))
        _check_settings(d_model, heads, c, radius)
        self.heads, self.c = heads, c
        block = d_model // heads
        self.W_a = nn.Parameter(torch.randn(heads, block, block) * block**-0.5)
        self.W_x = nn.Parameter(torch.randn(heads, block, block) * block**-0.5)
        self.b_a = nn.Parameter(torch.zeros(d_model))  # (d,)
        self.b_x = nn.Parameter(torch.zeros(d_model))  # (d,)
        self.L = nn.Parameter(_initial_L(d_model, radius, 1.0 if convention == "code" else c))  # (d,)
        self.other: RGLRU | None = None
        if bidirectional:
            self.other = RGLRU(d_model, heads, c=c, radius=radius, convention=convention)

    def state_spec(self, batch: int) -> dict[str, Spec]:
        return {"h": Spec((batch, self.d_model), self.dtype), "started": Spec((batch,), torch.bool)}

    def _sequence(
        self, x: Tensor, state: dict[str, Tensor] | None, lengths: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        h0, first = (None, _yes(x)) if state is None else (state["h"], ~state["started"])
        h = gated_scan(*self._drive(x), h0, first=first)  # (b, l, d)
        return h, self._start_state(at_lengths(h, lengths).to(self.dtype, copy=True))  # a copy, not a view of y

    def _step(self, x_t: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        a, gain = self._gates(x_t, ~state["started"][:, None])
        h = torch.addcmul(gain * x_t, a, state["h"])  # (b, d)
        return h, self._start_state(h.clone())  # y may be changed in place

    def _start_state(self, h: Tensor) -> dict[str, Tensor]:
        return {"h": h, "started": _yes(h)}

    def _gates(self, x: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
        """a_t and sqrt(1 - a_t^2) i_t, both (..., d); `start` (..., 1) marks the first step of a document."""
        p, q, _, rate = self._drive(x)
        return gates(p, q, rate, start)

    def _drive(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The arguments of `gated_scan`: both gates before their sigmoid, x, and log a at r = 1."""
        rate: Tensor = self.cached("rate", lambda: -self.c * F.softplus(self.L))  # (d,)
        weights = self.W_a, self.W_x, self.b_a, self.b_x
        if x.dtype == self.dtype:
            return *project(x, *weights), x, rate
        half = self.cached("half gates", lambda: [w.to(x.dtype) for w in weights])
        return *project_in_one(x, *half), x, rate

    def linearise(self, x: Tensor) -> System:
        """The time-varying system acting on a document x (b, l, d), gates frozen at this x: bank (b, d), n = 1."""
        checks.check_sequence(self, x, None)
        checks.check_one_direction(self)
        x = x.to(self.dtype)
        a, gain = self._gates(x, (torch.arange(x.shape[1], device=x.device) == 0)[:, None])  # (b, l, d)
        B = gain.mT[..., None, None]  # (b, d, l, 1, 1)
        return System(Diagonal(a.mT[..., None]), B, torch.ones_like(B), torch.zeros_like(B), dt=1.0, time_varying=True)

    def optim_groups(self) -> list[dict[str, Any]]:
        """L and the biases without weight decay: shrinking L to zero would pull every radius to one half."""
        return group_parameters(self, optim_overrides(("L", "b_a", "b_x"), None))


def _yes(x: Tensor) -> Tensor:
    """One True for each sequence."""
    return torch.ones(x.shape[0], dtype=torch.bool, device=x.device)


def _initial_L(d: int, radius: tuple[float, float], power: float) -> Tensor:
    """L with exp(-power softplus(L)) = u and u^2 uniform: L is the inverse softplus of -log(u) / power."""
    low, high = radius
    square = low**2 + torch.rand(d, dtype=torch.float64) * (high**2 - low**2)
    return torch.log(torch.expm1(-0.5 * torch.log(square) / power)).to(torch.get_default_dtype())


def _check_settings(d_model: int, heads: int, c: float, radius: tuple[float, float]) -> None:
    if d_model % heads:
        raise ValueError(f"RGLRU: heads must divide d_model, got {heads} heads for {d_model} channels.")
    if not (math.isfinite(c) and c > 0):
        raise ValueError(f"RGLRU: c must be a positive number, got {c}.")
    if not 0 < radius[0] <= radius[1] < 1:
        raise ValueError(f"RGLRU: radius must be 0 < low <= high < 1, got {radius}.")
