"""Causal convolution y_t = sum_(s <= t) k_s u_(t-s), three ways.

direct    the sum as written: the reference, O(l^2) in l calls
fft       two transforms and back, O(l log l)
toeplitz  products with the Toeplitz matrices of kernel blocks, O(l^2) at the speed of matrix products

u (..., l) and k (..., m) broadcast over their leading axes; y (..., l). A kernel longer than the input is truncated, a
shorter one is zero-padded. Half precision is computed in float32 and returned in half.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from resolvent.usage.numbers import check_choice

METHODS = ("direct", "fft", "toeplitz")
HALF = (torch.bfloat16, torch.float16)
BLOCK = 64  # edge of the Toeplitz blocks
TRANSFORMS = 1 << 30  # bytes of transforms at a time
FEW_TAPS = 4  # up to this many taps the direct sum is fastest (same measurement as `crossover`)


def causal_conv(u: Tensor, k: Tensor, method: str | None = None) -> Tensor:
    """Causal convolution along the last axis; `method` defaults to the fastest (see `crossover`).

    Examples:
        >>> rv.ssm.causal_conv(torch.tensor([1.0, 0, 0, 1]), torch.tensor([1.0, 0.5, 0.25, 0.125])).round(decimals=3)
        tensor([1.0000, 0.5000, 0.2500, 1.1250])
    """
    _check(u, k, method)
    if method is None:
        method = _cheapest(u, k)
    return {"direct": direct_conv, "fft": fft_conv, "toeplitz": toeplitz_conv}[method](u, k)


def direct_conv(u: Tensor, k: Tensor) -> Tensor:
    """The reference: add u, delayed by s and weighted by k_s, for every s.

    Examples:
        >>> rv.ssm.direct_conv(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 0.5]))
        tensor([1.0000, 2.5000])
    """
    l, dtype = u.shape[-1], torch.promote_types(u.dtype, k.dtype)
    u, k = _not_half(u), _not_half(k)
    y = _empty_sum(u, k)
    for s in range(min(l, k.shape[-1])):
        y = y + k[..., s, None] * F.pad(u[..., : l - s], (s, 0))
    return y.to(dtype)


def fft_conv(u: Tensor, k: Tensor) -> Tensor:
    """By the convolution theorem, at a fast length long enough to avoid wrap-around.

    Examples:
        >>> rv.ssm.fft_conv(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 0.5])).round(decimals=4)
        tensor([1.0000, 2.5000])
    """
    l, k = u.shape[-1], k[..., : u.shape[-1]]
    if 0 in (u.numel(), k.numel()):
        return _empty_sum(u, k)
    dtype = torch.promote_types(u.dtype, k.dtype)
    u, k = (_not_half(t.to(dtype)) for t in (u, k))
    n = fast_length(l + k.shape[-1] - 1)
    if dtype.is_complex:
        return torch.fft.ifft(torch.fft.fft(u, n) * torch.fft.fft(k, n), n)[..., :l]
    return torch.fft.irfft(torch.fft.rfft(u, n) * torch.fft.rfft(k, n), n)[..., :l].to(dtype)


def fft_correlation(u: Tensor, g: Tensor) -> Tensor:
    """The gradient of one kernel for each channel, sum over b and t of u_{t-s} g_t: (d, l) of u and g (d, b, l).

    In float32 at least, for as many channels at a time as fit in memory.
    """
    (d, b, l), wide = u.shape, torch.promote_types(u.dtype, torch.float32)
    k, n = u.new_zeros(d, l, dtype=wide), fast_length(2 * l - 1)
    size = max(TRANSFORMS // max(8 * n * b, 1), 1)
    for i in range(0, d if u.numel() else 0, size):
        U, G = (torch.fft.rfft(t[i : i + size].to(wide), n) for t in (u, g))
        k[i : i + size] = torch.fft.irfft((U.conj() * G).sum(1), n)[:, :l]
    return k


def toeplitz_conv(u: Tensor, k: Tensor, block: int = BLOCK) -> Tensor:
    """With time cut into blocks of T steps, y_i = sum_q u_(i-q) M_q, where M_q[s, t] = k_(q T + t - s) is Toeplitz.

    Leading axes over which k is constant become rows of one product, so a kernel shared by a batch costs one matrix.

    Examples:
        >>> rv.ssm.toeplitz_conv(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 0.5]))
        tensor([1.0000, 2.5000])
    """
    l, dtype = u.shape[-1], torch.promote_types(u.dtype, k.dtype)
    k = k[..., :l]
    if 0 in (u.numel(), k.numel()):
        return _empty_sum(u, k)
    u, k = (_not_half(t.to(dtype)) for t in (u, k))
    T = min(block, l)
    blocks = -(-l // T)
    spans = min(blocks, (k.shape[-1] + T - 2) // T + 1)  # a block of taps extends into the next block
    lead = torch.broadcast_shapes(u.shape[:-1], k.shape[:-1])
    shared, own = _split_axes(lead, k)
    rows = u.expand(*lead, l).permute(*own, *shared, len(lead))  # (own..., shared..., l)
    x = F.pad(rows.reshape(math.prod([lead[i] for i in own]), -1, l), (0, blocks * T - l)).unflatten(-1, (blocks, T))
    taps = k.expand(*(1 if i in shared else lead[i] for i in range(len(lead))), k.shape[-1])
    y = _block_products(x, taps.reshape(x.shape[0], -1), spans)  # (own, shared, blocks, T)
    y = y.flatten(-2)[..., :l].reshape(rows.shape)
    order = [*own, *shared]
    return y.permute(*(order.index(i) for i in range(len(lead))), len(lead)).to(dtype)


def _block_products(x: Tensor, k: Tensor, spans: int) -> Tensor:
    """The sum of `toeplitz_conv` over q < spans: x (g, r, blocks, T) and k (g, m) -> (g, r, blocks, T)."""
    g, r, blocks, T = x.shape
    padded = F.pad(k, (T - 1, spans * T - k.shape[-1]))
    windows = padded.unfold(-1, T, 1)  # (g, spans T, T), windows[i, t] = k_(i + t - T + 1): a view
    y = x
    for q in range(spans):  # at least one
        M = windows[:, q * T : (q + 1) * T].flip(1)  # also a copy: overlapping strides would slow down the product
        part = (x[:, :, : blocks - q].reshape(g, -1, T) @ M).view(g, r, blocks - q, T)
        y = y + F.pad(part, (0, 0, q, 0)) if q else part
    return y


def crossover(rows: int) -> int:
    """The longest input for which Toeplitz products are chosen over the FFT, for `rows` sequences per kernel.

    Measured on one x86 core in float32 by benchmarks.cpu.crossover, forward / with gradients, ms per 65,536 samples:

        rows  length   fft          toeplitz
        8     32       0.52 / 1.17  0.42 / 2.71
        32    32       0.31 / 1.16  0.24 / 1.30
        128   32       0.31 / 1.29  0.23 / 0.87
        32    64       0.35 / 1.18  0.31 / 1.22
        128   64       0.37 / 1.21  0.39 / 0.97
        128   128      0.50 / 1.30  0.60 / 1.38
        128   512      0.42 / 1.30  1.60 / 8.34

    Building the matrices pays only for many rows, and the FFT's advantage grows with the length.
    """
    return 64 if rows >= 32 else 0


def _cheapest(u: Tensor, k: Tensor) -> str:
    if k.shape[-1] <= FEW_TAPS:
        return "direct"
    return "toeplitz" if u.shape[-1] <= crossover(rows_per_kernel(u, k)) else "fft"


def rows_per_kernel(u: Tensor, k: Tensor) -> int:
    """The number of sequences sharing each kernel."""
    lead = torch.broadcast_shapes(u.shape[:-1], k.shape[:-1])
    return math.prod(lead) // max(1, math.prod(k.shape[:-1]))


def fast_length(n: int) -> int:
    """The smallest 2^a 3^b 5^c >= n: fast lengths for FFT libraries."""
    best = 1 << max(0, n - 1).bit_length()
    five = 1
    while five < best:
        three = five
        while three < best:
            two = three << max(0, -(-n // three) - 1).bit_length()
            best = min(best, two)
            three *= 3
        five *= 5
    return best


def _split_axes(lead: torch.Size, k: Tensor) -> tuple[list[int], list[int]]:
    """The leading axes over which k is constant, and those with a kernel per entry."""
    missing = len(lead) - (k.dim() - 1)
    shared = [i for i in range(len(lead)) if i < missing or k.shape[i - missing] == 1]
    return shared, [i for i in range(len(lead)) if i not in shared]


def _not_half(t: Tensor) -> Tensor:
    return t.float() if t.dtype in HALF else t


def _empty_sum(u: Tensor, k: Tensor) -> Tensor:
    lead = torch.broadcast_shapes(u.shape[:-1], k.shape[:-1])
    return u.new_zeros(*lead, u.shape[-1], dtype=torch.promote_types(u.dtype, k.dtype))


def _check(u: Tensor, k: Tensor, method: str | None) -> None:
    for name, t in (("u", u), ("k", k)):
        if not isinstance(t, Tensor):
            raise TypeError(
                f"causal_conv: {name} must be a tensor, got {type(t).__name__}; use torch.as_tensor({name})."
            )
        if t.dim() == 0:
            raise ValueError(f"causal_conv: {name} needs a time axis (..., l), got a scalar; use {name}[None].")
        if not (t.is_floating_point() or t.is_complex()):
            raise TypeError(f"causal_conv: {name} must be floating or complex, got {t.dtype}; use {name}.float().")
    try:
        torch.broadcast_shapes(u.shape[:-1], k.shape[:-1])
    except RuntimeError:
        raise ValueError(
            f"causal_conv: the leading axes of u {tuple(u.shape)} and k {tuple(k.shape)} do not broadcast; "
            "give k the size 1 where it is shared."
        ) from None
    if method is not None:
        check_choice("causal_conv", "method", method, METHODS)
