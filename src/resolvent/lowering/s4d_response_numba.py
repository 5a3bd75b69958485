"""`s4d_response` on the CPU, compiled by numba: from parameters to the impulse response and back, channel by channel.

    z = dt lam,    lam_bar = e^z, φ = (e^z - 1) / z   or   lam_bar = (1 + z/2) φ, φ = 1 / (1 - z/2)
    w = 2 C B dt φ,    K_j = Re sum_n w_n lam_bar_n^j  (lam_bar held inside the unit disc),    K_0 + D

With S = sum_j ∂K_j lam_bar^j and T = w sum_j j ∂K_j lam_bar^(j-1), a change of any parameter changes the loss by the
real part of S dw + T dlam_bar. Everything in float64. Imported by the dispatcher only, because numba is an extra.
"""

from __future__ import annotations

import cmath
import math
from functools import cache
from typing import Any

import numpy as np
import torch
from numba import carray, njit, types
from torch import Tensor

from resolvent.init.timestep import LOG_DT_HIGH, LOG_DT_LOW
from resolvent.runtime.jit import Array, jit
from resolvent.runtime.team import HEAD, kernel, pointer, run, share
from resolvent.runtime.threads import threads_for
from resolvent.ssm.discretise import RADIUS

_inner: Any = njit(fastmath={"contract", "reassoc"}, error_model="numpy")  # sums vectorise in another, fixed, order
_TERMS = 18
_ONE_OVER = np.array([1 / math.factorial(k + 1) for k in range(_TERMS + 1)])  # of z^k in (e^z - 1) / z
_KEPT = 10  # numbers of a state that the way back needs
_RE, _IM, _W_RE, _W_IM, _PHI_RE, _PHI_IM, _RISE_RE, _RISE_IM, _HELD, _SIZE = range(_KEPT)


@jit
def _over(z: complex) -> tuple[complex, complex]:
    """(e^z - 1) / z and its derivative, near zero by their series."""
    if abs(z) < RADIUS:
        value, slope = complex(_ONE_OVER[_TERMS]), complex(0.0)
        for k in range(_TERMS - 1, -1, -1):
            slope = slope * z + value
            value = value * z + _ONE_OVER[k]
        return value, slope
    x, y = z.real, z.imag
    half = math.sin(0.5 * y)
    less = complex(math.expm1(x) * math.cos(y) - 2 * half * half, math.exp(x) * math.sin(y))
    value = less / z
    return value, (1 + (z - 1) * value) / z


@jit
def _clamp(value: float) -> float:
    """As torch's clamp: NaN stays NaN."""
    if value < LOG_DT_LOW:
        return LOG_DT_LOW
    return LOG_DT_HIGH if value > LOG_DT_HIGH else value


@jit
def _slope(value: float) -> float:
    """Of `_clamp`."""
    return 1.0 if LOG_DT_LOW <= value <= LOG_DT_HIGH else 0.0


@jit
def _laid_out(p: Array, d: int, n: int, c: int) -> tuple[Array, Array, Array, Array]:
    """log_decay, frequency (n,), B and C (n, 2) of a channel in p: log_dt (d,), D (d,), then these for all channels."""
    first, size = 2 * d, d * n
    decay, frequency = p[first + c * n : first + (c + 1) * n], p[first + size + c * n : first + size + (c + 1) * n]
    both = p[first + 2 * size :].reshape((2, d, n, 2))
    return decay, frequency, both[0, c], both[1, c]


@jit
def _prepare(p: Array, kept: Array, c: int, sizes: tuple[int, int, int], limit: float) -> None:
    """kept (_KEPT, n) of channel c."""
    d, n, bilinear = sizes
    decay, frequency, B, C = _laid_out(p, d, n, c)
    dt = math.exp(_clamp(p[c]))
    for i in range(n):
        z = dt * complex(-math.exp(_clamp(decay[i])), frequency[i])
        if bilinear:
            phi = 1 / (1 - 0.5 * z)
            bar, rise = (1 + 0.5 * z) * phi, 0.5 * phi * phi
        else:
            phi, rise = _over(z)
            bar = cmath.exp(z)
        size = abs(bar)
        held = min(1.0, limit / max(size, 0.5))
        w = 2 * complex(C[i, 0], C[i, 1]) * (dt * phi * complex(B[i, 0], B[i, 1]))
        kept[_RE, i], kept[_IM, i], kept[_HELD, i], kept[_SIZE, i] = bar.real * held, bar.imag * held, held, size
        kept[_W_RE, i], kept[_W_IM, i], kept[_PHI_RE, i], kept[_PHI_IM, i] = w.real, w.imag, phi.real, phi.imag
        kept[_RISE_RE, i], kept[_RISE_IM, i] = rise.real, rise.imag


@_inner
def _powers_summed(kept: Array, K: Array, power: Array) -> None:
    """K_j = Re sum_n w_n bar_n^j; power is room (2, n)."""
    a, b, x, y = kept[_RE], kept[_IM], power[0], power[1]
    n = a.shape[0]
    for i in range(n):
        x[i], y[i] = kept[_W_RE, i], kept[_W_IM, i]
    for j in range(K.shape[0]):
        total = 0.0
        for i in range(n):
            re, im = x[i], y[i]
            total += re
            x[i], y[i] = re * a[i] - im * b[i], re * b[i] + im * a[i]
        K[j] = total


