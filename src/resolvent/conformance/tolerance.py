"""Tolerances between two computations of the same number, per dtype, and the measure of their distance.

One table for the whole project: the conformance suite and the tests read it from here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map

VALUES = {torch.float64: 1e-10, torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-2}
GRADIENTS = {torch.float64: 1e-10, torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 2e-2}
FLOOR = 1e-3  # small tensors are measured relative to at least this share of the largest one


def leaves(tree: Any) -> list[Tensor]:
    """The tensors of a nested state, output or gradient, in a fixed order."""
    return [leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, Tensor)]


def map_tensors(change: Callable[[Tensor], Tensor], tree: Any) -> Any:
    """The same nest with every tensor changed; non-tensors (such as None) are unchanged."""
    return tree_map(lambda leaf: change(leaf) if isinstance(leaf, Tensor) else leaf, tree)


def is_inexact(t: Tensor) -> bool:
    """Real or complex numbers, which round; not indices or flags, which must agree exactly."""
    return t.is_floating_point() or t.is_complex()


def distance(got: Any, want: Any) -> float:
    """The largest |got - want| over all tensors, relative to the largest |want| of each tensor.

    Infinity where one side is not finite and the other is, or where flags and indices differ.
    """
    pairs = list(zip(leaves(got), leaves(want), strict=True))
    scales = [_size(w) for _, w in pairs]
    floor = max(FLOOR * max(scales, default=0.0), 1e-30)
    return max((_one(g, w, max(s, floor)) for (g, w), s in zip(pairs, scales, strict=True)), default=0.0)


def _size(t: Tensor) -> float:
    t = t.detach()
    if not is_inexact(t) or t.numel() == 0:
        return 0.0
    wide = _widen(t)
    finite = wide.abs()[torch.isfinite(wide)]
    return float(finite.max()) if finite.numel() else 0.0


def _one(got: Tensor, want: Tensor, scale: float) -> float:
    got, want = got.detach(), want.detach()
    if got.shape != want.shape:
        raise ValueError(f"expected a tensor of shape {tuple(want.shape)}, got {tuple(got.shape)}")
    if got.numel() == 0:
        return 0.0
    if not is_inexact(want):
        return 0.0 if torch.equal(got.to(want.dtype), want) else float("inf")
    got, want = _widen(got), _widen(want)
    equal = (got == want) | (torch.isnan(got) & torch.isnan(want))
    gap = torch.where(equal, 0.0, (got - want).abs()) / scale
    return float(torch.nan_to_num(gap, nan=float("inf")).max())


def _widen(t: Tensor) -> Tensor:
    return t.to(torch.complex128 if t.is_complex() else torch.float64)
