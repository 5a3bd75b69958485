"""Shuffles that depend on a seed alone: the same on every machine and with every version of numpy or torch."""

from __future__ import annotations

import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX2 = np.uint64(0x94D049BB133111EB)


def mix_bits(values: np.ndarray) -> np.ndarray:
    """SplitMix64's finaliser on uint64: every bit of the input reaches every bit of the output."""
    with np.errstate(over="ignore"):  # arithmetic modulo 2^64 is intended
        z = values + _GOLDEN
        z = (z ^ (z >> np.uint64(30))) * _MIX1
        z = (z ^ (z >> np.uint64(27))) * _MIX2
        return z ^ (z >> np.uint64(31))


def fold(*numbers: int) -> int:
    """One 63-bit seed from several integers, order-dependent: (seed, epoch), (seed, step), ..."""
    state = np.zeros(1, dtype=np.uint64)
    for number in numbers:
        state = mix_bits(state ^ mix_bits(np.array([number % 2**64], dtype=np.uint64)))
    return int(state[0] >> np.uint64(1))


def shuffle(n: int, *seed: int) -> np.ndarray:
    """A permutation of 0 .. n-1 (n,) int64 for the seed: sample ids sorted by their hash."""
    start = np.uint64(fold(*seed))
    with np.errstate(over="ignore"):
        keys = mix_bits(mix_bits(np.arange(n, dtype=np.uint64)) + start)
    return np.argsort(keys, kind="stable")


def uniform(shape: tuple[int, ...], *seed: int) -> np.ndarray:
    """Numbers in [0, 1) of that shape, float64: 53 bits of the hash of their index."""
    with np.errstate(over="ignore"):
        keys = mix_bits(mix_bits(np.arange(int(np.prod(shape)), dtype=np.uint64)) + np.uint64(fold(*seed)))
    return (keys >> np.uint64(11)).reshape(shape) * 2.0**-53