@jit
def _horner(kept: Array, g: Array, x: Array, y: Array) -> None:
    """x + i y = sum_j g_j bar^j. Few arrays: a compiler looks for overlaps between some pairs, not between many."""
    a, b = kept[_RE], kept[_IM]
    n = a.shape[0]
    for i in range(n):
        x[i] = y[i] = 0.0
    for j in range(g.shape[0] - 1, -1, -1):
        more = g[j]
        for i in range(n):
            re, im = x[i], y[i]
            x[i], y[i] = re * a[i] - im * b[i] + more, re * b[i] + im * a[i]


@jit
def _sum_powers(kept: Array, g: Array, sums: Array) -> None:
    """sums (4, n): sum_j g_j bar^j, then sum_j j g_j bar^(j-1); g becomes j g_j."""
    _horner(kept, g, sums[0], sums[1])
    for j in range(g.shape[0]):
        g[j] *= j
    _horner(kept, g[1:], sums[2], sums[3])


@jit
def _return_gradients(p: Array, out: Array, kept: Array, sums: Array, c: int, sizes: tuple[int, int, int]) -> None:
    """The gradients of a channel's parameters in `out`, laid out as p, from `sums` of `_sum_powers`."""
    d, n, bilinear = sizes
    decay, frequency, B, C = _laid_out(p, d, n, c)
    to_decay, to_frequency, to_B, to_C = _laid_out(out, d, n, c)
    dt, total = math.exp(_clamp(p[c])), 0.0
    for i in range(n):
        real = -math.exp(_clamp(decay[i]))
        lam, phi = complex(real, frequency[i]), complex(kept[_PHI_RE, i], kept[_PHI_IM, i])
        left, right = complex(C[i, 0], C[i, 1]), complex(B[i, 0], B[i, 1])
        own, along = complex(sums[0, i], sums[1, i]), complex(sums[2, i], sums[3, i])
        along *= complex(kept[_W_RE, i], kept[_W_IM, i])
        bar, held = complex(kept[_RE, i], kept[_IM, i]) / kept[_HELD, i], kept[_HELD, i]
        if held < 1:  # only the direction of lam_bar counts
            way = bar / kept[_SIZE, i]
            along = held * (along - (along * way).real * way.conjugate())
        by_phi = 2 * own * left * right  # of dt phi
        by_z = dt * by_phi * complex(kept[_RISE_RE, i], kept[_RISE_IM, i]) + along * (phi * phi if bilinear else bar)
        to_decay[i], to_frequency[i] = dt * by_z.real * real * _slope(decay[i]), -dt * by_z.imag
        total += (by_z * lam + by_phi * phi).real
        by_C, by_B = 2 * dt * own * phi * right, 2 * dt * own * phi * left
        to_C[i, 0], to_C[i, 1], to_B[i, 0], to_B[i, 1] = by_C.real, -by_C.imag, by_B.real, -by_B.imag
    out[c] = dt * total * _slope(p[c])


def _channels(w: Any) -> None:
    """The table: back, d, n, length, bilinear, and the addresses of the limit, p, K or its gradient, kept (d, _KEPT,
    n), room (d, 4, n) and the gradients of p."""
    t = carray(w, HEAD + 11)
    begin, end = share(t)
    back, d, n, l, bilinear, at_limit, at_p, at_K, at_kept, at_room, at_out = t[HEAD:]
    size = 2 * d + 6 * d * n
    p, out = carray(pointer(at_p, types.float64), (size,)), carray(pointer(at_out, types.float64), (size,))
    K, kept = carray(pointer(at_K, types.float64), (d, l)), carray(pointer(at_kept, types.float64), (d, _KEPT, n))
    room, limit = carray(pointer(at_room, types.float64), (d, 4, n)), carray(pointer(at_limit, types.float64), (1,))[0]
    for c in range(begin, end):
        if back:
            out[d + c] = K[c, 0]
            _sum_powers(kept[c], K[c], room[c])
            _return_gradients(p, out, kept[c], room[c], c, (d, n, bilinear))
        else:
            _prepare(p, kept[c], c, (d, n, bilinear), limit)
            _powers_summed(kept[c], K[c], room[c])
            K[c, 0] += p[d + c]


@cache
def _compile() -> Any:
    return kernel(_channels)


def response(p: Tensor, shape: tuple[int, int, int], bilinear: bool, limit: float) -> tuple[Tensor, Tensor]:
    """K (d, l) of p (see `_laid_out`) for shape (d, n, l), with |lam_bar| <= limit, and what `gradient` needs."""
    d, n, l = shape
    K, kept = p.new_empty(d, l), p.new_empty(d, _KEPT, n)
    _run(p, K, kept, p, (False, bilinear, limit))
    return K, kept


def gradient(p: Tensor, g: Tensor, kept: Tensor, bilinear: bool, limit: float) -> Tensor:
    """That of p, in its layout, from g (d, l), which is spent."""
    out = torch.empty_like(p)
    _run(p, g, kept, out, (True, bilinear, limit))
    return out


def _run(p: Tensor, K: Tensor, kept: Tensor, out: Tensor, how: tuple[bool, bool, float]) -> None:
    (d, l), n, (back, bilinear, limit) = K.shape, kept.shape[-1], how
    bound, room = p.new_full((1,), limit), p.new_empty(d, 4, n)
    places = (a.data_ptr() for a in (bound, p, K, kept, room, out))
    run(_compile(), (int(back), d, n, l, int(bilinear), *places), d, threads_for(4 * d * n * (l + 16)))
