"""Checks before an evaluation: refuse data, labels and models that cannot be attacked."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor


def check_data(where: str, x: Any, y: Any) -> None:
    """x (b, ...) real, y (b,) integers, at least one sample."""
    if not isinstance(x, Tensor) or not isinstance(y, Tensor):
        raise TypeError(
            f"{where}: x and y must be tensors, got {type(x).__name__} and {type(y).__name__}; use torch.as_tensor."
        )
    if not x.is_floating_point():
        raise TypeError(
            f"{where}: x must be real, got {x.dtype}; scale integers yourself, and attack a token model in embedding "
            "space: hand over model.from_embedding and x = model.embed(tokens)."
        )
    if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
        raise TypeError(f"{where}: y must hold class numbers (int64), got {y.dtype}.")
    if x.dim() < 2 or y.shape != x.shape[:1]:
        raise ValueError(
            f"{where}: expected x (b, ...) and y (b,), got {tuple(x.shape)} and {tuple(y.shape)}; "
            "one sample is x[None]."
        )
    if x.shape[0] == 0:
        raise ValueError(f"{where}: there is no sample; x has shape {tuple(x.shape)}.")
    if not bool(torch.isfinite(x).all()):
        bad = int((~torch.isfinite(x).flatten(1).all(1)).nonzero()[0])
        raise ValueError(f"{where}: x holds NaN or infinity, first in sample {bad}; clean the data.")


def check_logits(where: str, logits: Tensor, y: Tensor) -> None:
    """(b, k) with k >= 2, every label below k, and finite."""
    check_classes(where, logits, y)
    check_finite(where, logits)


def check_classes(where: str, logits: Tensor, y: Tensor) -> None:
    if logits.dim() != 2 or logits.shape[1] < 2:
        raise ValueError(
            f"{where}: the model must return logits (b, classes) with at least 2 classes, got {tuple(logits.shape)}; "
            "turn one logit z into torch.stack([-z, z], 1) / 2, and pool outputs per time step."
        )
    low, high = int(y.min()), int(y.max())
    if low < 0 or high >= logits.shape[1]:
        raise ValueError(
            f"{where}: labels must lie in 0 .. {logits.shape[1] - 1}, as the model has {logits.shape[1]} outputs; "
            f"got labels from {low} to {high}."
        )


def check_finite(where: str, logits: Tensor) -> None:
    wrong = ~torch.isfinite(logits).all(1)
    if bool(wrong.any()):
        raise ValueError(
            f"{where}: the model returns NaN or infinity on {int(wrong.sum())} of {len(wrong)} unperturbed samples; "
            "fix the model first; nothing can be said about its robustness."
        )


def gather(where: str, data: Any, samples: int | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """(x, y, lengths or None): given as such, or the first `samples` of a loader of such batches."""
    if isinstance(data, tuple | list) and len(data) in (2, 3) and isinstance(data[0], Tensor):
        return _first([_batch(where, data)], samples)
    if not isinstance(data, Iterable):
        raise TypeError(f"{where}: data must be (x, y) or a loader of such pairs, got {type(data).__name__}.")
    batches, held = [], 0
    for batch in data:
        batches.append(_batch(where, batch))
        held += len(batches[-1][0])
        if samples is not None and held >= samples:
            break
    if not held:
        raise ValueError(f"{where}: the loader is empty: it yielded no batch; check its dataset and sampler.")
    return _first(batches, samples)


def _first(batches: list[tuple[Tensor, ...]], samples: int | None) -> tuple[Tensor, Tensor, Tensor | None]:
    x, y, *rest = (
        torch.cat(column)[:samples] if len(column) > 1 else column[0][:samples] for column in zip(*batches, strict=True)
    )
    return x, y, rest[0] if rest else None


def _batch(where: str, batch: Any) -> tuple[Tensor, ...]:
    """(x, y) or (x, y, lengths)."""
    held = isinstance(batch, tuple | list) and len(batch) in (2, 3) and all(isinstance(t, Tensor) for t in batch)
    if not held:
        got = f"{len(batch)} values" if isinstance(batch, tuple | list) else type(batch).__name__
        raise TypeError(f"{where}: the loader must yield pairs of tensors (x, y), or (x, y, lengths); got {got}.")
    return tuple(batch)
