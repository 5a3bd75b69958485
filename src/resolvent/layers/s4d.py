"""S4D: d independent diagonal state-space systems, one per channel.

Gu, Gupta, Goel, Ré 2022, "On the parameterization and initialization of diagonal state space models":

    x' = diag(lam) x + B u,    y = 2 Re(C x) + D u                     one of each conjugate pair is kept
    lam_bar = exp(dt lam),     B_bar = (lam_bar - 1) / lam * B         zero-order hold; bilinear as an option
    K_l = 2 Re sum_n C_n B_bar_n lam_bar_n^l                           the kernel; never materialised in full

Re(lam) = -exp(log_decay), so |lam_bar| < 1 for any value of the parameters.

init="ptd" is S4-PTD (`init.ptd`): lam from LegS + E = V diag(lam) V^-1, B = V^-1 B_hippo and C = C_0 V, so that the
first model is (LegS + E, B_hippo, C_0) itself, without the spikes that dropping LegS's low-rank term brings.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from resolvent.init import timestep
from resolvent.init.spectra import SPECTRA, ptd, ptd_modes
from resolvent.layers import checks, siso
from resolvent.layers.contract import Layer, Spec, at_lengths
from resolvent.layers.groups import group_parameters, optim_overrides
from resolvent.ops.blocked import DiagonalBank, inside
from resolvent.ops.modes import Kind, Modes, Parameters, Source
from resolvent.ops.pairs import Make, Number, complex_of, join_parts, tensor_of
from resolvent.ops.step import Step
from resolvent.runtime.transforms import wide, wide_all
from resolvent.scan import linear_scan
from resolvent.ssm.discretise import diagonal_step, positive, undo_step
from resolvent.ssm.system import Diagonal, System, conjugate_closed
from resolvent.usage.numbers import check_choice


class S4D(Layer):
    """S4D, (b, l, d) -> (b, l, d); the state is complex (b, d, d_state / 2), or real (b, d, d_state) for init="real".

    The state is stored per unit of input: the paper's x is B_bar times it. This saves a product per step.

    d_state         states of the full system of one channel (both members of each conjugate pair counted)
    init            initial values: "legs", "lin", "inv", "ptd" (perturbed LegS; optimised for d_state = 2, 4, ..., 128
                    and in closed form for others), or "real", which keeps real states and reads y = C x + D u
    perturbation    of init="ptd": ||E|| / ||A||, say 0.01 to 0.5, of E in closed form; None: the optimised one
    skip            False omits D u
    discretisation  "zoh" or "bilinear"
    dt_min, dt_max  range of the log-uniform initial time steps, one per channel
    bidirectional   a second read-out C_back of the same recurrence run backwards in time. It sees only the strict
                    future: u_t enters through the forward direction alone
    lr              learning rate of lam, B and dt in `optim_groups`; None keeps the optimiser's

    Examples:
        >>> layer = rv.S4D(4, 8, init="ptd")
        >>> y, state = layer(torch.randn(2, 50, 4))
        >>> y.shape, state.shape
        (torch.Size([2, 50, 4]), torch.Size([2, 4, 4]))
    """

    starts_from_none = True

    def __init__(
        self,
        d_model: int,
        d_state: int = 64,
        *,
        init: str = "legs",
        discretisation: str = "zoh",
        dt_min: float = timestep.DT_MIN,
        dt_max: float = timestep.DT_MAX,
        bidirectional: bool = False,
        skip: bool = True,
        perturbation: float | None = None,
        lr: float | None = 1e-3,
        check_finite: bool = False,
    ) -> None:
        super().__init__(d_model, bidirectional=bidirectional, check_finite=check_finite)
        check_choice("S4D", "init", init, tuple(SPECTRA))
        check_choice("S4D", "discretisation", discretisation, ("zoh", "bilinear"))
        (checks.check_positive if init == "real" else checks.check_even)("S4D", d_state=d_state)
        timestep.check_range("S4D", dt_min, dt_max)
        checks.check_perturbation("S4D", init, perturbation)
        self.d_state, self.init, self.discretisation, self.lr = d_state, init, discretisation, lr
        self.perturbation = perturbation
        spectrum = SPECTRA[init](d_state) if perturbation is None else ptd(d_state, perturbation)
        lam, B = (t.expand(d_model, -1) for t in spectrum)  # (d, n)
        self.n = lam.shape[-1]
        self.log_decay = siso.pairs(torch.log(-lam.real))  # (d, n), log(-Re lam)
        self.frequency = siso.pairs(lam.imag) if lam.is_complex() else None  # (d, n), Im lam
        self.log_dt = nn.Parameter(timestep.log_uniform((d_model,), dt_min, dt_max))  # (d,)
        self.B = siso.pairs(B)  # (d, n, 2) or (d, n)
        self.C = self._read_out()  # the same
        self.C_back = self._read_out() if bidirectional else None
        self.D = nn.Parameter(torch.randn(d_model)) if skip else None  # (d,)

    def state_spec(self, batch: int) -> Spec:
        return Spec((batch, self.d_model, self.n), self.dtype if self.frequency is None else self.complex_dtype)

    def system(self) -> System:
        """The discrete systems of all channels as a bank (d,), with both members of each conjugate pair."""
        checks.check_one_direction(self)
        lam_bar, B_bar, dt = self._discrete()
        own = self.dtype if self.frequency is None else self.complex_dtype
        lam_bar, B_bar, C = (t.to(own) for t in (lam_bar, B_bar[..., None], self._complex(self.C)[:, None]))
        D = torch.zeros_like(self.log_dt) if self.D is None else self.D
        D, step = D[:, None, None], dt[:, 0].to(self.dtype)
        if self.frequency is None:
            return System(Diagonal(lam_bar), B_bar, C, D, step)
        return conjugate_closed(lam_bar, B_bar, C, D, step)

    @torch.no_grad()
    def set_modes(self, lam_bar: Tensor, B: Tensor, C: Tensor) -> None:
        """Set discrete systems y = 2 Re(C x): lam_bar (d, n), B (d, n, 1), C (d, 1, n); dt and D are unchanged."""
        assert self.frequency is not None
        lam, gain = undo_step(lam_bar, torch.exp(self.log_dt.double())[:, None], self.discretisation)
        self.log_decay.copy_(torch.log((-lam.real).clamp_min(1e-12)))
        self.frequency.copy_(lam.imag)
        self.B.copy_(torch.view_as_real((1 / gain).resolve_conj()))  # makes B_bar 1
        self.C.copy_(torch.view_as_real((C[:, 0] * B[..., 0]).resolve_conj()))

    def optim_groups(self) -> list[dict[str, Any]]:
        return group_parameters(self, optim_overrides(("log_decay", "frequency", "B", "log_dt"), self.lr))

    def _sequence(self, x: Tensor, state: Tensor | None, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        return siso.sequence(self, self._source(self.C, self.D), x, state, lengths)

    def _uneven(self, x: Tensor, dt: Tensor, state: Tensor | None, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        """h_k = lam_bar_k h_{k-1} + (gain_k / gain) u_k: the state is per unit of input of a regular step."""
        lam, own = self._continuous()
        lam = tensor_of(lam)
        _, gain = diagonal_step(lam, own, self.discretisation)
        lam_bar, gain_k = diagonal_step(lam, own * wide(dt)[:, None, :, None].transpose(1, 2), self.discretisation)
        a, scale = (t.transpose(1, 2) for t in (inside(lam_bar, self.dtype), gain_k / gain))  # (b, d, l, n)
        kind = self.dtype if self.frequency is None else self.complex_dtype
        u = scale * wide(x).transpose(1, 2)[..., None]  # (b, d, l, n)
        h = linear_scan(a.to(kind), u.to(kind), state)
        weight = tensor_of(self._weight(self.C, self._discrete()[1])).to(kind)  # (d, n)
        y = (h * weight[:, None]).sum(-1).real.transpose(1, 2)  # (b, l, d)
        y = y if self.D is None else torch.addcmul(y, self.D, x)
        return y, at_lengths(h.transpose(1, 2), lengths).clone()

    def _backward_sequence(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        return siso.backward_sequence(self, self._source(self.C_back), x, delay=True)

    def _step(self, x_t: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return siso.step(self, self._source(self.C, self.D), x_t, state)

    def _stepper(self) -> Step | None:
        return siso.stepper(self, self._source(self.C, self.D))

    def _discrete(self) -> tuple[Number, Number, Tensor]:
        """lam_bar (d, n), B_bar (d, n) and dt (d, 1)."""
        lam, dt = self._continuous()
        lam_bar, gain = diagonal_step(lam, dt, self.discretisation)
        return inside(lam_bar, self.dtype), gain * self._complex(self.B), dt

    def _continuous(self) -> tuple[Number, Tensor]:
        """lam (d, n) and dt (d, 1)."""
        lam = -positive(wide(self.log_decay))
        lam = lam if self.frequency is None else join_parts(lam, wide(self.frequency))
        return lam, positive(wide(self.log_dt))[:, None]

    def _source(self, C: Tensor | None, D: Tensor | None = None) -> Source:
        given = self.log_decay, self.frequency, self.log_dt, self.B, C, D
        option = self.discretisation if self.frequency is not None else f"{self.discretisation} real"
        return Source(MODES, [p for p in given if p is not None], option)

    def _bank(self, length: int = 0, make: Make = join_parts, back: bool = False) -> DiagonalBank:
        return (self._source(self.C_back) if back else self._source(self.C, self.D))(make)

    def _weight(self, C: Tensor | None, B_bar: Number) -> Number:
        """The coefficients that read y from the state per unit of input."""
        assert C is not None
        return self._complex(C) * B_bar * (1 if self.frequency is None else 2)

    def _complex(self, p: Tensor) -> Number:
        return wide(p) if self.frequency is None else complex_of(wide(p))

    def _read_out(self) -> nn.Parameter:
        if self.init == "ptd":
            return siso.in_basis(ptd_modes(self.d_state, self.perturbation)[1], self.d_model)
        shape = (self.d_model, self.n)
        return siso.pairs(torch.randn(shape) if self.frequency is None else siso.complex_normal(*shape))


def _bank(parameters: Parameters, option: str, make: Make = join_parts) -> DiagonalBank:
    """From log_decay, frequency (complex banks only), log_dt, B, C and D (if any)."""
    method, *real = option.split()
    log_decay, *rest = wide_all(parameters)
    frequency = None if real else rest.pop(0)
    log_dt, *given = rest
    B, C = given[:2] if real else (make(*given[0].unbind(-1)), make(*given[1].unbind(-1)))
    decay, dt = positive(log_decay), positive(log_dt)[:, None]
    lam_bar, gain = diagonal_step(-decay if frequency is None else make(-decay, frequency), dt, method)
    weight = C * (gain * B) * (1 if real else 2)
    return DiagonalBank(inside(lam_bar, parameters[0].dtype), weight, *given[2:])


def _example() -> Parameters:
    """Slow and fast modes, small and large steps."""
    ramp = torch.linspace(-1, 1, 15).view(3, 5)
    pairs = torch.stack([ramp.cos(), ramp.sin()], -1)
    return 2 * ramp, 40 * ramp, torch.tensor([-6.0, -3.0, 0.0]), pairs, pairs.flip(1), torch.tensor([0.5, -1.0, 2.0])


MODES = Modes(Kind.S4D, _bank, _example, ("zoh",))
