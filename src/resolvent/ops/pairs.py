"""Complex numbers as pairs of real tensors, for code that is traced.

Compilers and exchange formats lack complex numbers. In a traced pass (`runtime.transforms.is_traced`), `join_parts`
and `complex_of` return a `Pair` instead of a complex tensor; the layers' formulas are written once for both. Products
with a real tensor use the methods of both, `z.mul(dt)`: the compiler would handle `z * dt` itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from resolvent.runtime.transforms import is_traced

Number = Any  # a complex or real tensor, or a Pair
Make = Callable[[Tensor, Tensor], Number]  # re + i im: `join_parts`, or `torch.complex` outside tracing


@dataclass(frozen=True)
class Pair:
    """re + i im, of one shape."""

    real: Tensor
    imag: Tensor

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the parts."""
        return self.real.dtype

    @property
    def shape(self) -> torch.Size:
        return self.real.shape

    def is_complex(self) -> bool:
        return True

    def __getitem__(self, key: Any) -> Pair:
        return Pair(self.real[key], self.imag[key])

    def add(self, other: Number) -> Pair:
        if isinstance(other, Pair):
            return Pair(self.real + other.real, self.imag + other.imag)
        return Pair(self.real + other, self.imag)

    def sub(self, other: Number) -> Pair:
        if isinstance(other, Pair):
            return Pair(self.real - other.real, self.imag - other.imag)
        return Pair(self.real - other, self.imag)

    def __neg__(self) -> Pair:
        return Pair(-self.real, -self.imag)

    def mul(self, other: Number) -> Pair:
        if isinstance(other, Pair):
            re = self.real * other.real - self.imag * other.imag
            return Pair(re, self.real * other.imag + self.imag * other.real)
        return Pair(self.real * other, self.imag * other)

    def div(self, other: Number) -> Pair:
        if isinstance(other, Pair):
            return self.mul(other.reciprocal())
        return Pair(self.real / other, self.imag / other)

    __add__, __sub__, __mul__, __truediv__ = add, sub, mul, div

    def conj(self) -> Pair:
        return Pair(self.real, -self.imag)

    def square_modulus(self) -> Tensor:
        return self.real.square() + self.imag.square()

    def abs(self) -> Tensor:
        """The modulus, with gradient zero at zero, where it is undefined."""
        return torch.sqrt(self.square_modulus().clamp_min(torch.finfo(self.dtype).tiny))

    def exp(self) -> Pair:
        size = torch.exp(self.real)
        return Pair(size * torch.cos(self.imag), size * torch.sin(self.imag))

    def reciprocal(self) -> Pair:
        size = self.square_modulus()
        return Pair(self.real / size, -self.imag / size)

    def flatten(self, first: int, last: int) -> Pair:
        return Pair(self.real.flatten(first, last), self.imag.flatten(first, last))

    def repeat_interleave(self, count: int, dim: int) -> Pair:
        return Pair(self.real.repeat_interleave(count, dim), self.imag.repeat_interleave(count, dim))

    def detach(self) -> Pair:
        return Pair(self.real.detach(), self.imag.detach())

    def to(self, dtype: torch.dtype) -> Pair:
        """Parts in the real `dtype`."""
        return Pair(self.real.to(dtype), self.imag.to(dtype))


def join_parts(re: Tensor, im: Tensor) -> Number:
    """re + i im: a complex tensor, or a Pair in a traced pass."""
    if is_traced(re):
        re, im = torch.broadcast_tensors(re, im)
        return Pair(re, im)
    return torch.complex(re, im)


def complex_of(p: Tensor) -> Number:
    """Real pairs (..., 2) as complex numbers (...): a tensor, or a Pair in a traced pass."""
    return Pair(p[..., 0], p[..., 1]) if is_traced(p) else torch.view_as_complex(p.contiguous())


def where(condition: Tensor, a: Number, b: Number) -> Number:
    """Elementwise; a and b are of the same kind, or real numbers."""
    if not isinstance(a, Pair) and not isinstance(b, Pair):
        return torch.where(condition, a, b)
    (re_a, im_a), (re_b, im_b) = parts(a), parts(b)
    return Pair(torch.where(condition, re_a, re_b), torch.where(condition, im_a, im_b))


def parts(z: Number) -> tuple[Any, Any]:
    """Real and imaginary part; 0 for the imaginary part of a real one."""
    return (z.real, z.imag) if isinstance(z, Pair) or (isinstance(z, Tensor) and z.is_complex()) else (z, 0.0)


def stack_parts(z: Number) -> Tensor:
    """Real pairs (..., 2) of a Pair or of a complex tensor; a real tensor unchanged."""
    if isinstance(z, Pair):
        return torch.stack([z.real, z.imag], -1)
    return torch.view_as_real(z.resolve_conj()) if z.is_complex() else z


def tensor_of(z: Number) -> Tensor:
    """A complex tensor from a Pair; other tensors unchanged. For states, which are always complex for callers."""
    return torch.complex(z.real, z.imag) if isinstance(z, Pair) else z


def reals(z: Number) -> Tensor:
    """(..., n) as reals (..., 2n), real and imaginary parts interleaved; real z unchanged."""
    return stack_parts(z).flatten(-2) if z.is_complex() else z


def join_pairs(t: Tensor, dims: int) -> Tensor:
    """Complex numbers from pairs (..., 2) with `dims` dimensions; real ones, with one dimension less, unchanged."""
    return torch.view_as_complex(t.contiguous()) if t.dim() == dims else t
