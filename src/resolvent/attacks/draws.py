"""Random numbers per sample: a value depends only on (seed, sample, stream, counter), never on the batch.

Each number is a hash of its address: the finaliser of splitmix64 (Steele, Lea & Flood 2014; constants of Stafford's
variant 13) over int64 tensors, whose products wrap. There is no state, so a batch may be split, shuffled, filtered or
distributed over processes and every sample still gets the same numbers, on any device.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from resolvent.attacks.threat.ball import safe

_WORD = 1 << 64
_GOLDEN = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB


class Draws:
    """Numbers for the samples with the global ids `index` (b,); `Draws.of(x)` numbers the samples of a batch 0, 1, ...

    `uniform(stream, counter, shape)` is (b, *shape): one `stream` per purpose inside an attack, one `counter` per step.
    `fold(key)` gives independent numbers (an attack folds in its name, then the restart); `select` takes a subset.

    Examples:
        >>> rv.attacks.Draws.of(torch.rand(4, 3), seed=1).index
        tensor([0, 1, 2, 3])
    """

    def __init__(self, seed: int, index: Tensor) -> None:
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise TypeError(f"Draws: seed must be a whole number, got {seed!r} of type {type(seed).__name__}.")
        if not isinstance(index, Tensor) or index.dtype != torch.int64 or index.dim() != 1:
            got = f"{index.dtype} {tuple(index.shape)}" if isinstance(index, Tensor) else type(index).__name__
            raise TypeError(f"Draws: index must be an int64 tensor (b,) of sample ids, got {got}; use torch.arange(b).")
        self.seed = seed
        self.index = index
        self._key = _mix(index * _to_int64(_GOLDEN) + _to_int64(_scramble(seed)))  # (b,)

    @classmethod
    def of(cls, x: Tensor, seed: int = 0, first: int = 0) -> Draws:
        """The samples of x, numbered from `first`."""
        return cls(seed, torch.arange(first, first + x.shape[0], device=x.device))

    def __len__(self) -> int:
        return self.index.shape[0]

    def fold(self, key: int | str | Tensor) -> Draws:
        """Independent numbers for the same samples; a tensor (b,) folds in a key per sample."""
        if isinstance(key, Tensor):
            return self._with(self.index, _mix(self._key ^ _mix(key.to(torch.int64) + _to_int64(_FIRST))))
        number = zlib.crc32(key.encode()) + (1 << 40) if isinstance(key, str) else key
        return self._with(self.index, _mix(self._key ^ _to_int64(_scramble(number + _FIRST))))

    def select(self, index: Tensor) -> Draws:
        """The numbers of a subset: row indices or a bool mask of this batch."""
        return self._with(self.index[index], self._key[index])

    def to(self, device: torch.device | str) -> Draws:
        return self._with(self.index.to(device), self._key.to(device))

    def bits(self, stream: int, counter: int, shape: Sequence[int] = ()) -> Tensor:
        """64 random bits each, as int64: (b, *shape)."""
        count = math.prod(shape)
        key = _mix(self._key ^ _to_int64(_scramble(_scramble(stream) + counter)))  # (b,)
        place = torch.arange(1, count + 1, device=key.device) * _to_int64(_GOLDEN)  # (count,)
        return _mix(key[:, None] + place).view(len(self), *shape)

    def uniform(
        self, stream: int, counter: int, shape: Sequence[int] = (), dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """In [0, 1)."""
        digits = 53 if dtype == torch.float64 else 24  # mantissa bits: rounding never reaches 1
        return (_shift(self.bits(stream, counter, shape), 64 - digits)).to(dtype) * 2.0**-digits

    def normal(
        self, stream: int, counter: int, shape: Sequence[int] = (), dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """Standard normal numbers (Box-Muller, in float64 so that devices agree after rounding)."""
        u, v = self.uniform(stream, counter, (*shape, 2), torch.float64).unbind(-1)
        return ((-2 * torch.log1p(-u)).sqrt() * (2 * math.pi * v).cos()).to(dtype)

    def integers(self, low: Any, high: Any, stream: int, counter: int, shape: Sequence[int] = ()) -> Tensor:
        """Integers from low to high - 1, int64; both may be tensors that broadcast to (b, *shape)."""
        u = self.uniform(stream, counter, shape, torch.float64)
        return (u * (high - low)).floor().to(torch.int64) + low

    def sign(self, stream: int, counter: int, shape: Sequence[int] = (), dtype: torch.dtype = torch.float32) -> Tensor:
        """-1 or +1."""
        return (self.bits(stream, counter, shape) < 0).to(dtype) * 2 - 1

    def permutation(self, n: int, stream: int, counter: int) -> Tensor:
        """One permutation of 0 .. n - 1 for each sample: (b, n)."""
        return self.bits(stream, counter, (n,)).argsort(dim=1, stable=True)

    def _with(self, index: Tensor, key: Tensor) -> Draws:
        made = object.__new__(Draws)
        made.seed, made.index, made._key = self.seed, index, key
        return made


def draw_noise(
    norm: str,
    draws: Draws,
    place: tuple[int, int],
    x: Tensor,
    masked: Callable[[Tensor], Tensor],
    count: Tensor,
    surface: bool,
) -> Tensor:
    """Uniform in the unit ball (Linf: each entry); on its surface by scaling (L1: normal numbers, not scaled).

    place   stream and counter of the numbers
    masked  0 where nothing may change
    count   (b,) entries that may change
    """
    shape = x.shape[1:]
    if norm == "linf":
        noise, order = 2 * draws.uniform(*place, shape, x.dtype) - 1, torch.inf
    elif norm == "l2" or surface:
        noise, order = draws.normal(*place, shape, x.dtype), 2.0
    else:  # Laplace's distribution
        u, sign = draws.fold("laplace").uniform(*place, shape, torch.float64), draws.fold("sign")
        noise, order = -torch.log1p(-u).to(x.dtype) * sign.sign(*place, shape, x.dtype), 1.0
    noise = masked(noise)
    if norm == ("l1" if surface else "linf"):
        return noise
    step = noise / safe(_length(noise, order))
    return step if surface else step * _depth(draws, place, x, count)


def _depth(draws: Draws, place: tuple[int, int], x: Tensor, count: Tensor) -> Tensor:
    """Radius of a uniform point of the unit ball of n free entries: U^(1/n).

    Through the logarithm in float64: the last bit of torch's power depends on the size of the tensor.
    """
    u = draws.fold("depth").uniform(*place, (), x.dtype).double()
    depth = torch.exp(torch.log(u) / count.clamp_min(1).double())
    return depth.to(x.dtype).view(-1, *[1] * (x.dim() - 1))


def _length(noise: Tensor, order: float) -> Tensor:
    return torch.linalg.vector_norm(noise.flatten(1), order, dim=1).view(-1, *[1] * (noise.dim() - 1))


def _to_int64(word: int) -> int:
    """The int64 with the same bits."""
    word %= _WORD
    return word - _WORD if word >= _WORD // 2 else word


def _shift(z: Tensor, by: int) -> Tensor:
    """Logical right shift (torch's own is arithmetic)."""
    return (z >> by) & ((1 << (64 - by)) - 1)


def _mix(z: Tensor) -> Tensor:
    z = (z ^ _shift(z, 30)) * _to_int64(_FIRST)
    z = (z ^ _shift(z, 27)) * _to_int64(_SECOND)
    return z ^ _shift(z, 31)


def _scramble(word: int) -> int:
    """`_mix` of one Python integer, after a golden-ratio step so that zero does not stay zero."""
    z = (word + _GOLDEN) % _WORD
    z = (z ^ (z >> 30)) * _FIRST % _WORD
    z = (z ^ (z >> 27)) * _SECOND % _WORD
    return z ^ (z >> 31)
