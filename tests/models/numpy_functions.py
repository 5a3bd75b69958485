"""Activations, a norm and a dense recurrence in numpy, as the papers write them."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import erf


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def silu(x: np.ndarray) -> np.ndarray:
    return x * sigmoid(x)


def gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + erf(x / math.sqrt(2)))


def gelu_tanh(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def softplus(x: np.ndarray) -> np.ndarray:
    return np.log1p(np.exp(x))


def layer_norm(x: np.ndarray, weight: np.ndarray, bias: np.ndarray, eps: float) -> np.ndarray:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps) * weight + bias


def run(A: np.ndarray, B: np.ndarray, C: np.ndarray, u: np.ndarray) -> np.ndarray:
    """x_k = A x_{k-1} + B u_k, y_k = C x_k for u (l, m): y (l, p)."""
    x, out = np.zeros(A.shape[0], dtype=complex), []
    for u_k in u:
        x = A @ x + B @ u_k
        out.append(C @ x)
    return np.array(out)
