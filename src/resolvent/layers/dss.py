"""DSS: diagonal state spaces, d channels sharing one complex spectrum.

Gupta, Gu, Berant 2022, "Diagonal state spaces are as effective as structured state spaces". With z = dt lam:

    exp       K_l = Re sum_n W_n (e^z - 1) / lam  e^{l z},        Re(lam) = -exp(.): zero-order hold with B = 1
    softmax   K_l = Re sum_n W_n / lam  e^{l z} / sum_{r<L} e^{r z},      Re(lam) free; L is the length of the sequence

There is no factor 2: d_state counts N complex states, equivalent to 2N real ones. Softmax kernels of different
lengths are not prefixes of one another, so such a layer can stream only with a declared `length`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from resolvent.init import timestep
from resolvent.init.spectra import ptd, ptd_modes
from resolvent.layers import checks, siso
from resolvent.layers.contract import Layer, Spec, State
from resolvent.layers.groups import group_parameters, optim_overrides
from resolvent.ops.blocked import DiagonalBank, inside
from resolvent.ops.modes import Kind, Modes, Parameters, Source
from resolvent.ops.pairs import Make, Number, complex_of, join_parts, where
from resolvent.ops.step import Step
from resolvent.runtime.transforms import is_recorded, wide, wide_all
from resolvent.ssm.discretise import expm1_over, positive
from resolvent.ssm.hippo import dplr
from resolvent.ssm.system import System, conjugate_closed
from resolvent.usage.numbers import check_choice

REGULARISER = 1e-7  # of the softmax's reciprocal, as published
LARGEST_GROWTH = 80.0  # bounds the growth over the whole length by e^80, near float32's useful range


class DSS(Layer):
    """DSS, (b, l, d) -> (b, l, d); the state is complex (b, d, d_state).

    A softmax layer's state is the pair (h, position): the number of steps each sequence has run, (b,).

    d_state        complex states N of each channel (the paper's "2N real"); the first spectrum is LegS's of size 2N
    kernel         "exp" or "softmax"
    init           "legs": LegS's normal part and normal W; "ptd": LegS + E = V diag(lam) V^-1 (`init.ptd`) with
                   W = 2 (C_0 V) (V^-1 B_hippo), so that "exp" with one dt starts as (LegS + E, B_hippo, C_0) itself
    length         for "softmax": the L of the kernel. None uses the length of each sequence; chunks, steps and states
                   are then refused. Growth Re(dt lam) is limited to 80 / L
    separate_dt    one time step for the real and one for the imaginary part of lam (the paper's default)
    bidirectional  a second read-out W_back of the same recurrence run backwards in time. It sees only the strict
                   future: u_t enters through the forward direction alone
    lr             learning rate of dt, lam and W in `optim_groups`; None keeps the optimiser's

    Examples:
        >>> y, state = rv.DSS(4, 8)(torch.randn(2, 50, 4))
        >>> y.shape, state.shape
        (torch.Size([2, 50, 4]), torch.Size([2, 4, 8]))
    """

    starts_from_none = True

    def __init__(
        self,
        d_model: int,
        d_state: int = 64,
        *,
        kernel: str = "exp",
        length: int | None = None,
        separate_dt: bool = True,
        init: str = "legs",
        dt_min: float = timestep.DT_MIN,
        dt_max: float = timestep.DT_MAX,
        bidirectional: bool = False,
        lr: float | None = 1e-3,
        check_finite: bool = False,
    ) -> None:
        super().__init__(d_model, bidirectional=bidirectional, check_finite=check_finite)
        checks.check_positive("DSS", d_state=d_state)
        check_choice("DSS", "kernel", kernel, ("exp", "softmax"))
        timestep.check_range("DSS", dt_min, dt_max)
        _check_length(kernel, length)
        check_choice("DSS", "init", init, ("legs", "ptd"))
        self.d_state, self.kernel, self.length, self.lr = d_state, kernel, length, lr
        self.init = init
        lam = dplr("legs", 2 * d_state)[0] if init == "legs" else ptd_modes(2 * d_state)[0]  # (n,)
        self.decay = siso.pairs(torch.log(-lam.real) if kernel == "exp" else lam.real)  # (n,): log(-Re lam), or Re lam
        self.frequency = siso.pairs(lam.imag)  # (n,)
        self.log_dt = nn.Parameter(timestep.log_uniform((d_model, 2 if separate_dt else 1), dt_min, dt_max))
        self.W = self._read_out()  # (d, n, 2)
        self.W_back = self._read_out() if bidirectional else None
        self.D = nn.Parameter(torch.randn(d_model))  # (d,)

    def state_spec(self, batch: int) -> Spec | tuple[Spec, ...]:
        h = Spec((batch, self.d_model, self.d_state), self.complex_dtype)
        return h if self.kernel == "exp" else (h, Spec((batch,), torch.int64))

    def system(self) -> System:
        """The discrete systems of all channels as a bank (d,); for "softmax", at the declared length."""
        checks.check_one_direction(self)
        bank = self._bank(self._require_length("system()"))
        gain = torch.ones_like(bank.lam) if bank.gain is None else bank.gain
        lam, B, C = (t.to(self.complex_dtype) for t in (bank.lam, gain[..., None], bank.weight[:, None] / 2))
        return conjugate_closed(lam, B, C, self.D[:, None, None], positive(self.log_dt[:, 0]))

    def optim_groups(self) -> list[dict[str, Any]]:
        names = ("log_dt", "decay", "frequency", "W", "W_back")
        return group_parameters(self, optim_overrides(names, self.lr))

    # -- forward passes ---------------------------------------------------------------------------------------

    def _sequence(self, x: Tensor, state: State, lengths: Tensor | None) -> tuple[Tensor, State]:
        if self.kernel == "exp":
            return siso.sequence(self, self._source(), x, state, lengths)
        h, position = (None, x.new_zeros(x.shape[0], dtype=torch.int64)) if state is None else state
        steps = torch.full_like(position, x.shape[1]) if lengths is None else lengths.to(position.dtype)
        self._check_position(position, steps)
        if self.length is None and lengths is not None:
            y = self._run_ragged(x, lengths, back=False)
            h = x.new_zeros(x.shape[0], self.d_model, self.d_state, dtype=self.complex_dtype)  # unused
        else:
            L = self.length or x.shape[1]
            y, h = siso.sequence(self, lambda: self._bank(L), x, h, lengths, key=self._key(L))
        return y, (h, position + steps)

    def _key(self, L: int) -> str:
        """The cache key of the tables; None, so that none are kept, for a symbolic length."""
        return "of any" if isinstance(L, torch.SymInt) or torch.compiler.is_compiling() else f"of {L}"

    def _backward_sequence(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        if self.kernel == "softmax" and self.length is None and lengths is not None:
            return self._run_ragged(x, lengths, back=True)
        if self.kernel == "exp":
            return siso.backward_sequence(self, self._source(back=True), x, delay=True)
        L = self.length or x.shape[1]
        return siso.backward_sequence(self, lambda: self._bank(L, back=True), x, delay=True, key=self._key(L))

    def _run_ragged(self, x: Tensor, lengths: Tensor, back: bool) -> Tensor:
        """Apply to each sequence the kernel of its own length, each of its channels as one channel of a bank."""
        b, l, d = x.shape
        own = self._bank(lengths.to(x.device)[:, None, None], back=back)  # (b, d, n)
        assert own.gain is not None
        lam, weight, gain = (t.flatten(0, 1) for t in (own.lam, own.weight, own.gain))
        bank = DiagonalBank(lam, weight, None if own.D is None else own.D.repeat(b), gain)
        y = siso.output(bank, x.transpose(0, 1).reshape(1, l, b * d), self.dtype, delay=back)
        return y.reshape(l, b, d).transpose(0, 1)

    def _step(self, x_t: Tensor, state: State) -> tuple[Tensor, State]:
        L = self._require_length("step")
        if self.kernel == "exp":
            return siso.step(self, self._source(), x_t, state)
        h, position = state
        self._check_position(position, torch.ones_like(position))
        y_t, h = siso.step(self, lambda: self._bank(L), x_t, h)
        return y_t, (h, position + 1)

    def _stepper(self) -> Step | None:
        return siso.stepper(self, self._source()) if self.kernel == "exp" else None

    # -- parameters ------------------------------------------------------------------------------------------------

    def _read_out(self) -> nn.Parameter:
        if self.init == "legs":
            return siso.pairs(siso.complex_normal(self.d_model, self.d_state))
        return siso.in_basis(ptd_modes(2 * self.d_state)[1], self.d_model, 2 * ptd(2 * self.d_state)[1])

    def _source(self, back: bool = False) -> Source:
        """The table source of an "exp" kernel."""
        W = self.W_back if back and self.W_back is not None else self.W
        own = [self.decay, self.frequency, self.log_dt, W]
        return Source(MODES, own if back else [*own, self.D])

    def _bank(self, length: int | Tensor, make: Make = join_parts, back: bool = False) -> DiagonalBank:
        """The system whose kernel has this length (irrelevant to "exp"), or else the declared one."""
        if self.kernel == "exp":
            return self._source(back)(make)
        L = self.length or length
        dt = positive(wide(self.log_dt))  # (d, 2) or (d, 1)
        decay = wide(self.decay)
        lam = make(decay, wide(self.frequency))  # (n,)
        growth, angle = dt[:, :1] * decay, dt[:, -1:] * lam.imag  # (d, n)
        W = complex_of(wide(self.W_back if back and self.W_back is not None else self.W))
        D = None if back else wide(self.D)
        growth = growth.clamp(max=LARGEST_GROWTH / L)  # for lengths (b, 1, 1): (b, d, n)
        z = make(growth, angle.expand_as(growth))
        total, gain = _softmax_sum(z, L)
        return DiagonalBank(z.exp(), W * _reciprocal(total * lam), D, gain)

    def _require_length(self, what: str) -> int:
        if self.kernel == "softmax" and self.length is None:
            raise ValueError(
                f"DSS: a softmax kernel depends on the whole length, so {what!r} needs it beforehand; build the layer "
                'with length=..., or use kernel="exp".'
            )
        return self.length or 0

    def _check_position(self, position: Tensor, steps: Tensor) -> None:
        if is_recorded(position) or torch._C._functorch.is_functorch_wrapped_tensor(position):
            return  # values cannot be read while tracing
        if self.length is None and int(position.max()) > 0:
            self._require_length("state")
        end = int((position + steps).max())
        if self.length is not None and end > self.length:
            raise ValueError(
                f"DSS: the softmax kernel was declared for {self.length} steps, got {end} with those in the state; "
                "start from a fresh state, or build the layer with a larger length."
            )


def _bank(parameters: Parameters, option: str, make: Make = join_parts) -> DiagonalBank:
    """The bank of an "exp" kernel, from decay, frequency (n,), log_dt (d, 1 or 2), W (d, n, 2) and D (if any)."""
    decay, im, log_dt, W, *D = wide_all(parameters)
    dt, re = positive(log_dt), -positive(decay)
    lam, z = make(re, im), make(dt[:, :1] * re, dt[:, -1:] * im)
    weight = make(*W.unbind(-1)) * expm1_over(z) * z / lam
    return DiagonalBank(inside(z.exp(), parameters[0].dtype), weight, *D)


def _example() -> Parameters:
    """Slow and fast modes, small and large steps, separate steps for growth and angle."""
    ramp = torch.linspace(-1, 1, 15).view(3, 5)
    steps = torch.tensor([[-6.0, -5.0], [-3.0, -2.0], [0.0, -1.0]])
    return ramp[0], 40 * ramp[1], steps, torch.stack([ramp.cos(), ramp.sin()], -1), torch.tensor([0.5, -1.0, 2.0])


MODES = Modes(Kind.DSS, _bank, _example)


def _softmax_sum(z: Number, L: int | Tensor) -> tuple[Number, Number]:
    """sum_{r<L} e^{r z} / m and the gain 1 / m, m = max_r |e^{r z}| up to a phase: 1, or e^{(L-1) z} where it grows.

    Scaling by the largest term keeps both finite: a growing state is driven weakly and reaches order one at the end.
    """
    grows = z.real > 0
    w = where(grows, -z, z)  # the sum of e^{r w} is that of e^{r z} over its largest term
    total = expm1_over(w.mul(L)).mul(L) / expm1_over(w)
    gain = where(grows, where(grows, z, 0).mul(1 - L).exp(), 1)
    return total, gain


def _reciprocal(x: Number) -> Number:
    """conj(x) / (|x|^2 + 1e-7): close to 1/x unless x is small, and finite everywhere."""
    return x.conj().div(x.real**2 + x.imag**2 + REGULARISER)


def _check_length(kernel: str, length: int | None) -> None:
    if length is None:
        return
    checks.check_positive("DSS", length=length)
    if kernel == "exp":
        raise ValueError(
            f'DSS: length={length} has no meaning for kernel="exp", whose kernels are prefixes; leave it out.'
        )
