"""The fast path of `Layer.step`: inside `frozen()`, without hooks or gradients, a few checks and one kernel call.

A step of a small batch takes a few microseconds, less than the full checks and a handful of torch calls.
Any case the fast path does not cover (another dtype, shape or device, a gradient, a transform, the compiler, a forced
backend, invalid input) falls back to the general path, which handles it or raises the error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from resolvent.ops.step import Pair, Step
from resolvent.runtime.dispatch import is_forced

if TYPE_CHECKING:
    from resolvent.layers.contract import Layer

_KEY = "fast"


class _Fast(NamedTuple):
    """Expected properties of u (b, d) and h (b, ...), and the step function itself."""

    step: Step
    d: int
    tail: tuple[int, ...]  # of h's shape
    dtype: torch.dtype
    kind: torch.dtype  # of h


def try_step(layer: Layer, u: Tensor, h: Tensor) -> Pair | None:
    """Take the step, or return None where the general path must."""
    tables = layer._tables
    if (
        tables is None
        or not (type(u) is Tensor and u.is_cpu)
        or torch.compiler.is_compiling()
        or layer.check_finite
        or is_forced()
        or "_step" in layer.__dict__
    ):
        return None
    if type(h) is not Tensor or not h.is_cpu or _is_watched(u, h):
        return None
    if _KEY not in tables:
        tables[_KEY] = _open(layer)
    fast: _Fast | None = tables[_KEY]
    if fast is None or u.dtype is not fast.dtype or h.dtype is not fast.kind:
        return None
    shape = u.shape
    if len(shape) != 2 or shape[1] != fast.d or h.shape != (shape[0], *fast.tail):
        return None
    return fast.step(u, h)


def _is_watched(u: Tensor, h: Tensor) -> bool:
    """Gradients, transforms, dispatch modes and traces, in as few calls as they take: a step is some microseconds."""
    if torch.is_grad_enabled() and (u.requires_grad or h.requires_grad):
        return True
    if torch._C._len_torch_dispatch_stack() or torch._C._is_tracing():
        return True
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def _open(layer: Layer) -> _Fast | None:
    from resolvent.layers.contract import Spec

    spec = layer.state_spec(1)
    if layer.bidirectional or not isinstance(spec, Spec) or None in spec.shape or layer.anchor.device.type != "cpu":
        return None
    if not _agrees(type(layer)):
        return None
    with torch.inference_mode(False), torch.no_grad():
        step = layer._stepper()
    tail = tuple(n for n in spec.shape[1:] if n is not None)
    return None if step is None else _Fast(step, layer.d_model, tail, layer.dtype, spec.dtype)


def _agrees(kind: type) -> bool:
    """Whether `_stepper` matches the class's `_step`: False where a subclass overrides `_step` alone."""
    first = next(base for base in kind.__mro__ if "_step" in vars(base) or "_stepper" in vars(base))
    return "_stepper" in vars(first)
