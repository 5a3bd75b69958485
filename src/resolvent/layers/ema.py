"""EMA: Mega's multi-dimensional damped exponential moving average, n real states per channel.

Ma et al. 2023, "Mega: moving average equipped gated attention", with the released code's scale and residual:

    h_t = p beta u_t + q h_{t-1},    q = 1 - p delta,    p = sigmoid(alpha), delta = sigmoid(damping)
    y_t = sum_n eta_n h_t,n / sqrt(n) + omega u_t

p, delta in (0, 1), so q in (0, 1) for any value of the parameters. Mega applies SiLU to the sum; here it is an option.
(The released code swaps two names: its `delta` is the weight p, its `alpha` the damping.)
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from resolvent.layers import checks, siso
from resolvent.layers.contract import Layer, Spec
from resolvent.ops.blocked import DiagonalBank, inside
from resolvent.ops.modes import Kind, Modes, Parameters, Source
from resolvent.ops.pairs import Make, join_parts
from resolvent.ops.step import Step
from resolvent.runtime.transforms import wide_all
from resolvent.ssm.system import Diagonal, System

GATE_STD = 0.2
BETA_STD = 0.02


class EMA(Layer):
    """Damped EMA, (b, l, d) -> (b, l, d); the state is real (b, d, d_state).

    The state is stored per unit of input: the paper's h is p beta times it.

    d_state        dimensions of each channel's average (Mega uses 16)
    silu           apply SiLU to the output, as Mega's block does around this layer
    bidirectional  a second average with its own alpha, damping, beta and eta runs backwards; it includes u_t. The
                   residual omega u_t is added once

    Examples:
        >>> y, state = rv.EMA(4, 8)(torch.randn(2, 50, 4))
        >>> y.shape, state.shape
        (torch.Size([2, 50, 4]), torch.Size([2, 4, 8]))
    """

    starts_from_none = True

    def __init__(
        self,
        d_model: int,
        d_state: int = 16,
        *,
        silu: bool = False,
        bidirectional: bool = False,
        check_finite: bool = False,
    ) -> None:
        super().__init__(d_model, bidirectional=bidirectional, check_finite=check_finite)
        checks.check_positive("EMA", d_state=d_state)
        self.d_state, self.silu = d_state, silu
        shape = (2, d_model, d_state) if bidirectional else (1, d_model, d_state)  # directions first
        sign = torch.ones(d_state)
        sign[1::2] = -1
        self.alpha = nn.Parameter(GATE_STD * torch.randn(shape))
        self.damping = nn.Parameter(GATE_STD * torch.randn(shape))
        self.beta = nn.Parameter(sign + BETA_STD * torch.randn(shape))
        self.eta = nn.Parameter(torch.randn(shape))
        self.omega = nn.Parameter(torch.randn(d_model))  # (d,)

    def state_spec(self, batch: int) -> Spec:
        return Spec((batch, self.d_model, self.d_state), self.dtype)

    def system(self) -> System:
        """The discrete systems of all channels as a bank (d,): the linear part, before SiLU."""
        checks.check_one_direction(self)
        q, B = (t.to(self.dtype) for t in self._recurrence(0))
        C = self.eta[0] / math.sqrt(self.d_state)
        return System(Diagonal(q), B[..., None], C[:, None], self.omega[:, None, None], 1.0)

    def _sequence(self, x: Tensor, state: Tensor | None, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        y, end = siso.sequence(self, self._source(), x, state, lengths)
        return (y if self.bidirectional else self._activate(y)), end

    def _backward_sequence(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        return siso.backward_sequence(self, self._source(1), x, delay=False)

    def _both_directions(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        return self._activate(super()._both_directions(x, lengths))

    def _step(self, x_t: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        y_t, state = siso.step(self, self._source(), x_t, state)
        return self._activate(y_t), state

    def _stepper(self) -> Step | None:
        return None if self.silu else siso.stepper(self, self._source())

    def _activate(self, y: Tensor) -> Tensor:
        return nn.functional.silu(y) if self.silu else y

    def _recurrence(self, direction: int) -> tuple[Tensor, Tensor]:
        """q (d, n) and p beta (d, n) of one direction."""
        alpha, damping, beta = wide_all([p[direction] for p in (self.alpha, self.damping, self.beta)])
        return _recurrence(alpha, damping, beta, self.dtype)

    def _bank(self, length: int = 0, make: Make = join_parts, back: bool = False) -> DiagonalBank:
        return self._source(int(back))(make)

    def _source(self, direction: int = 0) -> Source:
        given = self.alpha, self.damping, self.beta, self.eta
        # a view of the only direction: indexing would cost the backward pass a copy each
        own = [p[direction] if self.bidirectional else p.flatten(0, 1) for p in given]
        return Source(MODES, own if direction else [*own, self.omega])


def _recurrence(alpha: Tensor, damping: Tensor, beta: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    p, delta = torch.sigmoid(alpha), torch.sigmoid(damping)
    return inside(1 - p * delta, dtype), p * beta


def _bank(parameters: Parameters, option: str, make: Make = join_parts) -> DiagonalBank:
    """From alpha, damping, beta, eta (d, n) and omega (d,), which the backward direction lacks."""
    alpha, damping, beta, eta, *omega = wide_all(parameters)
    q, B = _recurrence(alpha, damping, beta, parameters[0].dtype)
    return DiagonalBank(q, B * eta / math.sqrt(eta.shape[1]), *omega)


def _example() -> Parameters:
    ramp = torch.linspace(-4, 4, 15).view(3, 5)
    return ramp, ramp.flip(1), ramp.cos(), ramp.sin(), torch.tensor([0.5, -1.0, 2.0])


MODES = Modes(Kind.EMA, _bank, _example)
