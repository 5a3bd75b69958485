"""The quantities of a model and its data in the generalisation bound of selective SSMs (Assumptions 3.1, 3.2 and 3.4).

    x[t] = exp(dt[t] A) x[t-1] + dt[t] (W_B u[t]) u[t],    dt[t] = softplus(p + q . u[t])
    y[t] = (W_C u[t]) . x[t],    z = w . y[T]

A is diagonal and real, one row per channel, so that exp(s_A t) is exactly the norm of exp(t A) and eta may be 0.
The bound holds for a class of models: norms read after training describe the smallest class containing this model,
and are a guarantee only for classes fixed beforehand.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from resolvent.ssm.contraction import spectral_norm
from resolvent.usage.numbers import check_count

ROUNDING = 1e-6  # how far a sample's norm may exceed B_u, relative: what float32 makes of a norm computed elsewhere


@dataclass(frozen=True)
class SelectiveNorms:
    """Bounds on one selective SSM. M_* are the 1-norms that its covers depend on; None stands for the paper's M = B.

    B_u  of ||u[t]||_2                    B_w, B_q  of ||w||_2, ||q||_2
    B_B, B_C  of ||W_B||_2, ||W_C||_2     spectral norms
    B_A  of ||A||_2 = max |a|             s_A  the spectral abscissa max a; p the bias itself
    M_B, M_C  of ||W||_{1,1} = sum |w|    M_w, M_q  of ||.||_1;  M_A  of ||A||_{2,1} = sum |a|

    Examples:
        >>> n, d = 4, 2
        >>> W, A = torch.randn(n, d), -torch.ones(d, n)
        >>> norms = rv.analysis.selective_norms(W, W, A, 0.0, torch.randn(d), torch.randn(d), 1.0, T=10)
        >>> norms.N, norms.d, norms.T
        (4, 2, 10)
    """

    B_u: float
    B_w: float
    B_B: float
    B_C: float
    B_A: float
    B_q: float
    p: float
    s_A: float
    N: int  # states of one channel
    d: int  # channels
    T: int  # steps
    eta: float = 0.0  # 0 is right for a diagonal A
    M_B: float | None = None
    M_C: float | None = None
    M_w: float | None = None
    M_q: float | None = None
    M_A: float | None = None

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if f.name in ("N", "d", "T"):
                check_count("SelectiveNorms", 1, **{f.name: value})
            elif value is not None:
                _check_number(f.name, value, signed=f.name in ("p", "s_A"))
        if abs(self.s_A) * (1 - ROUNDING) > self.B_A:
            raise ValueError(
                f"SelectiveNorms: B_A bounds every |a|, so it cannot be less than |s_A| = {abs(self.s_A)}; "
                f"got B_A = {self.B_A}."
            )

    def one_norm(self, name: str) -> float:
        """M_B, M_C, M_w, M_q or M_A by its last letter; B of the same letter if not given."""
        value = getattr(self, f"M_{name}")
        return float(getattr(self, f"B_{name}") if value is None else value)

    @property
    def widest_step(self) -> float:
        """M_Delta = ln(1 + e^{|p| + B_q B_u}): the longest step for any |p'| <= |p|."""
        return softplus(abs(self.p) + self.B_q * self.B_u)

    @property
    def shortest_step(self) -> float:
        """ln(1 + e^{-|p| - B_q B_u}): the shortest step."""
        return softplus(-abs(self.p) - self.B_q * self.B_u)

    @property
    def log_rho(self) -> float:
        """ln rho_A with ||A_t||_2 <= rho_A^t: the shortest step where states decay, the widest where they grow.

        Lemma E.3 uses the shortest one for both signs, which is no bound when s_A + eta > 0.
        """
        rate = self.s_A + self.eta
        return rate * (self.widest_step if rate > 0 else self.shortest_step)

    @property
    def widest_step_printed(self) -> float:
        """M_Delta as it is printed, with p itself."""
        return softplus(self.p + self.B_q * self.B_u)

    @property
    def log_rho_printed(self) -> float:
        """ln rho_A as (15) and (50) print it, with p itself: a bound for fixed p alone, and for s_A + eta < 0."""
        return (self.s_A + self.eta) * softplus(self.p - self.B_q * self.B_u)


