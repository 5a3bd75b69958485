"""S5: one diagonal state-space system with multiple inputs and outputs, run by a scan.

Smith, Warrington, Linderman 2023, "Simplified state space layers for sequence modeling":

    x' = Lam x + B u,    y = 2 Re(C x) + D u                                   Lam diagonal, complex, trained
    lam_bar = exp(dt lam),    B_bar = (lam_bar - 1) / lam * B                  zero-order hold, one dt per state

The initial spectrum is that of HiPPO-LegS's normal part, repeated over `blocks` blocks, in its eigenvector basis V:
B = V^-1 B_0 and C = C_0 V with B_0, C_0 drawn as LeCun matrices. init="ptd" is S5-PTD (`init.ptd`): each block starts
as LegS + E = V diag(lam) V^-1 instead, whose V is well conditioned but not unitary.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from resolvent.init import timestep
from resolvent.init.spectra import ptd_modes
from resolvent.layers import checks, mimo
from resolvent.layers.contract import Spec, at_lengths
from resolvent.layers.groups import group_parameters, optim_overrides
from resolvent.ops.modes import Parameters
from resolvent.ops.pairs import Number, complex_of, join_parts, tensor_of
from resolvent.runtime.transforms import is_recorded
from resolvent.scan import linear_scan
from resolvent.ssm.discretise import diagonal_step, undo_step
from resolvent.ssm.hippo import dplr, nplr
from resolvent.ssm.system import System, conjugate_closed
from resolvent.usage.numbers import check_choice

LARGEST_REAL = -1e-4  # upper limit of Re(lam) with `clip`, as published
SHORT_STEP = 1e-3  # dt for `set_modes`: so short that `clip` leaves slow states unchanged
TRUNCATED_STD = 0.8796256610342398  # standard deviation of a normal truncated at two standard deviations


class S5(mimo.Mimo):
    """S5, (b, l, d) -> (b, l, d); the state is complex (b, p), p = d_state / 2 with conjugate halves, else d_state.

    d_state         states of the full system
    blocks          number of copies of the LegS spectrum of size d_state / blocks in the initial one
    conjugate       keep one of each conjugate pair and read 2 Re(C x); False keeps all states and reads Re(C x)
    bidirectional   a second read-out C of the same recurrence run backwards in time (it includes u_t)
    discretisation  "zoh" or "bilinear"
    init            "legs": each block is LegS's normal part; "ptd": LegS with a small perturbation, optimised for block
                    sizes 2, 4, ..., 128 and in closed form for others
    perturbation    of init="ptd": ||E|| / ||A||, say 0.01 to 0.5, of E in closed form; None: the optimised one
    c_init          "lecun": C_0 V; "complex_normal": unit complex normal entries, without V
    dt_min, dt_max  range of the log-uniform initial time steps, one per state
    clip            limit Re(lam) <= -1e-4, so that |lam_bar| < 1 for any parameter value; False does not constrain lam
    lr              learning rate of lam, B and log_step in `optim_groups`; None keeps the optimiser's

    Examples:
        >>> y, state = rv.S5(4, 8)(torch.randn(2, 50, 4))
        >>> y.shape, state.shape
        (torch.Size([2, 50, 4]), torch.Size([2, 4]))
    """

    def __init__(
        self,
        d_model: int,
        d_state: int = 64,
        *,
        blocks: int = 1,
        conjugate: bool = True,
        bidirectional: bool = False,
        discretisation: str = "zoh",
        init: str = "legs",
        c_init: str = "lecun",
        dt_min: float = timestep.DT_MIN,
        dt_max: float = timestep.DT_MAX,
        clip: bool = True,
        perturbation: float | None = None,
        lr: float | None = 1e-3,
        check_finite: bool = False,
    ) -> None:
        super().__init__(d_model, bidirectional=bidirectional, check_finite=check_finite)
        _check_blocks(d_state, blocks, conjugate)
        check_choice("S5", "discretisation", discretisation, ("zoh", "bilinear"))
        check_choice("S5", "init", init, ("legs", "ptd"))
        check_choice("S5", "c_init", c_init, ("lecun", "complex_normal"))
        timestep.check_range("S5", dt_min, dt_max)
        self.d_state, self.conjugate, self.clip, self.lr = d_state, conjugate, clip, lr
        self.discretisation = discretisation
        checks.check_perturbation("S5", init, perturbation)
        size = d_state // blocks
        lam, V, V_inv = _block_spectrum(init, size, conjugate, perturbation)  # (k,), (size, k), (k, size)
        p = blocks * lam.shape[0]
        self.lam = nn.Parameter(_pairs(lam.repeat(blocks)))  # (p, 2)
        self.log_step = nn.Parameter(timestep.log_uniform((p,), dt_min, dt_max))  # (p,)
        self.B = nn.Parameter(_input_matrix(V_inv, blocks, d_model))  # (p, d, 2)
        self.C = nn.Parameter(_output_matrix(V, blocks, d_model, c_init))  # (d, p, 2)
        if bidirectional:
            self.C_back = nn.Parameter(_output_matrix(V, blocks, d_model, c_init))  # (d, p, 2)
        self.D = nn.Parameter(torch.randn(d_model))  # (d,)

    @property
    def scale(self) -> float:
        """The factor of the read-out: 2 if one of each conjugate pair is kept, else 1."""
        return 2.0 if self.conjugate else 1.0

    def discrete(self) -> tuple[Number, Number]:
        """lam_bar (p,) and B_bar (p, d)."""
        return _discrete((self.lam, self.log_step, self.B), self._option)

    @property
    def _option(self) -> str:
        return f"{self.discretisation} clip" if self.clip else self.discretisation

    def system(self) -> System:
        """The layer as one discrete system with d_model inputs and outputs."""
        checks.check_one_direction(self)
        lam_bar, B_bar = self.discrete()
        C = torch.view_as_complex(self.C) * (self.scale / 2)
        return conjugate_closed(lam_bar, B_bar, C, torch.diag(self.D), 1.0)

    @torch.no_grad()
    def set_modes(self, lam_bar: Tensor, B: Tensor, C: Tensor) -> None:
        """Set the discrete system y = 2 Re(C x) from lam_bar (p,), B (p, d), C (d, p); D is unchanged."""
        step = torch.full_like(lam_bar.real, SHORT_STEP)
        lam, gain = undo_step(lam_bar, step, self.discretisation)
        self.log_step.fill_(math.log(SHORT_STEP))
        for parameter, value in ((self.lam, lam), (self.B, B / gain[:, None]), (self.C, C)):
            parameter.copy_(torch.view_as_real(value.resolve_conj()))

    def state_spec(self, batch: int) -> Spec:
        return Spec((batch, self.log_step.shape[0]), self.complex_dtype)

    def optim_groups(self) -> list[dict[str, Any]]:
        """lam, B and log_step without weight decay, at their own learning rate; the rest by default."""
        return group_parameters(self, optim_overrides(("lam", "B", "log_step"), self.lr))

    def _tables_now(self) -> mimo.Tables:
        return TABLES.tables((self.lam, self.log_step, self.B, self.C), self.D, self._option, self.scale)

    def _back_table(self) -> Tensor:
        return self.cached("back", lambda: mimo.output_table(self.C_back, self.scale))

    def _uneven(self, x: Tensor, dt: Tensor, state: Tensor | None, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        held = _hold(self.lam, timestep.positive(self.log_step) * dt[..., None], self._option)
        lam_bar, gain = tensor_of(held[0]), tensor_of(held[1])  # (b, l, p)
        driven = linear(x, mimo.input_table(torch.view_as_complex(self.B)))  # (b, l, 2p)
        h = linear_scan(lam_bar, gain * torch.view_as_complex(driven.unflatten(-1, (-1, 2))), state)
        y = linear(torch.view_as_real(h).flatten(-2), mimo.output_table(self.C, self.scale))
        return torch.addcmul(y, self.D, x), at_lengths(h, lengths).clone()


def _discrete(parameters: Parameters, option: str) -> tuple[Number, Number]:
    """lam_bar (p,) and B_bar (p, d) from lam (p, 2), log_step (p,) and B (p, d, 2)."""
    lam, log_step, B = parameters
    lam_bar, gain = _hold(lam, timestep.positive(log_step), option)
    return lam_bar, gain[:, None] * complex_of(B)


def _hold(pairs: Tensor, step: Tensor, option: str) -> tuple[Number, Number]:
    """lam_bar and the gain of the input for steps (..., p)."""
    method, *clip = option.split()
    re, im = pairs.unbind(-1)
    lam = join_parts(re.clamp_max(LARGEST_REAL) if clip else re, im)
    lam_bar, gain = diagonal_step(lam, step, method)
    return mimo.inside_disc(lam_bar) if clip else lam_bar, gain


TABLES = mimo.TableMaker("s5_tables", _discrete, ((3, 2), (3,)), ("zoh clip", "bilinear"))


def _check_blocks(d_state: int, blocks: int, conjugate: bool) -> None:
    checks.check_positive("S5", d_state=d_state, blocks=blocks)
    if d_state % blocks:
        nearest = math.gcd(d_state, blocks)
        raise ValueError(f"S5: expected blocks to divide d_state={d_state}, got {blocks}; use for example {nearest}.")
    if conjugate and (d_state // blocks) % 2:
        raise ValueError(
            f"S5: expected d_state / blocks to be even because one of each conjugate pair is kept, got "
            f"{d_state} / {blocks} = {d_state // blocks}; change d_state or blocks, or set conjugate=False."
        )


def _block_spectrum(init: str, size: int, conjugate: bool, perturbation: float | None) -> tuple[Tensor, Tensor, Tensor]:
    """Eigenvalues (k,), eigenvectors (size, k) and rows of their inverse (k, size) of one block, on the default device.

    k = size / 2 if one of each conjugate pair is kept.
    """
    if init == "ptd":
        lam, V, V_inv = ptd_modes(size, perturbation, conjugate)
    else:
        lam, V = _normal_spectrum(init, size, conjugate)
        V_inv = V.mH
    device = torch.get_default_device()
    return lam.to(device), V.to(device), V_inv.to(device)


def _normal_spectrum(init: str, size: int, conjugate: bool) -> tuple[Tensor, Tensor]:
    if size % 2 == 0:
        lam, _, _, V = dplr(init, size, halves=conjugate)
        return lam, V
    A, _, P = nplr(init, size)  # an odd size has one real eigenvalue, which belongs to no conjugate pair
    normal = A + P @ P.mT
    omega, V = torch.linalg.eigh(-0.5j * (normal - normal.mT))
    return torch.complex(normal.diagonal(), omega), V


def _input_matrix(V_inv: Tensor, blocks: int, d: int) -> Tensor:
    """B = V^-1 B_0 as real pairs (p, d, 2); B_0 has variance 1 / d_state, the fan-in of the published code."""
    size = V_inv.shape[1]
    B_0 = _lecun((blocks, size, d), blocks * size)
    return _pairs((V_inv @ B_0.to(V_inv.dtype)).flatten(0, 1))


def _output_matrix(V: Tensor, blocks: int, d: int, c_init: str) -> Tensor:
    """C as real pairs (d, p, 2): C_0 V with complex C_0, both parts of variance 1 / d_state, or standard normal."""
    size, k = V.shape
    if c_init == "complex_normal":
        return torch.randn(d, blocks * k, 2) * math.sqrt(0.5)
    C_0 = torch.complex(*_lecun((2, d, blocks, size), blocks * size))
    return _pairs((C_0 @ V).flatten(1))


def _lecun(shape: tuple[int, ...], fan_in: int) -> Tensor:
    """Normal entries of variance 1 / fan_in, truncated at two standard deviations, in float64."""
    std = 1 / (TRUNCATED_STD * math.sqrt(fan_in))
    empty = torch.empty(shape, dtype=torch.float64, device=torch.get_default_device())
    return empty if is_recorded(empty) else nn.init.trunc_normal_(empty, std=std, a=-2 * std, b=2 * std)


def _pairs(z: Tensor) -> Tensor:
    """A complex tensor as real pairs in the default dtype."""
    return torch.view_as_real(z).to(torch.get_default_dtype()).contiguous()
