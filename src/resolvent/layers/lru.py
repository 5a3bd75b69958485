"""LRU: the linear recurrent unit, a diagonal complex recurrence with multiple inputs and outputs.

Orvieto et al. 2023, "Resurrecting recurrent neural networks for long sequences", section 3:

    lam = exp(-exp(nu_log) + i exp(theta_log))
    h_k = lam h_{k-1} + exp(gamma_log) * (B u_k),    y_k = Re(C h_k) + D u_k

d_state counts complex states and the read-out has no factor 2: both as published. gamma starts at sqrt(1 - |lam|^2)
and is trained from there as a free parameter.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from resolvent.init.ring import check_ring, normaliser, ring
from resolvent.layers import checks, mimo
from resolvent.layers.contract import Spec
from resolvent.layers.groups import group_parameters, optim_overrides
from resolvent.ops.modes import Parameters
from resolvent.ops.pairs import Number, complex_of, join_parts
from resolvent.ssm.system import System, conjugate_closed

LOG_LIMIT = 20.0  # exp(20) = 5e8: beyond it |lam| is 0 and the phase is meaningless; exp would overflow to NaN


class LRU(mimo.Mimo):
    """Linear recurrent unit, (b, l, d) -> (b, l, d); the state is complex (b, d_state).

    d_state           complex states
    r_min, r_max      ring on which the eigenvalues are drawn, uniform in area
    max_phase         largest angle drawn, in radians; small for very long sequences (pi / 10 for Path-X)
    bidirectional     a second read-out C of the same recurrence run backwards in time (it includes u_t)
    lr                learning rate of nu, theta, gamma and B in `optim_groups`; None keeps the optimiser's. The
                      published recipe uses half of a base rate of 1e-3.

    Examples:
        >>> y, state = rv.LRU(4, 8)(torch.randn(2, 50, 4))
        >>> y.shape, state.shape
        (torch.Size([2, 50, 4]), torch.Size([2, 8]))
    """

    def __init__(
        self,
        d_model: int,
        d_state: int = 64,
        *,
        r_min: float = 0.0,
        r_max: float = 1.0,
        max_phase: float = 2 * math.pi,
        bidirectional: bool = False,
        lr: float | None = 5e-4,
        check_finite: bool = False,
    ) -> None:
        super().__init__(d_model, bidirectional=bidirectional, check_finite=check_finite)
        checks.check_positive("LRU", d_state=d_state)
        check_ring("LRU", r_min, r_max, max_phase)
        self.d_state = d_state
        self.lr = lr
        nu_log, theta_log = ring(d_state, r_min, r_max, max_phase)
        self.nu_log = nn.Parameter(nu_log)  # (n,)
        self.theta_log = nn.Parameter(theta_log)  # (n,)
        self.gamma_log = nn.Parameter(normaliser(nu_log))  # (n,)
        self.B = nn.Parameter(torch.randn(d_state, d_model, 2) / math.sqrt(2 * d_model))
        self.C = nn.Parameter(torch.randn(d_model, d_state, 2) / math.sqrt(d_state))
        if bidirectional:
            self.C_back = nn.Parameter(torch.randn(d_model, d_state, 2) / math.sqrt(d_state))
        self.D = nn.Parameter(torch.randn(d_model))  # (d,)

    def discrete(self) -> tuple[Number, Number]:
        """lam (n,), inside the unit disc for any parameter value, and the normalised input matrix (n, d)."""
        return _discrete((self.nu_log, self.theta_log, self.gamma_log, self.B))

    def system(self) -> System:
        """The layer as one discrete system with d_model inputs and outputs."""
        checks.check_one_direction(self)
        lam, B_bar = self.discrete()
        return conjugate_closed(lam, B_bar, torch.view_as_complex(self.C) / 2, torch.diag(self.D), 1.0)

    def state_spec(self, batch: int) -> Spec:
        return Spec((batch, self.d_state), self.complex_dtype)

    def optim_groups(self) -> list[dict[str, Any]]:
        """nu, theta, gamma and B without weight decay, at their own learning rate; the rest by default."""
        return group_parameters(self, optim_overrides(("nu_log", "theta_log", "gamma_log", "B"), self.lr))

    def _tables_now(self) -> mimo.Tables:
        return TABLES.tables((self.nu_log, self.theta_log, self.gamma_log, self.B, self.C), self.D, "", 1.0)

    def _back_table(self) -> Tensor:
        return self.cached("back", lambda: mimo.output_table(self.C_back))


def _discrete(parameters: Parameters, option: str = "") -> tuple[Number, Number]:
    *logs, B = parameters
    nu, theta, gamma = (log.clamp_max(LOG_LIMIT).exp() for log in logs)
    return mimo.inside_disc(join_parts(-nu, theta).exp()), complex_of(B).mul(gamma[:, None])


TABLES = mimo.TableMaker("lru_tables", _discrete, ((3,), (3,), (3,)), ("",))
