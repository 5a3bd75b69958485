"""S6: the selective state-space layer inside Mamba (Gu and Dao 2023, Algorithm 2)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from resolvent.init.spectra import real
from resolvent.layers import checks
from resolvent.layers.contract import Layer, Spec, State
from resolvent.layers.groups import group_parameters, optim_overrides
from resolvent.layers.selective import hold_padding, selective_step, selective_system
from resolvent.ops import step
from resolvent.ops.selective_scan import Given, selected_scan, selective_scan
from resolvent.ops.step import Step, is_unwatched
from resolvent.runtime.transforms import half_products, is_recorded, without_autocast
from resolvent.ssm.system import System
from resolvent.usage.numbers import check_choice


class S6(Layer):
    """Each channel is a diagonal system of n real states whose dt, B and C depend on the input.

        (s, B, C) = x_proj x,   dt = softplus(dt_proj s + dt_bias),   A = -exp(A_log)
        h_t = exp(dt_t A) h_{t-1} + dt_t B_t x_t,   y_t = C_t . h_t + D x_t

    dt is per channel (d), B and C (n) are shared by the channels; the state is (b, d, n). A < 0 and dt > 0 for every
    parameter value, so the free state never grows.

    A            "s4d-real": A_log = log(1..n) in every channel (Mamba's); a tensor (n,) or (d, n) of negative numbers
                 sets other initial values.
    dt_rank      size of s; "auto" is ceil(d_model / 16).
    dt_min, dt_max, dt_floor   softplus(dt_bias) starts log-uniform in [dt_min, dt_max] and never below dt_floor.
    bidirectional   a second S6 reads the reversed sequence (it includes x_t); the two outputs are added.

    `gated(x, z)` is y * silu(z) with the gate fused into the scan. The in/out projections and the convolution of a
    Mamba block are not part of the layer.

    Examples:
        >>> y, state = rv.S6(4, 8)(torch.randn(2, 50, 4))
        >>> y.shape, state.shape
        (torch.Size([2, 50, 4]), torch.Size([2, 4, 8]))
    """

    starts_from_none = True
    takes_half = True

    def __init__(
        self,
        d_model: int,
        d_state: int = 16,
        *,
        dt_rank: int | str = "auto",
        dt_min: float = 1e-3,
        dt_max: float = 0.1,
        dt_floor: float = 1e-4,
        A: str | Tensor = "s4d-real",
        bidirectional: bool = False,
        check_finite: bool = False,
    ) -> None:
        super().__init__(d_model, bidirectional=bidirectional, check_finite=check_finite)
        rank = math.ceil(d_model / 16) if dt_rank == "auto" else dt_rank
        if isinstance(rank, str):
            raise ValueError(f"S6: dt_rank must be 'auto' or a whole number, got {dt_rank!r}.")
        checks.check_positive("S6", d_state=d_state, dt_rank=rank)
        _check_steps(dt_min, dt_max, dt_floor)
        self.d_state, self.dt_rank = d_state, rank
        self.x_proj = nn.Parameter(_uniform(rank + 2 * d_state, d_model))  # (r + 2n, d)
        self.dt_proj = nn.Parameter(_uniform(d_model, rank))  # (d, r)
        self.dt_bias = nn.Parameter(initial_dt_bias(d_model, dt_min, dt_max, dt_floor))  # (d,)
        self.A_log = nn.Parameter(_initial_A_log(A, d_model, d_state))  # (d, n)
        self.D = nn.Parameter(torch.ones(d_model))  # (d,)
        self.other: S6 | None = None
        if bidirectional:
            self.other = S6(d_model, d_state, dt_rank=rank, dt_min=dt_min, dt_max=dt_max, dt_floor=dt_floor, A=A)

    def state_spec(self, batch: int) -> Spec:
        return Spec((batch, self.d_model, self.d_state), self.dtype)

    def gated(self, x: Tensor, z: Tensor, state: State = None, lengths: Tensor | None = None) -> tuple[Tensor, State]:
        """forward(x, state, lengths) with the output multiplied by silu(z): x, z (b, l, d) -> y (b, l, d)."""
        checks.check_sequence(self, x, lengths)
        if not isinstance(z, Tensor) or z.shape != x.shape:
            got = tuple(z.shape) if isinstance(z, Tensor) else type(z).__name__
            raise ValueError(f"S6.gated: expected a gate z of x's shape {tuple(x.shape)}, got {got}.")
        if self.bidirectional or x.shape[1] == 0:
            y, end = self(x, state, lengths)
            return y * F.silu(z.to(y.dtype)), end
        if state is not None:
            checks.check_state(self, state, x.shape[0])
        mask = checks.padding_mask(x, lengths)  # (b, l, 1) or None
        with without_autocast(x.device.type):
            dtype = self._input_dtype(x)
            u, gate = (t.to(dtype) if mask is None else t.to(dtype).masked_fill(mask, 0) for t in (x, z))
            y, end = self._scan(u, gate, state, lengths)  # a gate of 0 also zeroes the padding: silu(0) = 0
        return y.to(x.dtype), end

    def convolved(self, pair: Tensor, taps: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """gated(silu(taps * h), z) from the zero state; pair (b, l, 2d) is [h, z], taps (d, w) and bias (d,)."""
        with without_autocast(pair.device.type):
            dtype, weights = self._weights(pair)
            given = Given(pair.to(dtype), None, taps, bias, *weights)
            return selected_scan(given, pair.dtype)

    def _sequence(self, x: Tensor, state: Tensor | None, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        return self._scan(x, None, state, lengths)

    def _uneven(self, x: Tensor, dt: Tensor, state: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        own, B, C = self._select(x)
        return selective_scan(x, hold_padding(own * dt[..., None], lengths), self._A(), B, C, self.D, None, state)

    def _scan(self, x: Tensor, z: Tensor | None, state: Tensor | None, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        if self.dtype == torch.float32 and half_products(x):
            dtype, weights = self._weights(x)
            given = Given(x.to(dtype), z, None, None, *weights)._replace(h0=state)
            return selected_scan(given, x.dtype, checks.padding_mask(x, lengths), often=True)
        dt, B, C = self._select(x)
        return selective_scan(x, hold_padding(dt, lengths), self._A(), B, C, self.D, z, state)

    def _input_dtype(self, x: Tensor) -> torch.dtype:
        """`_scan` rounds x itself and returns y in the dtype of x."""
        return self.dtype if x.dtype == torch.float32 else super()._input_dtype(x)

    def _weights(self, x: Tensor) -> tuple[torch.dtype, tuple[Tensor, Tensor, Tensor, Tensor, Tensor]]:
        """The parameters that select on x, and the dtype of their products."""
        x_proj, dt_proj, dtype = self.x_proj, self.dt_proj, self.dtype
        if dtype == torch.float32 and half_products(x):
            dtype = torch.bfloat16
            x_proj, dt_proj = self.cached("half selection", lambda: [w.to(dtype) for w in (x_proj, dt_proj)])
        return dtype, (x_proj, dt_proj, self.dt_bias, self._A(), self.D)

    def _step(self, x_t: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        if is_unwatched(x_t, state, *self.parameters()):
            return self._stepper()(x_t, state)
        dt, B, C = self._select(x_t)
        y_t, state = selective_step(x_t, dt, self._A(), B, C, state)
        return torch.addcmul(y_t, self.D, x_t), state

    def _stepper(self) -> Step:
        return step.selective_step(self.x_proj, self.dt_proj, self.dt_bias, self._A(), self.D)

    def _select(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The input-dependent dt (..., d), B and C (..., n)."""
        n = self.d_state
        s, B, C = F.linear(x, self.x_proj).split([self.dt_rank, n, n], -1)
        return F.softplus(F.linear(s, self.dt_proj, self.dt_bias)), B, C

    def _A(self) -> Tensor:
        """-exp(A_log), (d, n); finite for any A_log, so that a step with dt = 0 still keeps the state."""
        A: Tensor = self.cached("A", lambda: -torch.exp(self.A_log.clamp(max=80.0)))
        return A

    def linearise(self, x: Tensor) -> System:
        """The time-varying system acting on x (b, l, d) from zero, its selection frozen at this x: bank (b, d)."""
        checks.check_sequence(self, x, None)
        checks.check_one_direction(self)
        dt, B, C = self._select(x.to(self.dtype))
        return selective_system(dt, self._A(), B, C, self.D)

    def optim_groups(self) -> list[dict[str, Any]]:
        """A_log, D and dt_bias take no weight decay (Mamba's rule for A_log and D, and the usual one for a bias)."""
        return group_parameters(self, optim_overrides(("A_log", "D", "dt_bias"), None))


def initial_dt_bias(d: int, dt_min: float, dt_max: float, dt_floor: float) -> Tensor:
    """Bias (d,) whose softplus is log-uniform in [dt_min, dt_max]: the inverse is dt + log(-expm1(-dt))."""
    low, high = math.log(dt_min), math.log(dt_max)
    dt = torch.exp(torch.rand(d, dtype=torch.float64) * (high - low) + low).clamp(min=dt_floor)
    return (dt + torch.log(-torch.expm1(-dt))).to(torch.get_default_dtype())


def _initial_A_log(A: str | Tensor, d: int, n: int) -> Tensor:
    if isinstance(A, str):
        check_choice("S6", "A", A, ("s4d-real",))
        A = real(n)[0]
    elif A.shape not in ((n,), (d, n)) or not (is_recorded(A) or bool((A < 0).all())):
        raise ValueError(f"S6: A must be negative numbers of shape ({n},) or ({d}, {n}), got shape {tuple(A.shape)}.")
    log = torch.log(-A.detach()).to(torch.get_default_dtype())
    return log.to(torch.get_default_device()).expand(d, n).contiguous().clone()


def _check_steps(dt_min: float, dt_max: float, dt_floor: float) -> None:
    if not (0 < dt_min <= dt_max and 0 < dt_floor <= dt_max):
        raise ValueError(
            "S6: expected 0 < dt_min <= dt_max and 0 < dt_floor <= dt_max, "
            f"got dt_min={dt_min}, dt_max={dt_max}, dt_floor={dt_floor}."
        )


def _uniform(rows: int, columns: int) -> Tensor:
    """A (rows, columns) matrix uniform in +-columns^-1/2, the initialisation of `nn.Linear`."""
    return torch.empty(rows, columns).uniform_(-(columns**-0.5), columns**-0.5)
