"""The free parametrisations of L2RU: any parameter values give a contraction K, hence a gain of at most gamma.

Each produces, in coordinates z in which the storage function is |z|^2 (P = I),

    K = [ A   B / gamma ]         |K| <= 1   <=>   |z_{k+1}|^2 + |y_k|^2 <= |z_k|^2 + gamma^2 |u_k|^2
        [ C   D / gamma ]

which is the bounded-real inequality of z_{k+1} = A z_k + B u_k, y_k = C z_k + D u_k. A change of coordinates z = S x
leaves the map u -> y unchanged, so the matrices S and P of the papers are not parameters here; see `certificate()`.
Tables are computed in float64, scaled by 1 - m and rounded: m covers the rounding (`ssm.contraction.rounding_margin`).

Shape letters: d channels in and out, n real states, p = n / 2 pairs of states rotated together.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from resolvent.init.ring import ring
from resolvent.ops.pairs import Number, Pair, complex_of, join_parts, stack_parts
from resolvent.runtime.transforms import wide
from resolvent.ssm.contraction import cayley, hold_norm, inverse_defects, norm_bound, rounding_margin, solve_lower

LOG_LIMIT = 20.0  # exp(20) = 5e8, as in LRU: beyond it |lam| is 0 and the phase is meaningless
SLOWEST = 1e-6  # smallest decay: |lam| <= exp(-1e-6)
OFF_DIAGONAL = 0.05  # standard deviation of the initial K12, K21, K22 of the contraction form
SLOW_TURN = 0.97  # initial |A| of the dense contraction
RELATIVE_SHIFT = 1e-12  # added to P in units of its mean eigenvalue: keeps the identity, see `Complete`


def gain_of(log_gamma: Tensor) -> Tensor:
    return log_gamma.double().clamp(-LOG_LIMIT, LOG_LIMIT).exp()


def prescribed_gain(fixed: float | None, log_gamma: Tensor | None, like: Tensor) -> Tensor:
    """gamma, positive; the fixed value unless it is trained."""
    return like.new_full((), fixed or 0.0, dtype=torch.float64) if log_gamma is None else gain_of(log_gamma)


class Matrices(NamedTuple):
    """K as blocks. `A` is a matrix (n, n), or complex (p,): pairs of real states rotated and damped by lam."""

    A: Number
    B: Tensor  # (n, d)
    C: Tensor  # (d, n)
    D: Tensor  # (d, d)


class FreeForm(nn.Module):
    """Abstract. Free parameters, and `make`, which maps them to matrices of gain at most gamma, in float64."""

    def parts(self) -> tuple[Tensor, ...]:
        raise NotImplementedError

    @staticmethod
    def make(gamma: Tensor, *given: Tensor) -> Matrices:
        raise NotImplementedError

    def forward(self, gamma: Tensor) -> Matrices:
        return self.make(gamma, *self.parts())


class Complete(FreeForm):
    """Every square system (n = d) with gain below gamma: Massai and Ferrari-Trecate 2025, "Free parametrization of
    L2-bounded state space models". Free X11, X21, X22, C, Dt, S (d, d; S enters by its skew part), alpha:

        Z = X21 X21^T + X22 X22^T + Dt^T Dt + I          beta = gamma^2 sigmoid(alpha) / |Z|
        H11 = X11 X11^T + C^T C + beta I                 H12 = sqrt(beta) (X11 X21^T + C^T Dt)
        W = gamma^2 I - beta Z = Lv Lv^T                 N = H12 Lv^-T
        P = H11 + N N^T = Lp Lp^T                        Q = Cayley(S)
        A = Lp^-T Q N^T,    B = -Lp^-T Q Lv^T,    C,    D = sqrt(beta) Dt

    Then A^T P A = N N^T, A^T P B = -H12, B^T P B = W, and the bounded-real matrix is
    -[X11; sqrt(beta) X21][.]^T - diag(beta I, beta (X22 X22^T + I)) < 0. The published code takes a Cholesky factor of
    N N^T, which needs an invertible H12 and a shift that breaks the identity; N itself needs neither. Shifting P alone
    (RELATIVE_SHIFT, for parameters of extreme size) only makes H11 larger and the inequality stricter.
    Returned in z = Lp^T x.
    """

    def __init__(self, d: int) -> None:
        super().__init__()
        eye, G = torch.eye(d), torch.randn(d, d)
        self.X11 = nn.Parameter(0.01 * eye)
        self.X21 = nn.Parameter(0.1 * eye)
        self.X22 = nn.Parameter(0.01 * eye)
        self.C = nn.Parameter(eye.clone())
        self.Dt = nn.Parameter(eye.clone())
        self.S = nn.Parameter(0.01 * G)
        self.alpha = nn.Parameter(torch.tensor(4.1))

    def parts(self) -> tuple[Tensor, ...]:
        return self.X11, self.X21, self.X22, self.C, self.Dt, self.S, self.alpha

    @staticmethod
    def make(gamma: Tensor, *given: Tensor) -> Matrices:
        X11, X21, X22, C, Dt, S, alpha = (wide(p) for p in given)
        X11, X22 = X11.tril(), X22.tril()
        eye = torch.eye(C.shape[0], dtype=C.dtype, device=C.device)
        Z = X21 @ X21.mT + X22 @ X22.mT + Dt.mT @ Dt + eye
        share = torch.sigmoid(alpha).clamp(1e-6, 1 - 1e-6)
        beta = share / _largest_eigenvalue(Z)  # in units of gamma^2, as Lv in units of gamma
        Lv = torch.linalg.cholesky_ex(eye - beta * Z)[0]
        H12 = torch.sqrt(beta) * (X11 @ X21.mT + C.mT @ Dt)
        N = solve_lower(Lv, H12.mT).mT
        P = X11 @ X11.mT + C.mT @ C + beta * gamma**2 * eye + N @ N.mT
        P = P + RELATIVE_SHIFT * P.diagonal().mean() * eye
        Lp = torch.linalg.cholesky_ex(P)[0]
        Q = cayley(S)
        NT, C = solve_lower(Lp, torch.cat([N, C.mT], 1)).mT.chunk(2)  # [N^T; C] Lp^-T
        return Matrices(Q @ NT, -gamma * Q @ Lv.mT, C, gamma * torch.sqrt(beta) * Dt)


def _largest_eigenvalue(Z: Tensor) -> Tensor:
    """The largest eigenvalue of a symmetric matrix; NaN where it is not finite (eigvalsh would raise).

    Where the largest ones tie, as initially (Z is a multiple of I), it has subgradients but no second derivative.
    """
    if Z.is_cuda and torch.cuda.is_current_stream_capturing():  # cuSOLVER would be left in a broken state
        raise RuntimeError("eigenvalues cannot be recorded")
    finite = Z.isfinite().all()
    return torch.linalg.eigvalsh(torch.where(finite, Z, torch.zeros_like(Z)))[-1].where(finite, torch.nan)


class Turning(nn.Module):
    """p pairs of states: lam = exp(-exp(nu_log) + i exp(theta_log)), initialised on a ring, kept inside the disc."""

    def __init__(self, p: int, r_min: float, r_max: float, max_phase: float) -> None:
        super().__init__()
        nu_log, theta_log = ring(p, r_min, r_max, max_phase)
        self.nu_log = nn.Parameter(nu_log)  # (p,)
        self.theta_log = nn.Parameter(theta_log)  # (p,)

    def parts(self) -> tuple[Tensor, ...]:
        return self.nu_log, self.theta_log

    @staticmethod
    def make(nu_log: Tensor, theta_log: Tensor) -> tuple[Number, Tensor]:
        """lam (p,) complex and its defect sqrt(1 - |lam|^2) (p,), in float64."""
        nu, theta = (wide(log).clamp_max(LOG_LIMIT).exp() for log in (nu_log, theta_log))
        nu = nu.clamp_min(SLOWEST)
        return join_parts(-nu, theta).exp(), torch.sqrt(-torch.expm1(-2 * nu))


class Contraction(FreeForm):
    """K = K_raw / max(1, |K_raw|): the non-square contraction form with K11 block-diagonal, blocks |lam| R(arg lam).

    Here |K_raw| is the smooth bound `norm_bound`. The division shrinks the dynamics along with the rest, trading memory
    against the size of B, C, D. Below a norm of one nothing is scaled, so |lam| < 1 always.
    """

    def __init__(self, d: int, p: int, r_min: float, r_max: float, max_phase: float) -> None:
        super().__init__()
        self.turning = Turning(p, r_min, r_max, max_phase)
        self.K12 = nn.Parameter(OFF_DIAGONAL * torch.randn(2 * p, d))
        self.K21 = nn.Parameter(OFF_DIAGONAL * torch.randn(d, 2 * p))
        self.K22 = nn.Parameter(OFF_DIAGONAL * torch.randn(d, d))

    def parts(self) -> tuple[Tensor, ...]:
        return *self.turning.parts(), self.K12, self.K21, self.K22

    @staticmethod
    def make(gamma: Tensor, *given: Tensor) -> Matrices:
        lam, _ = Turning.make(*given[:2])
        K12, K21, K22 = (wide(p) for p in given[2:])
        whole = torch.cat([torch.cat([rotations(lam), K12], 1), torch.cat([K21, K22], 1)])
        scale = 1 / _bound(whole, given[0].dtype).clamp_min(1.0)
        return Matrices(lam.mul(scale), gamma * scale * K12, scale * K21, gamma * scale * K22)


def _bound(whole: Tensor, dtype: torch.dtype) -> Tensor:
    """`norm_bound` in the layer's own precision (its products cost most), raised by more than float32 rounding."""
    rounding = 16 * torch.finfo(torch.float32).eps * math.sqrt(whole.shape[0])
    return norm_bound(whole.to(dtype)).to(whole.dtype) * (1 + rounding)


