"""Input checks of a layer: what was expected, what came, what to do. Nothing is changed on failure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from resolvent.runtime.transforms import is_recorded
from resolvent.usage.numbers import check_count

if TYPE_CHECKING:
    from resolvent.layers.contract import Layer, Spec


def check_positive(where: str, **sizes: int) -> None:
    known = {name: value for name, value in sizes.items() if not isinstance(value, torch.SymInt)}
    check_count(where, 1, **known)  # symbolic sizes of a traced pass cannot be checked


def check_even(where: str, d_state: int) -> None:
    check_positive(where, d_state=d_state)
    if d_state % 2:
        raise ValueError(
            f"{where}: d_state must be even because one of each conjugate pair is kept, got {d_state}; "
            f"use {d_state - 1 or 2} or {d_state + 1}."
        )


def no_streaming(layer: Layer, what: str) -> str:
    return (
        f"{type(layer).__name__} is bidirectional, so {what!r} has no meaning: the backward direction needs the whole "
        "sequence. Call layer(x), or build the layer with bidirectional=False to stream."
    )


def check_one_direction(layer: Layer) -> None:
    """Required before a layer is treated as a system."""
    if layer.bidirectional:
        name = type(layer).__name__
        raise ValueError(f"{name}: a bidirectional layer is no causal system; build it with bidirectional=False.")


def check_perturbation(where: str, init: str, size: Any) -> None:
    """The size ||E|| / ||A|| of the PTD perturbation; None means not given."""
    if size is None:
        return
    if init != "ptd":
        raise ValueError(f'{where}: perturbation is the size of PTD\'s E; set init="ptd", or leave it out.')
    if isinstance(size, bool) or not isinstance(size, int | float) or not 0 < size < float("inf"):
        raise ValueError(f"{where}: expected a perturbation ||E|| / ||A|| above 0, such as 0.1, got {size!r}.")


def check_tensor(layer: Layer, x: Any, rank: int, shape: str) -> None:
    name = type(layer).__name__
    if not isinstance(x, Tensor):
        raise TypeError(f"{name}: expected a tensor {shape}, got {type(x).__name__}; use torch.as_tensor(x).")
    if x.dim() != rank:
        raise ValueError(f"{name}: expected x of shape {shape}, got {tuple(x.shape)}; add or remove axes to match.")
    if x.shape[-1] != layer.d_model:
        raise ValueError(
            f"{name}: expected {layer.d_model} channels in the last axis (d_model), got {tuple(x.shape)}; "
            "project the input first or build the layer with that width."
        )
    parameter = layer.anchor
    if x.dtype != parameter.dtype and x.dtype not in (torch.bfloat16, torch.float16):
        or_layer = f" or layer.to({x.dtype})" if x.is_floating_point() else ""
        raise TypeError(
            f"{name}: expected {parameter.dtype} (the layer's dtype) or a half type, got {x.dtype}; "
            f"convert with x.to({parameter.dtype}){or_layer}."
        )
    if x.device != parameter.device:
        raise ValueError(
            f"{name}: expected x on {parameter.device} where the layer is, got {x.device}; "
            f"use x.to({str(parameter.device)!r})."
        )


def check_sequence(layer: Layer, x: Tensor, lengths: Tensor | None) -> None:
    check_tensor(layer, x, 3, "(batch, length, d_model)")
    if x.shape[0] == 0:
        raise ValueError(f"{type(layer).__name__}: expected at least one sequence, got a batch of zero; skip the call.")
    if lengths is not None:
        check_lengths(type(layer).__name__, lengths, x.shape[0], x.shape[1], x.device)
    if layer.check_finite:
        mask = padding_mask(x, lengths)
        _check_finite(layer, x if mask is None else x.masked_fill(mask, 0))


def _check_finite(layer: Layer, x: Tensor) -> None:
    if not bool(torch.isfinite(x).all()):
        raise ValueError(
            f"{type(layer).__name__}: x holds NaN or infinity at {_first_bad(x)}; clean the input, "
            "or switch check_finite off to let it pass."
        )


def no_time(layer: Layer) -> str:
    """The error message for a layer without continuous time that is given dt or rate."""
    name = type(layer).__name__
    why = {
        "EMA": "its weights belong to steps, and no time constant stands behind them",
        "LRU": "its eigenvalues belong to steps, and no time step stands behind them",
        "L2RU": "its gain is certified step by step, and no time step stands behind it",
        "RGLRU": "its gates belong to steps, and no time constant stands behind them",
        "S4": "its kernel is made for even steps",
        "DSS": "its kernel is made for even steps",
    }.get(name, "it has no continuous time")
    return f"{name} takes no dt or rate: {why}; use S4D, S5 or S6, or resample the input to even steps."


def check_time(layer: Layer, x: Tensor, dt: Tensor | None, rate: float | None, lengths: Tensor | None) -> Tensor:
    """dt (b, l); must be positive and finite at every valid step."""
    name = type(layer).__name__
    if rate is not None:
        if dt is not None:
            raise ValueError(f"{name}: give dt or rate, not both.")
        if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < float("inf"):
            raise ValueError(f"{name}: rate must be a positive number, got {rate!r}.")
        return torch.full(x.shape[:2], 1.0 / rate, dtype=layer.dtype, device=x.device)
    if not isinstance(dt, Tensor) or not dt.is_floating_point() or dt.shape != x.shape[:2]:
        got = f"{dt.dtype} {tuple(dt.shape)}" if isinstance(dt, Tensor) else type(dt).__name__
        raise ValueError(f"{name}: dt must be real numbers (batch, length) = {tuple(x.shape[:2])}, got {got}.")
    if is_recorded(dt) or _is_functorch(dt):
        return dt  # values cannot be read while tracing
    held, mask = dt.detach(), padding_mask(x, lengths)
    held = held if mask is None else held.masked_fill(mask[..., 0], 1.0)
    if not bool(((held > 0) & torch.isfinite(held)).all()):
        raise ValueError(f"{name}: dt must be positive and finite at every step; got {float(held.min()):g}.")
    return dt


def step_time(layer: Layer, x_t: Tensor, dt: Tensor | float) -> Tensor:
    """dt of one step for each sequence: (b,)."""
    time = dt if isinstance(dt, Tensor) else torch.as_tensor(dt, dtype=layer.dtype, device=x_t.device)
    if not time.is_floating_point() or time.shape not in ((), x_t.shape[:1]):
        got = f"{time.dtype} {tuple(time.shape)}"
        raise ValueError(f"{type(layer).__name__}: dt must be real numbers ({len(x_t)},), or one, got {got}.")
    return time.expand(x_t.shape[:1])


def check_lasting(layer: Layer) -> None:
    """Require a state whose size is constant over time."""
    if layer.bidirectional:
        raise ValueError(no_streaming(layer, "states"))
    if grows(layer.known_spec(1)):
        raise TypeError(
            f"{type(layer).__name__}.states: the state grows with time; layer(x[:, : t + 1]) returns that after step t."
        )


def grows(spec: Any) -> bool:
    if isinstance(spec, dict | tuple):
        return any(map(grows, spec.values() if isinstance(spec, dict) else spec))
    return None in spec.shape


def check_places(layer: Layer, at: Any, l: int) -> list[int]:
    """The time steps of `at` as indices from 0; None means all."""
    given = at.tolist() if hasattr(at, "tolist") else at
    many = list(range(l)) if given is None else [given] if isinstance(given, int) else given
    if not isinstance(many, Sequence) or any(type(t) is not int or not -l <= t < l for t in many):
        raise ValueError(f"{type(layer).__name__}.states: steps must lie in {-l} .. {l - 1}, got at={at!r}.")
    return [t % l for t in many]


def check_lengths(where: str, lengths: Any, batch: int, longest: int, device: torch.device | None = None) -> None:
    if not isinstance(lengths, Tensor) or lengths.dtype not in (torch.int64, torch.int32):
        got = f"a tensor of {lengths.dtype}" if isinstance(lengths, Tensor) else type(lengths).__name__
        raise TypeError(
            f"{where}: lengths must be an integer tensor of shape ({batch},), got {got}; use torch.tensor([...])."
        )
    if lengths.shape != (batch,):
        raise ValueError(
            f"{where}: lengths must have one entry per sequence, shape ({batch},); got {tuple(lengths.shape)}."
        )
    if device is not None and lengths.device != device:
        raise ValueError(
            f"{where}: expected lengths on {device} where x is, got {lengths.device}; use lengths.to({str(device)!r})."
        )
    if is_recorded(lengths) or _is_functorch(lengths):
        return  # values cannot be read while tracing
    if lengths.is_cuda and torch.cuda.is_current_stream_capturing():
        return  # nor during CUDA graph capture; the caller has checked them
    low, high = int(lengths.min()), int(lengths.max())
    if low < 1 or high > longest:
        raise ValueError(
            f"{where}: every length must be from 1 to {longest} (the padded length), got {low} to {high}; "
            "drop empty sequences and do not count padding."
        )


def check_step(layer: Layer, x_t: Tensor) -> None:
    check_tensor(layer, x_t, 2, "(batch, d_model)")
    if layer.check_finite:
        _check_finite(layer, x_t)


def check_state(layer: Layer, state: Any, batch: int) -> None:
    _check_part(layer, state, layer.known_spec(batch), "state")


def _check_part(layer: Layer, part: Any, spec: Any, path: str) -> None:
    name = type(layer).__name__
    hint = "pass what this layer returned last, or layer.initial_state(batch)."
    if isinstance(spec, dict):
        if not isinstance(part, dict) or part.keys() != spec.keys():
            got = sorted(part) if isinstance(part, dict) else type(part).__name__
            raise _wrong(part, dict, f"{name}: expected {path} with the entries {sorted(spec)}, got {got}; {hint}")
        for key in spec:
            _check_part(layer, part[key], spec[key], f"{path}[{key!r}]")
    elif isinstance(spec, tuple):
        if not isinstance(part, tuple) or len(part) != len(spec):
            got = f"{len(part)} parts" if isinstance(part, tuple) else type(part).__name__
            raise _wrong(part, tuple, f"{name}: expected {path} as a tuple of {len(spec)}, got {got}; {hint}")
        for i, (p, s) in enumerate(zip(part, spec, strict=True)):
            _check_part(layer, p, s, f"{path}[{i}]")
    else:
        _check_leaf(layer, part, spec, path, hint)


def _check_leaf(layer: Layer, part: Any, spec: Spec, path: str, hint: str) -> None:
    name = type(layer).__name__
    if not isinstance(part, Tensor):
        raise TypeError(f"{name}: expected {path} to be a tensor, got {type(part).__name__}; {hint}")
    shape = tuple(part.shape)
    if len(shape) != len(spec.shape) or any(w is not None and w != g for w, g in zip(spec.shape, shape, strict=True)):
        raise ValueError(
            f"{name}: expected {path} of shape {spec.shape}, got {shape}: another layer's or batch's? {hint}"
        )
    if part.dtype != spec.dtype:
        raise TypeError(f"{name}: expected {path} in {spec.dtype}, got {part.dtype}; {hint}")
    device = layer.anchor.device
    if part.device != device:
        raise ValueError(f"{name}: expected {path} on {device}, got {part.device}; move it with .to({str(device)!r}).")
    if layer.check_finite and not bool(torch.isfinite(part).all()):
        raise ValueError(f"{name}: {path} holds NaN or infinity at {_first_bad(part)}; start again from initial_state.")


def padding_mask(x: Tensor, lengths: Tensor | None) -> Tensor | None:
    """True where x (b, l, d) is padding: (b, l, 1)."""
    if lengths is None:
        return None
    return (torch.arange(x.shape[1], device=x.device) >= lengths[:, None])[..., None]


def _wrong(part: Any, kind: type, message: str) -> Exception:
    return ValueError(message) if isinstance(part, kind) else TypeError(message)


def _first_bad(x: Tensor) -> tuple[int, ...]:
    return tuple(int(i) for i in (~torch.isfinite(x)).nonzero()[0])


def _is_functorch(x: Tensor) -> bool:
    return torch._C._functorch.is_functorch_wrapped_tensor(x)
