"""ScalarS6, the selective layer of the generalisation study: one step size for all channels and an unconstrained A."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from resolvent.layers import checks
from resolvent.layers.contract import Layer, Spec
from resolvent.layers.groups import group_parameters
from resolvent.layers.selective import hold_padding, selective_step, selective_system
from resolvent.ops.selective_scan import selective_scan
from resolvent.ssm.system import System


class ScalarS6(Layer):
    """h_t = exp(dt_t A) h_{t-1} + dt_t (W_B x_t) x_t,   y_t = (W_C x_t) . h_t,   dt_t = softplus(p + q . x_t).

    The same dt_t drives every channel. A (d, n) is stored directly, without -exp: entries may be positive, and the
    largest one is the spectral abscissa that the generalisation bound depends on. There is no D. The state (b, d, n) is
    updated first and then read, so y_t sees x_t.

    abscissa     s_A: A is initialised as -10 U(0, 1) + s_A with column 0 exactly s_A.
    fixed_A      A is a constant buffer filled with s_A, never trained.
    bidirectional   a second layer reads the reversed sequence (it includes x_t); the two outputs are added.

    W_B, W_C, q and p are initialised standard normal. |exp(dt A)| < 1 is deliberately not guaranteed.

    Examples:
        >>> y, state = rv.layers.ScalarS6(4, 8)(torch.randn(2, 50, 4))
        >>> y.shape
        torch.Size([2, 50, 4])
    """

    A: Tensor

    def __init__(
        self,
        d_model: int,
        d_state: int = 4,
        *,
        abscissa: float = 0.0,
        fixed_A: bool = False,
        bidirectional: bool = False,
        check_finite: bool = False,
    ) -> None:
        super().__init__(d_model, bidirectional=bidirectional, check_finite=check_finite)
        checks.check_positive("ScalarS6", d_state=d_state)
        self.d_state = d_state
        self.W_B = nn.Parameter(torch.randn(d_state, d_model))  # (n, d)
        self.W_C = nn.Parameter(torch.randn(d_state, d_model))  # (n, d)
        self.q = nn.Parameter(torch.randn(d_model))  # (d,)
        self.p = nn.Parameter(torch.randn(1))  # (1,)
        if fixed_A:
            self.register_buffer("A", torch.full((d_model, d_state), float(abscissa)))
        else:
            self.A = nn.Parameter(_initial_A(d_model, d_state, abscissa))  # (d, n)
        self.other = ScalarS6(d_model, d_state, abscissa=abscissa, fixed_A=fixed_A) if bidirectional else None

    def state_spec(self, batch: int) -> Spec:
        return Spec((batch, self.d_model, self.d_state), self.dtype)

    def _sequence(self, x: Tensor, state: Tensor | None, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        dt, B, C = self._select(x)
        dt = hold_padding(dt, lengths).expand_as(x)  # (b, l, 1) -> (b, l, d)
        return selective_scan(x, dt, self.A, B, C, None, None, state)

    def _uneven(self, x: Tensor, dt: Tensor, state: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        own, B, C = self._select(x)
        steps = hold_padding(own * dt[..., None], lengths).expand_as(x)
        return selective_scan(x, steps, self.A, B, C, None, None, state)

    def _step(self, x_t: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        dt, B, C = self._select(x_t)
        return selective_step(x_t, dt, self.A, B, C, state)

    def _select(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The input-dependent dt (..., 1), B and C (..., n)."""
        return F.softplus(F.linear(x, self.q[None], self.p)), F.linear(x, self.W_B), F.linear(x, self.W_C)

    def linearise(self, x: Tensor) -> System:
        """The time-varying system acting on x (b, l, d) from zero, its selection frozen at this x: bank (b, d)."""
        checks.check_sequence(self, x, None)
        checks.check_one_direction(self)
        x = x.to(self.dtype)
        dt, B, C = self._select(x)
        return selective_system(dt.expand_as(x), self.A, B, C, x.new_zeros(self.d_model))

    def optim_groups(self) -> list[dict[str, Any]]:
        """One default group: the study decays every parameter alike (Adam, L2 of 1e-5)."""
        return group_parameters(self, {})


def _initial_A(d: int, n: int, abscissa: float) -> Tensor:
    A = -10 * torch.rand(d, n) + abscissa
    A[:, 0] = abscissa
    return A