class DenseContraction(FreeForm):
    """K = K_raw / max(1, |K_raw|) with a full K_raw (n + d, n + d): any number of real states, any A. Every system with
    gain at most gamma has this form, in the coordinates of its storage: see `L2RU.from_system`.
    """

    def __init__(self, d: int, n: int) -> None:
        super().__init__()
        K = OFF_DIAGONAL * torch.randn(n + d, n + d)
        K[:n, :n] = SLOW_TURN * cayley(0.3 * torch.randn(n, n, dtype=torch.float64))
        self.K, self.n = nn.Parameter(K), n

    def parts(self) -> tuple[Tensor, ...]:
        return self.K[: self.n], self.K[self.n :]

    @staticmethod
    def make(gamma: Tensor, *given: Tensor) -> Matrices:
        K, n = wide(torch.cat(given)), given[0].shape[0]
        K = K / _largest_eigenvalue(K.mT @ K).sqrt().clamp_min(1.0)
        return Matrices(K[:n, :n], gamma * K[:n, n:], K[n:, :n], gamma * K[n:, n:])


class ComplexDiagonal(FreeForm):
    """lam itself, and every B, C, D that the gain allows: all strictly contractive completions of K11.

        B = gamma R X,    C = Y R,    D = gamma (-Y K11^T X + F Z G),     R = sqrt(1 - |lam|^2) on both states of a pair

    with contractions X (n, d), Y (d, n), Z (d, d) and the defects F F^T = I - Y Y^T, G^T G = I - X^T X (Parrott's
    theorem, in the form of Davis, Kahan and Weinberger 1982). X = I (n = d) is the LRU's normalisation of the input.
    The published variant scales a template of B and C by the norm of a Schur complement and covers only some of these.
    """

    def __init__(self, d: int, p: int, r_min: float, r_max: float, max_phase: float) -> None:
        super().__init__()
        self.turning = Turning(p, r_min, r_max, max_phase)
        self.X = nn.Parameter(torch.randn(2 * p, d) / math.sqrt(d))
        self.Y = nn.Parameter(torch.randn(d, 2 * p) / math.sqrt(2 * p))
        self.Z = nn.Parameter(torch.randn(d, d) / math.sqrt(d))

    def parts(self) -> tuple[Tensor, ...]:
        return *self.turning.parts(), self.X, self.Y, self.Z

    @staticmethod
    def make(gamma: Tensor, *given: Tensor) -> Matrices:
        lam, defect = Turning.make(*given[:2])
        X, Y, Z = (hold_norm(wide(p)) for p in given[2:])
        G, F, S = inverse_defects(X, Y.mT, Z)  # G^T and F of the two defects
        sizes, Z = X.shape, Z @ S.mT
        Y, FZ = (F @ torch.cat([Y, Z], 1)).split(sizes, 1)
        X, FZG = (torch.cat([X, FZ]) @ G.mT).split(sizes)
        R = defect.repeat_interleave(2)[:, None]  # (n, 1)
        YK = stack_parts(complex_of(Y.unflatten(1, (-1, 2))).mul(lam)).flatten(1)  # Y K11^T rotates pairs of columns
        return Matrices(lam, gamma * R * X, Y * R.mT, gamma * (FZG - YK @ X))


