"""The norms of a selective SSM while it trains: Table 3 of Honarpisheh et al. 2025, under correct and printed names.

    tracker = NormTracker(lambda model: SelectiveTensors(layer.W_B, layer.W_C, layer.A, layer.p, layer.q, u=table))
    fit(model, task, tracker.watching(standard), settings, final=tracker)
    tracker.rows                                   # one dict for each measurement

The paper logs the Frobenius norm as "||W_B||_2"; both are kept: `W_B_frobenius` is the printed column, `W_B_spectral`
the norm used in the bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from resolvent.ssm.contraction import spectral_norm
from resolvent.usage.numbers import check_count

if TYPE_CHECKING:
    from resolvent.training import Batch, Loss, Objective

PRINTED = {
    "s_A": "s_A", "p": "|p|", "q": "||q||_2", "W_B_frobenius": "||W_B||_2", "W_B_one": "||W_B||_{1,1}",
    "W_C_frobenius": "||W_C||_2", "W_C_one": "||W_C||_{1,1}", "A": "||A_c||_2", "B_u": "max ||u[t]||_2",
    "loss": "Loss",
}  # fmt: skip
"""Our names -> the column heads of Table 3."""


@dataclass(frozen=True, eq=False)
class SelectiveTensors:
    """One selective layer: W_B, W_C (n, d), A (d, n), p, q (d,), and u (..., d), the embedding or the data.

    Examples:
        >>> W = torch.randn(4, 2)
        >>> rv.analysis.SelectiveTensors(W, W, -torch.ones(2, 4), torch.zeros(2), torch.zeros(2)).A.shape
        torch.Size([2, 4])
    """

    W_B: Tensor
    W_C: Tensor
    A: Tensor
    p: Tensor
    q: Tensor
    u: Tensor | None = None


def norm_row(found: SelectiveTensors) -> dict[str, float]:
    """One line of Table 3, plus the spectral norms."""
    W_B, W_C, A, p, q = (t.detach().double() for t in (found.W_B, found.W_C, found.A, found.p, found.q))
    row = {"s_A": float(A.max()), "p": float(p.abs().max()), "q": float(q.norm())}
    for name, W in {"W_B": W_B, "W_C": W_C}.items():
        row[f"{name}_frobenius"] = float(W.norm())
        row[f"{name}_spectral"] = spectral_norm(W) if bool(torch.isfinite(W).all()) else math.nan
        row[f"{name}_one"] = float(W.abs().sum())
    row["A"] = float(A.abs().max())
    if found.u is not None:
        row["B_u"] = float(torch.linalg.vector_norm(found.u.detach().double(), dim=-1).max())
    return row


class NormTracker:
    """`find(model)` returns the tensors; a row is recorded every `every` training steps, before the step is made.

    Called with a model it returns the row itself, as `fit(final=...)` requires. Steps are counted from the tracker's
    creation: a resumed run starts a new count.

    Examples:
        >>> rv.analysis.NormTracker(find=lambda model: None, every=10).every
        10
    """

    __name__ = "NormTracker"  # its name in a run's configuration

    def __init__(self, find: Callable[[nn.Module], SelectiveTensors], every: int = 1) -> None:
        check_count("NormTracker", 1, every=every)
        self.find = find
        self.every = every
        self.rows: list[dict[str, float]] = []
        self._step = 0

    def __call__(self, model: nn.Module) -> dict[str, float]:
        return norm_row(self.find(model))

    def watching(self, objective: Objective) -> Watched:
        """The same objective, recording rows."""
        return Watched(objective, self)

    def see(self, model: nn.Module, loss: Tensor) -> None:
        if self._step % self.every == 0:
            self.rows.append({"step": self._step, **self(model), "loss": float(loss.detach())})
        self._step += 1

    def table(self) -> list[dict[str, float]]:
        """The rows under the column heads of Table 3."""
        return [{"step": r["step"], **{PRINTED[k]: v for k, v in r.items() if k in PRINTED}} for r in self.rows]


@dataclass(frozen=True)
class Watched:
    """An objective that notifies a tracker of each call."""

    objective: Objective
    tracker: NormTracker

    @property
    def inner(self) -> Any:
        """The inner attack of an adversarial objective: `fit` reads its threat from here."""
        return getattr(self.objective, "inner", None)

    def __call__(self, model: nn.Module, batch: Batch) -> Loss:
        loss = self.objective(model, batch)
        self.tracker.see(model, loss.value)
        return loss
