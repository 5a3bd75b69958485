"""Checks of a threat, alone and against a batch: each error says what was expected, what came, and what to do."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from resolvent.attacks.threat.channels import channels_of

_NORMS = {"linf": "linf", "inf": "linf", "l∞": "linf", "l2": "l2", "2": "l2", "l1": "l1", "1": "l1"}


def named_norm(norm: Any) -> Any:
    """The norm's canonical name: "Linf", "L_inf", "L-2" and the like are accepted."""
    spelled = norm.lower().replace("_", "").replace("-", "").replace(" ", "") if isinstance(norm, str) else norm
    found = _NORMS.get(spelled) if isinstance(spelled, str) else None
    if found is None:
        raise ValueError(f"Threat: norm must be 'linf', 'l2' or 'l1'; got {norm!r}.")
    return found


def from_numpy(value: Any) -> Any:
    """numpy's numbers as Python's own, also in a tuple, and its arrays as tensors; others as they are."""
    if isinstance(value, tuple):
        return tuple(map(from_numpy, value))
    if isinstance(value, np.ndarray) and value.ndim:
        return torch.from_numpy(value.copy())
    return value.item() if isinstance(value, np.generic | np.ndarray) else value


def check_eps(eps: Any) -> None:
    if isinstance(eps, list):
        raise TypeError(
            f"Threat: eps in a list {eps!r}: one for each channel is a tuple, one for each sample a tensor (b,); "
            "several sizes of attack go to evaluate(..., eps=[...])."
        )
    _check_numbers("eps", eps)
    values = eps if isinstance(eps, Tensor) else torch.as_tensor(eps, dtype=torch.float64)
    if not bool(torch.isfinite(values).all()) or bool((values < 0).any()):
        raise ValueError(f"Threat: eps must be finite and not negative, got {_worst(values)}.")


def check_bounds(bounds: Any) -> None:
    if bounds is None:
        return
    if not isinstance(bounds, tuple | list) or len(bounds) != 2:
        raise TypeError(f"Threat: bounds must be None or a pair (low, high), got {bounds!r}.")
    for name, value in zip(("low", "high"), bounds, strict=True):
        _check_numbers(name, value)
        if bool(torch.isnan(torch.as_tensor(value)).any()):
            raise ValueError(f"Threat: the {name} bound holds NaN; use -inf or inf for an open side.")
    low, high = (torch.as_tensor(v) for v in bounds)
    try:
        crossed = bool((low.to(high.device) > high).any())
    except RuntimeError as error:
        raise ValueError(
            f"Threat: bounds of shapes {tuple(low.shape)} and {tuple(high.shape)} do not fit together."
        ) from error
    if crossed:
        raise ValueError("Threat: the low bound lies above the high bound; give them as (low, high).")


def check_mask(mask: Any) -> None:
    if mask is not None and (not isinstance(mask, Tensor) or mask.dtype != torch.bool):
        got = f"a tensor of {mask.dtype}" if isinstance(mask, Tensor) else type(mask).__name__
        raise TypeError(f"Threat: mask must be a bool tensor, True where the attacker may act; got {got}.")


def check_input(x: Any, eps: Any, bounds: Any, mask: Tensor | None) -> None:
    """Checks of the type and shape of x."""
    if not isinstance(x, Tensor) or not x.is_floating_point():
        got = f"a tensor of {x.dtype}" if isinstance(x, Tensor) else type(x).__name__
        raise TypeError(
            f"Threat: x must be a tensor of real numbers, got {got}; attack a token model after its embedding."
        )
    if x.dim() < 2 or x.numel() == 0:
        raise ValueError(
            f"Threat: x must be (batch, ...) with at least one sample and one value in it, got shape {tuple(x.shape)}."
        )
    if isinstance(eps, Tensor) and eps.dim() == 1 and eps.shape[0] not in (1, x.shape[0]):
        raise ValueError(
            f"Threat: eps must have one entry per sample ({x.shape[0]}), got {eps.shape[0]}; one for each channel is a "
            "tuple."
        )
    if isinstance(eps, Tensor) and eps.dim() > 1:
        _check_broadcast("eps", x, eps)
    for name, value in zip(("eps", "low", "high"), (eps, *(bounds or ())), strict=False):
        _check_channels(name, x, value)
    for bound in bounds or ():
        if isinstance(bound, Tensor):
            _check_broadcast("bounds", x, bound)
    _check_mask_fits(x, mask)


def _check_mask_fits(x: Tensor, mask: Tensor | None) -> None:
    if mask is None:
        return
    fits = mask.dim() <= x.dim() and all(m in (1, n) for m, n in zip(mask.shape, x.shape, strict=False))
    if not fits:
        raise ValueError(f"Threat: the mask must match x's leading axes {tuple(x.shape)}, got {tuple(mask.shape)}.")


def _check_broadcast(name: str, x: Tensor, value: Tensor) -> None:
    tail = x.shape[x.dim() - value.dim() :] if value.dim() <= x.dim() else None
    if tail is None or any(m not in (1, n) for m, n in zip(value.shape, tail, strict=True)):
        raise ValueError(f"Threat: {name} must broadcast to x {tuple(x.shape)}, got a tensor {tuple(value.shape)}.")


def _check_channels(name: str, x: Tensor, value: Any) -> None:
    if isinstance(value, tuple) and len(value) != channels_of(x):
        raise ValueError(
            f"Threat: {name} holds {len(value)} values, one for each channel, but x {tuple(x.shape)} has "
            f"{channels_of(x)} channels; give as many, or one number for all."
        )


def _check_numbers(name: str, value: Any) -> None:
    """Require a number, a tensor, or a tuple of numbers."""
    if isinstance(value, tuple) and value:
        for entry in value:
            _check_numbers(name, None if isinstance(entry, Tensor | tuple) else entry)
        return
    real = isinstance(value, int | float) and not isinstance(value, bool)
    tensor = isinstance(value, Tensor) and not value.is_complex() and value.dtype != torch.bool
    if not (real or tensor):
        raise TypeError(
            f"Threat: {name} must be a number, a tuple of numbers or a tensor, got {value!r} of type "
            f"{type(value).__name__}."
        )


def _worst(values: Tensor) -> float:
    flat = values.flatten().double()
    bad = flat[~torch.isfinite(flat)]
    return float(bad[0]) if bad.numel() else float(flat.min())
