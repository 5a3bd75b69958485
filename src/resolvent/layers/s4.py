"""S4: d independent state-space systems whose matrix is diagonal minus low rank (DPLR), one system per channel.

Gu, Goel, Ré 2022, "Efficiently modeling long sequences with structured state spaces", with A = diag(lam) - P P^* as in
Goel et al. 2022 ("It's raw!"), which stays in the stable half-plane:

    x' = A x + B u,    y = 2 Re(C x) + D u                             one of each conjugate pair is kept
    A_bar = (I - dt/2 A)^-1 (I + dt/2 A),  B_bar = (I - dt/2 A)^-1 dt B     bilinear, in closed form by Woodbury

Re(lam) = -exp(log_decay), so A is dissipative and A_bar a contraction for any value of the parameters.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from resolvent.init import timestep
from resolvent.layers import checks, siso
from resolvent.layers.contract import Layer, Spec
from resolvent.layers.groups import group_parameters, optim_overrides
from resolvent.ops.blocked import DenseBank, deinterleave, dense_blocks, reals
from resolvent.ops.modes import DenseSource, Opaque, Parameters, flat_blocks
from resolvent.ops.pairs import Make, complex_of, join_parts, tensor_of
from resolvent.runtime.transforms import wide, wide_all
from resolvent.ssm import half_dplr
from resolvent.ssm.half_dplr import HalfDPLR
from resolvent.ssm.hippo import NAMES, dplr
from resolvent.ssm.system import DPLR, Dense, System
from resolvent.usage.numbers import check_choice

LEAST_DECAY = 1e-4  # legt, lagt and fout have Re(lam) = 0, whose logarithm could not be trained
EXTRA_COLUMN = 1e-2  # size of low-rank columns beyond the HiPPO matrix's own: at zero they would have no gradient


class S4(Layer):
    """S4, (b, l, d) -> (b, l, d); the state is complex (b, d, d_state / 2).

    d_state         states of the full system of one channel (both members of each conjugate pair counted)
    init            the HiPPO matrix to start from: "legs", "legt" (needs rank=2), "lagt" or "fout"
    rank            columns of P
    n_ssm           how many different (A, B) the channels share in equal groups: 1, d_model, or a divisor of d_model
    discretisation  "bilinear", or "zoh" by a matrix exponential (slower, and only for moderate dt A: only the bilinear
                    rule guarantees a contraction for any parameter value)
    dt_min, dt_max  range of the log-uniform initial time steps, one per channel
    bidirectional   a second read-out C_back of the same recurrence run backwards in time. It sees only the strict
                    future: u_t enters through the forward direction alone
    lr              learning rate of A, B and dt in `optim_groups`; None keeps the optimiser's

    Examples:
        >>> layer = rv.S4(4, 8)
        >>> y, state = layer(torch.randn(2, 50, 4))
        >>> y_t, state = layer.step(torch.randn(2, 4), state)
        >>> y.shape, y_t.shape, state.shape
        (torch.Size([2, 50, 4]), torch.Size([2, 4]), torch.Size([2, 4, 4]))
    """

    starts_from_none = True

    def __init__(
        self,
        d_model: int,
        d_state: int = 64,
        *,
        init: str = "legs",
        rank: int = 1,
        n_ssm: int = 1,
        discretisation: str = "bilinear",
        dt_min: float = timestep.DT_MIN,
        dt_max: float = timestep.DT_MAX,
        bidirectional: bool = False,
        lr: float | None = 1e-3,
        check_finite: bool = False,
    ) -> None:
        super().__init__(d_model, bidirectional=bidirectional, check_finite=check_finite)
        checks.check_even("S4", d_state)
        check_choice("S4", "init", init, NAMES)
        check_choice("S4", "discretisation", discretisation, ("bilinear", "zoh"))
        timestep.check_range("S4", dt_min, dt_max)
        _check_sharing(d_model, n_ssm)
        self.d_state, self.n, self.lr = d_state, d_state // 2, lr
        self.init, self.rank, self.n_ssm, self.discretisation = init, rank, n_ssm, discretisation
        lam, P, B, _ = dplr(init, d_state)  # (n,), (n, r), (n,)
        self.log_decay = siso.pairs(torch.log((-lam.real).clamp(min=LEAST_DECAY)).repeat(n_ssm, 1))  # (n_ssm, n)
        self.frequency = siso.pairs(lam.imag.repeat(n_ssm, 1))  # (n_ssm, n)
        self.P = siso.pairs(_widen(P, rank).repeat(n_ssm, 1, 1))  # (n_ssm, n, rank, 2)
        self.B = siso.pairs(B.repeat(n_ssm, 1))  # (n_ssm, n, 2)
        self.log_dt = nn.Parameter(timestep.log_uniform((d_model,), dt_min, dt_max))  # (d,)
        self.C = siso.pairs(siso.complex_normal(d_model, self.n))  # (d, n, 2)
        self.C_back = siso.pairs(siso.complex_normal(d_model, self.n)) if bidirectional else None
        self.D = nn.Parameter(torch.randn(d_model))  # (d,)

    def state_spec(self, batch: int) -> Spec:
        return Spec((batch, self.d_model, self.n), self.complex_dtype)

    def system(self) -> System:
        """The discrete systems of all channels as a bank (d,): DPLR over both conjugate halves, or dense for "zoh"."""
        checks.check_one_direction(self)
        D, dt = self.D[:, None, None], timestep.positive(self.log_dt)
        if self.discretisation == "zoh":
            bank = self._bank()
            A, B, C = (t.to(self.dtype) for t in (bank.A, bank.B[..., None], bank.C[:, None]))
            return System(Dense(A), B, C, D, dt)
        half, C = self._half(), complex_of(wide(self.C))[:, None]
        lam, P, Q, B = (
            _close_conjugates(t).to(self.complex_dtype)
            for t in (half.lam_bar[..., None], half.U, half.Q, half.B_bar[..., None])
        )
        both = torch.cat([C, C.conj()], -1).to(self.complex_dtype)
        return System(DPLR(lam[..., 0], P, Q), B, both, D.to(self.complex_dtype), dt)

    def optim_groups(self) -> list[dict[str, Any]]:
        return group_parameters(self, optim_overrides(("log_decay", "frequency", "P", "B", "log_dt"), self.lr))

    def _sequence(self, x: Tensor, state: Tensor | None, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        return siso.sequence(self, self._source(self.C, self.D), x, state, lengths)

    def _backward_sequence(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        assert self.C_back is not None
        return siso.backward_sequence(self, self._source(self.C_back), x, delay=True)

    def _step(self, x_t: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        if self.discretisation == "zoh":
            return self._dense_step(x_t, state)
        lam, U, row, B, C = self.cached("step", self._step_tables)
        x = lam * state + B * x_t[..., None]
        for column, read in zip(U, row, strict=True):  # (d, n), (d, 2n), one of each per rank
            x = x - column * (reals(state) * read).sum(-1, keepdim=True)
        return torch.addcmul((reals(x) * C).sum(-1), self.D, x_t), x

    def _dense_step(self, x_t: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        A, B, C = self.cached("step", lambda: [t.to(self.dtype) for t in self._real_tables()])
        x = torch.einsum("dij,bdj->bdi", A, reals(state)) + B * x_t[..., None]
        return torch.addcmul((x * C).sum(-1), self.D, x_t), deinterleave(x)

    def _step_tables(self) -> tuple[Tensor, ...]:
        half = self._half()
        lam, U, Q, B = (tensor_of(t) for t in (half.lam_bar, half.U, half.Q, half.B_bar))
        row = 2 * reals(Q.movedim(-1, 0).contiguous())  # (r, d, 2n): 2 Re(Q^* x)
        C = reals(complex_of(wide(self.C)).conj() * 2)
        return (
            lam.to(self.complex_dtype),
            U.movedim(-1, 0).to(self.complex_dtype).contiguous(),  # (r, d, n)
            row.to(self.dtype),
            B.to(self.complex_dtype),
            C.to(self.dtype),
        )

    def _real_tables(self) -> tuple[Tensor, Tensor, Tensor]:
        bank = self._bank()
        return bank.A, bank.B, bank.C

    def _half(self) -> HalfDPLR:
        return half_dplr.discrete(half_dplr.continuous(wide_all(self._own())), self.dtype)

    def _bank(self, length: int = 0, make: Make = join_parts, back: bool = False) -> DenseBank:
        read = [self.C_back] if back and self.C_back is not None else [self.C, self.D]
        return half_dplr.dense_bank([*self._own(), *read], self.discretisation, make)

    def _source(self, C: Tensor, D: Tensor | None = None) -> DenseSource:
        own = [*self._own(), C, *([] if D is None else [D])]
        return DenseSource(TABLES, own, self.discretisation, half_dplr.dense_bank, fused=("bilinear",))

    def _own(self) -> list[Tensor]:
        return [self.log_decay, self.frequency, self.P, self.B, self.log_dt]


def _tables(parameters: Parameters, discretisation: str, T: int, delay: bool) -> list[Tensor]:
    return flat_blocks(dense_blocks(half_dplr.dense_bank(parameters, discretisation), T, parameters[0].dtype, delay))


def _shapes(parameters: Parameters, discretisation: str, T: int, delay: bool) -> list[tuple[int, ...]]:
    d, s = parameters[4].shape[0], 2 * parameters[5].shape[1]
    return [(d, T, T), (d, T, s), (d, T, s), *[(d, s, s)] * (T.bit_length() + 1)]


TABLES = Opaque("s4_tables", _tables, _shapes, is_large=True)


def _close_conjugates(half: Tensor) -> Tensor:
    """Both members of each conjugate pair: (d, n, r) -> (d, 2n, r)."""
    return torch.cat([half, half.conj()], 1)


def _widen(P: Tensor, rank: int) -> Tensor:
    """P (n, r) padded with small random columns up to `rank`."""
    checks.check_positive("S4", rank=rank)
    n, own = P.shape
    if rank < own:
        raise ValueError(f"S4: this HiPPO matrix has a low-rank part of rank {own}, got rank={rank}; use rank={own}.")
    return torch.cat([P.to(torch.get_default_device()), EXTRA_COLUMN * siso.complex_normal(n, rank - own)], 1)


def _check_sharing(d_model: int, n_ssm: int) -> None:
    checks.check_positive("S4", n_ssm=n_ssm)
    if d_model % n_ssm:
        raise ValueError(f"S4: expected n_ssm to divide d_model={d_model}, got {n_ssm}; use 1 or {d_model}.")