def selective_norms(
    W_B: Tensor,
    W_C: Tensor,
    A: Tensor,
    p: Tensor | float,
    q: Tensor,
    w: Tensor,
    u: Tensor | float,
    *,
    T: int | None = None,
) -> SelectiveNorms:
    """Read the norms of trained tensors: W_B, W_C (n, d), A (d, n), p scalar, q (d,), w (d,) or (classes, d).

    u is the bound B_u itself, or the data, an embedding table (v, d) or sequences (..., d), whose largest norm is
    used. T is the number of steps; None reads it from sequences u (b, l, d). Several classes are bounded by the row
    of w with the largest norm, as the bound is for scalar outputs.

    Examples:
        >>> W, q = torch.randn(4, 2), torch.randn(2)
        >>> rv.analysis.selective_norms(W, W, -torch.ones(2, 4), 0.0, q, q, 1.0, T=10).B_A > 0
        True
    """
    _check_tensors(W_B, W_C, A, q, w)
    n, d = W_B.shape
    W_B, W_C, A, q = (t.detach().double() for t in (W_B, W_C, A, q))
    rows = w.detach().double().reshape(-1, d)  # (classes, d)
    return SelectiveNorms(
        B_u=data_bound(u) if isinstance(u, Tensor) else float(u),
        B_w=float(rows.norm(dim=1).max()), M_w=float(rows.abs().sum(1).max()),
        B_B=spectral_norm(W_B), M_B=float(W_B.abs().sum()),
        B_C=spectral_norm(W_C), M_C=float(W_C.abs().sum()),
        B_A=float(A.abs().max()), M_A=float(A.abs().sum()), s_A=float(A.max()),
        B_q=float(q.norm()), M_q=float(q.abs().sum()), p=float(p.detach()) if isinstance(p, Tensor) else float(p),
        N=n, d=d, T=_steps(u, T),
    )  # fmt: skip


def data_bound(u: Tensor) -> float:
    """B_u: the largest ||u[t]||_2 over tokens or steps, u (..., d).

    Examples:
        >>> rv.analysis.data_bound(torch.tensor([[3.0, 4.0], [1.0, 0.0]]))
        5.0
    """
    if not isinstance(u, Tensor) or not u.is_floating_point() or u.dim() < 1 or not u.numel():
        got = f"{u.dtype} {tuple(u.shape)}" if isinstance(u, Tensor) else type(u).__name__
        raise ValueError(
            f"data_bound: expected real vectors (..., d), got {got}; look tokens up in the embedding first."
        )
    bound = float(torch.linalg.vector_norm(u.detach().double(), dim=-1).max())
    if not math.isfinite(bound):
        raise ValueError("data_bound: the data hold NaN or infinity; no bound B_u exists.")
    return bound


def check_data_bound(u: Tensor, B_u: float) -> None:
    """Refuse samples u (b, ..., d) outside ||u[t]||_2 <= B_u: the bound does not apply to them."""
    norms = torch.linalg.vector_norm(u.detach().double(), dim=-1).reshape(u.shape[0], -1).amax(1)  # (b,)
    outside = ~(norms <= B_u * (1 + ROUNDING))
    if bool(outside.any()):
        first = int(outside.nonzero()[0])
        raise ValueError(
            f"generalisation_bound: {int(outside.sum())} of {len(norms)} samples lie outside the stated bound "
            f"B_u = {B_u:.6g}, first sample {first} with ||u[t]||_2 = {float(norms[first]):.6g}; state a larger B_u "
            "(data_bound(u) reads it) or drop them."
        )


def softplus(value: float) -> float:
    """ln(1 + e^value) without overflow."""
    return max(value, 0.0) + math.log1p(math.exp(-abs(value)))


def _steps(u: Tensor | float, T: int | None) -> int:
    if T is not None:
        return T
    if isinstance(u, Tensor) and u.dim() == 3:
        return u.shape[1]
    raise ValueError("selective_norms: the number of steps T is not known; pass T=..., or sequences u (b, l, d).")


def _check_tensors(W_B: Tensor, W_C: Tensor, A: Tensor, q: Tensor, w: Tensor) -> None:
    if W_B.dim() != 2:
        raise ValueError(f"selective_norms: expected W_B (n, d), got {tuple(W_B.shape)}.")
    n, d = W_B.shape
    if W_C.shape != (n, d) or A.shape != (d, n) or q.shape != (d,) or w.shape[-1:] != (d,):
        raise ValueError(
            f"selective_norms: with W_B ({n}, {d}) expected W_C ({n}, {d}), A ({d}, {n}), q ({d},), w (..., {d}); got "
            f"{tuple(W_C.shape)}, {tuple(A.shape)}, {tuple(q.shape)}, {tuple(w.shape)}."
        )
    if A.is_complex():
        raise TypeError("selective_norms: A must be real and diagonal, stored as (d, n); got complex values.")


def _check_number(name: str, value: float, signed: bool) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(
            f"SelectiveNorms: {name} must be a finite number, got {value!r}; a diverged model has no bound."
        )
    if not signed and value < 0:
        raise ValueError(f"SelectiveNorms: {name} bounds a norm and cannot be negative, got {value}.")
