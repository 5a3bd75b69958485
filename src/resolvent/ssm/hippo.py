"""HiPPO matrices: linear memories that hold the coefficients of the past in a basis of orthogonal functions.

    x'(t) = A x(t) + B u(t)

legs  scaled Legendre, the whole past weighted evenly (HiPPO, Gu et al. 2020; the matrix that S4 starts from)
legt  translated Legendre, a sliding window
lagt  translated Laguerre, an exponentially fading window
fout  truncated Fourier, a sliding window

Each A is a normal matrix minus a term of low rank (NPLR; S4, Gu et al. 2022, theorem 1), so a unitary V turns it into
diagonal minus low rank (DPLR): A = V (diag(lam) - P P^*) V^*. All values are float64 or complex128, and on the CPU
whatever torch's default device: layers on another device, or on "meta", move them there.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from resolvent.runtime.transforms import constant
from resolvent.usage.numbers import check_choice, check_count

NAMES = ("legs", "legt", "lagt", "fout")


def hippo(name: str, n: int) -> tuple[Tensor, Tensor]:
    """The matrices A (n, n) and B (n,) of the HiPPO operator `name`: "legs", "legt", "lagt" or "fout".

    Examples:
        >>> A, B = rv.ssm.hippo("legs", 3)
        >>> A.diagonal()
        tensor([-1., -2., -3.], dtype=torch.float64)
    """
    A, B, _ = nplr(name, n)
    return A, B


@constant
def nplr(name: str, n: int) -> tuple[Tensor, Tensor, Tensor]:
    """A (n, n), B (n,) and P (n, r), such that A + P P^* is normal: a skew matrix plus a multiple of the identity.

    The rank r is 1 for legs, lagt and fout, 2 for legt.

    Examples:
        >>> A, B, P = rv.ssm.nplr("legs", 4)
        >>> S = A + P @ P.mT
        >>> torch.allclose(S @ S.mT, S.mT @ S)
        True
    """
    _check(name, n)
    return {"legs": _legs, "legt": _legt, "lagt": _lagt, "fout": _fout}[name](n)


@constant
def dplr(name: str, n: int, halves: bool = True) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """lam (k,), P (k, r), B (k,) and V (n, k), with A = V (diag(lam) - P P^*) V^*; k = n, or n/2 with `halves`.

    halves=True keeps the member with positive imaginary part of each conjugate pair, in ascending order; the system is
    then y = 2 Re(C V x). The low-rank term couples the halves, so only the diagonal part may be run on one half.
    halves=False appends the conjugates: lam = [half, conj(half)], and V (n, n) is unitary.

    lam comes from the Hermitian problem -i S, S skew, so its real part is exact (-1/2 for legs, else 0). Each
    column's free phase is chosen such that B = V^* B_hippo is real and positive: the result is the same everywhere.

    Examples:
        >>> lam, P, B, V = rv.ssm.dplr("legs", 8)
        >>> lam.shape, P.shape, B.shape, V.shape
        (torch.Size([4]), torch.Size([4, 1]), torch.Size([4]), torch.Size([8, 4]))
    """
    if n % 2:
        raise ValueError(f"dplr: n must be even to form conjugate pairs, got {n}; use {n + 1}.")
    A, B, P = nplr(name, n)
    real_part = -0.5 if name == "legs" else 0.0
    S = A + P @ P.mT
    w, V = _skew_pairs((S - S.mT) / 2)  # (k,), (n, k)
    V = V * _unit_phase(V.mH @ B.to(V.dtype))
    lam = torch.complex(torch.full_like(w, real_part), w)
    P, B = V.mH @ P.to(V.dtype), V.mH @ B.to(V.dtype)  # of one half: the rest is exactly its conjugate
    if not halves:
        lam, P, B = (torch.cat([half, half.conj()]) for half in (lam, P, B))
        V = torch.cat([V, V.conj()], -1)
    return lam.resolve_conj(), P.resolve_conj(), B.resolve_conj(), V.resolve_conj()


def _legs(n: int) -> tuple[Tensor, Tensor, Tensor]:
    """A_nk = -sqrt((2n+1)(2k+1)) below the diagonal, -(n+1) on it, 0 above; eigenvalues -1, ..., -n."""
    B = torch.sqrt(2 * _index(n) + 1)
    A = -torch.tril(torch.outer(B, B), -1) - torch.diag(_index(n) + 1)
    return A, B, (B / math.sqrt(2))[:, None]


def _legt(n: int) -> tuple[Tensor, Tensor, Tensor]:
    """A_nk = -1/2 sqrt((2n+1)(2k+1)) times 1 for n >= k, (-1)^(n-k) for n < k: a window of length two."""
    i = _index(n)
    root, sign = torch.sqrt(2 * i + 1), 1 - 2 * torch.remainder(i, 2)
    weight = torch.tril(torch.ones(n, n, dtype=torch.float64)) + torch.triu(torch.outer(sign, sign), 1)
    even = torch.remainder(i, 2) == 0
    P = torch.stack([root * even, root * ~even], -1) / math.sqrt(2)
    return -0.5 * torch.outer(root, root) * weight, 0.5 * root, P


def _lagt(n: int) -> tuple[Tensor, Tensor, Tensor]:
    """A = -1/2 on the diagonal, -1 below it: the kernel of state k is e^(-t/2) L_k(t)."""
    ones = torch.ones(n, n, dtype=torch.float64)
    A = 0.5 * torch.eye(n, dtype=torch.float64) - torch.tril(ones)
    return A, ones[0].clone(), torch.full((n, 1), math.sqrt(0.5), dtype=torch.float64)


def _fout(n: int) -> tuple[Tensor, Tensor, Tensor]:
    """pi times a rotation with frequencies 0, 1, 2, ... in the planes (2j, 2j+1), minus B B^T; a window of length two.

    The sine of frequency zero (state 1) is kept for the pairing; it has no input.
    """
    i = _index(n)
    even = 1 - torch.remainder(i, 2)
    B = math.sqrt(2) * even
    B[0] = 1.0
    d = math.pi / 2 * (i * even)[:-1]
    A = torch.diag(d, -1) - torch.diag(d, 1) - torch.outer(B, B)
    return A, B, B[:, None].clone()


def _skew_pairs(S: Tensor) -> tuple[Tensor, Tensor]:
    """The pairs i w, v of a real skew matrix S of even size with w >= 0 rising, where [V, conj(V)] is unitary."""
    half = S.shape[-1] // 2
    w, V = torch.linalg.eigh(-1j * S)
    w, V = w[half:], V[:, half:]
    null = int((w < 1e-9 * w[-1].clamp_min(1e-300)).sum())
    if null:  # eigh returns an arbitrary basis of a null space; it must split into v and conj(v)
        real = torch.linalg.svd(S)[2][-2 * null :]  # (2 null, n)
        V = torch.cat([torch.complex(real[0::2], real[1::2]).mT / math.sqrt(2), V[:, null:]], -1)
        w = torch.cat([torch.zeros_like(w[:null]), w[null:]])
    return w, V


def _unit_phase(b: Tensor) -> Tensor:
    """The unit numbers that turn b real and positive when b = V^* B and V is multiplied by them."""
    return torch.where(b.abs() > 0, b / b.abs().clamp_min(1e-300), torch.ones_like(b))


def _index(n: int) -> Tensor:
    return torch.arange(n, dtype=torch.float64)


def _check(name: str, n: int) -> None:
    check_choice("hippo", "name", name, NAMES)
    check_count("hippo", 1, n=n)
    if name == "fout" and n % 2:
        raise ValueError(f"hippo: fout needs an even n for its sine and cosine pairs, got {n}; use {n + 1}.")