def round_contraction(K: Matrices, dtype: torch.dtype) -> Matrices:
    """K scaled by 1 - m and in the layer's dtype: still a contraction, and exactly what the layer runs on."""
    keep = rounding_margin(K.B.shape[0] + K.D.shape[0])
    if isinstance(K.A, Pair):
        return Matrices((K.A * keep).to(dtype), *((keep * t).to(dtype) for t in K[1:]))
    own = {torch.float64: torch.complex128}.get(dtype, torch.complex64) if K.A.is_complex() else dtype
    return Matrices((keep * K.A).to(own), *((keep * t).to(dtype) for t in K[1:]))


def turn(lam: Number, X: Tensor) -> Tensor:
    """The block-diagonal matrix of lam (p,) times X (2p, c): each pair of rows rotated and damped."""
    pairs = X.unflatten(0, (-1, 2))  # (p, 2, c)
    re, im = lam.real[:, None], lam.imag[:, None]
    return torch.stack([re * pairs[:, 0] - im * pairs[:, 1], im * pairs[:, 0] + re * pairs[:, 1]], 1).flatten(0, 1)


def rotations(lam: Number) -> Tensor:
    """The block-diagonal matrix (2p, 2p) of `turn`: blocks [[re, -im], [im, re]]."""
    return turn(lam, torch.eye(2 * lam.shape[0], dtype=lam.real.dtype, device=lam.real.device))
