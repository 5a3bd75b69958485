"""L2RU of neural-ssm: (A, B, C, D) and the storage P are computed by its own formulas, and the system is imported.

Its matrices differ from our form "complete" in the factor of N N^T (a Cholesky factor of it, shifted by 1e-6), so the
parameters do not map one to one; the system does, into the form "dense".
"""

from __future__ import annotations

import torch
from torch import Tensor

from resolvent.layers.l2ru import L2RU
from resolvent.models.foreign.fill import Weights

SHIFT = 1e-6  # added by neural-ssm before its Cholesky factorisation
KNOWN = ("gamma", "ID", "alpha", "epsilon", "triu_indices", "tril_indices", "X11_params", "X22_params", "Skew_params",
         "X21", "C", "Dt")  # fmt: skip


def import_l2ru(weights: Weights, *, gamma: float | None = None) -> L2RU:
    """The layer `L2RU` of neural-ssm (0.44), square, with the stored gamma or a larger one given as its gain.

    If the shift has invalidated the storage that its formulas give, another one is searched for; a system whose gain
    itself exceeds gamma is refused.
    """
    n = weights.shape("X21", 2)[0]
    _check(weights, n)
    free = {name: tensor.double() for name, tensor in weights.tensors.items() if name in KNOWN}
    A, B, C, D, P = _system(free, n)
    gain = float(abs(free["gamma"])) if gamma is None else gamma
    try:
        layer = L2RU.from_system(A, B, C, D, P, gain)
    except ValueError:
        layer = L2RU.from_system(A, B, C, D, None, gain)
    return layer.to(weights.dtype)


def _check(weights: Weights, n: int) -> None:
    half = n * (n + 1) // 2
    wanted = {"gamma": (), "alpha": (), "epsilon": (), "X11_params": (half,), "X22_params": (half,), "C": (n, n),
              "Dt": (n, n), "X21": (n, n)}  # fmt: skip
    wrong = [f"{name} is missing {shape}" for name, shape in wanted.items() if name not in weights]
    for name, tensor in weights.tensors.items():
        if name not in KNOWN:
            wrong.append(f"{name} {tuple(tensor.shape)} is not known")
        elif name in wanted and tuple(tensor.shape) != wanted[name]:
            wrong.append(f"{name} {tuple(tensor.shape)}, expected {wanted[name]}")
    if wrong:
        raise ValueError(f"import_weights: {weights.source}: {', '.join(wrong)}; nothing was imported.")


def _system(free: dict[str, Tensor], n: int) -> tuple[Tensor, ...]:
    """Massai and Ferrari-Trecate 2025, with V = beta Z - gamma^2 I and R = H12 V^-1 H12^T."""
    eye = torch.eye(n, dtype=torch.float64)
    X11, X22 = (_lower(free[name], n) for name in ("X11_params", "X22_params"))
    X21, C, Dt, gamma = free["X21"], free["C"], free["Dt"], free["gamma"]
    slack = torch.exp(free["epsilon"])
    Z = X21 @ X21.mT + X22 @ X22.mT + Dt.mT @ Dt + slack * eye
    beta = gamma**2 * torch.sigmoid(free["alpha"]) / torch.linalg.matrix_norm(Z, 2)
    H11 = X11 @ X11.mT + C.mT @ C + beta * slack * eye
    H12 = beta.sqrt() * (X11 @ X21.mT + C.mT @ Dt)
    V = beta * Z - gamma**2 * eye
    low = -H12 @ torch.linalg.solve(V, H12.mT)
    low = (low + low.mT) / 2 + SHIFT * eye
    factor, P = torch.linalg.cholesky(low), low + H11
    Q = _turning(free, n, eye)
    A = torch.linalg.solve(torch.linalg.cholesky(P).mT, Q @ factor.mT)
    B = A @ torch.linalg.solve(H12.mT, V.mT)
    return A, B, C, beta.sqrt() * Dt, P


def _turning(free: dict[str, Tensor], n: int, eye: Tensor) -> Tensor:
    if "Skew_params" not in free:
        return eye
    rows, columns = torch.triu_indices(n, n, 1)
    S = torch.zeros(n, n, dtype=torch.float64)
    S[rows, columns] = free["Skew_params"]
    S = S - S.mT
    return (eye - S) @ torch.linalg.inv(eye + S)


def _lower(packed: Tensor, n: int) -> Tensor:
    L = torch.zeros(n, n, dtype=torch.float64)
    rows, columns = torch.tril_indices(n, n)
    L[rows, columns] = packed
    return L
