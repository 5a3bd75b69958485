"""The causal filters of `filter` by the convolution theorem: for sequences too long for Toeplitz products.

With F the real transform of n >= 2 l - 1 steps, which leaves room for no wrap-around,

    y = F⁻¹(F x · F k),    ∂x = F⁻¹(F ∂y · ‾F k),    ∂k = F⁻¹(sum over b of ‾F x · F ∂y)

in float32 at least, whatever x is in, and so many channels at a time that their transforms fit in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from resolvent.ssm.convolution import fast_length, fft_conv
from resolvent.ssm.filter import Filter

CHUNK = 1 << 30  # bytes of the transforms under way


@dataclass(frozen=True)
class Fourier(Filter):
    """The kernel (d, l) and its transform over n (d, 1, n/2 + 1): the way back then divides by nothing."""

    kernel: Tensor
    spectrum: Tensor
    n: int

    @property
    def learned(self) -> tuple[Tensor, ...]:
        return (self.kernel,)

    def detached(self) -> Fourier:
        return Fourier(self.kernel.detach(), self.spectrum, self.n)

    def forward(self, x: Tensor) -> Tensor:
        return self._through(x, self.spectrum, None)

    def adjoint(self, gy: Tensor, onto: Tensor | None = None) -> Tensor:
        return self._through(gy, self.spectrum.conj(), onto)

    def taps(self, x: Tensor, gy: Tensor) -> tuple[Tensor, ...]:
        return (correlated(x, gy, self.n).to(self.kernel.dtype),)

    def _through(self, x: Tensor, spectrum: Tensor, onto: Tensor | None) -> Tensor:
        y = torch.empty_like(x) if onto is None else onto
        for c in _chunks(x, self.n):
            X = torch.fft.rfft(_wide(x[c]), self.n)
            found = torch.fft.irfft(X.mul_(spectrum[c]), self.n, norm="forward")[..., : x.shape[-1]]
            y[c] = found if onto is None else found + onto[c]  # rounded once
        return y

    def plain(self, x: Tensor, *learned: Tensor) -> Tensor:
        (kernel,) = learned
        return fft_conv(x, kernel.to(x.dtype)[:, None])


def fourier(kernel: Tensor) -> Fourier:
    """The filter of kernel (d, l)."""
    n = fast_length(2 * kernel.shape[-1] - 1)
    return Fourier(kernel, torch.fft.rfft(_wide(kernel.detach()), n, norm="forward")[:, None], n)


def correlated(x: Tensor, gy: Tensor, n: int | None = None) -> Tensor:
    """∂k_s = sum over b and t of x_{t-s} ∂y_t, (d, l) of x and ∂y (d, b, l)."""
    (d, _, l), n = x.shape, n or fast_length(2 * x.shape[-1] - 1)
    found = x.new_zeros(d, l, dtype=_wide(x[:0]).dtype)
    for c in _chunks(x, n):
        X, G = (torch.fft.rfft(_wide(t[c]), n) for t in (x, gy))
        found[c] = torch.fft.irfft((X.conj() * G).sum(1), n)[:, :l]
    return found


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _chunks(x: Tensor, n: int) -> Iterator[slice]:
    """Slices of the channels of x (d, b, l), whose transforms take about CHUNK bytes each; none of an empty x."""
    size = max(CHUNK // max(8 * n * x.shape[1], 1), 1)  # float32: n / 2 complex numbers, and as many real ones
    return (slice(i, i + size) for i in range(0, x.shape[0] if x.numel() else 0, size))
