"""Bad input is refused with a message that helps, and the attempt changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from resolvent.conformance import drive
from resolvent.conformance.result import Finding, Skip
from resolvent.conformance.subject import Subject
from resolvent.conformance.tolerance import map_tensors

Attempt = tuple[str, Callable[[], Any]]


def refusals(subject: Subject) -> Finding | Skip:
    """Lists input that was accepted, or raised anything but a helpful ValueError or TypeError."""
    layer = subject.build()
    kept = [p.detach().clone() for p in layer.parameters()]
    complaints = [complaint for name, attempt in _attempts(subject, layer) if (complaint := _complaint(name, attempt))]
    if any(not torch.equal(a, b) for a, b in zip(kept, layer.parameters(), strict=True)):
        complaints.append("a refused call changed the parameters")
    return Finding(float("inf") if complaints else 0.0, 0.0, "; ".join(complaints))


def _attempts(subject: Subject, layer: Any) -> Iterator[Attempt]:
    x = subject.input(6)
    yield from _inputs(layer, x)
    yield from _lengths(layer, x)
    if subject.traits.streams:
        yield from _steps(layer, x)
        yield from _states(subject, layer, x)
    if hasattr(layer, "check_finite"):
        yield from _not_finite(layer, x)
    for i, build in enumerate(subject.traits.refuses):
        yield f"bad setting {i + 1} of the constructor", build


def _inputs(layer: nn.Module, x: Tensor) -> Iterator[Attempt]:
    yield "a list", lambda: layer(x.tolist())
    yield "rank 2", lambda: layer(x[0])
    yield "rank 4", lambda: layer(x[None])
    yield "one channel too many", lambda: layer(torch.cat([x, x[..., :1]], -1))
    yield "no channels", lambda: layer(x[..., :0])
    yield "an integer dtype", lambda: layer(x.long())
    yield "a complex dtype", lambda: layer(x.to(torch.complex64))
    yield "another device", lambda: layer(x.to("meta"))
    yield "a batch of zero", lambda: layer(x[:0])
    if x.dtype in (torch.float32, torch.float64):
        other = torch.float32 if x.dtype == torch.float64 else torch.float64
        yield "another float dtype", lambda: layer(x.to(other))


def _lengths(layer: nn.Module, x: Tensor) -> Iterator[Attempt]:
    b, l = x.shape[:2]
    wrong: dict[str, Any] = {
        "a length of zero": torch.tensor([l] * (b - 1) + [0]),
        "a negative length": torch.tensor([l] * (b - 1) + [-1]),
        "a length beyond the end": torch.tensor([l] * (b - 1) + [l + 1]),
        "too few lengths": torch.tensor([l] * (b - 1)),
        "fractional lengths": torch.full((b,), float(l)),
        "lengths as a list": [l] * b,
    }
    for name, lengths in wrong.items():
        yield name, partial(layer, x, None, lengths.to(x.device) if isinstance(lengths, Tensor) else lengths)


def _steps(layer: Any, x: Tensor) -> Iterator[Attempt]:
    yield "a step of rank 3", lambda: layer.step(x, None)
    yield "a step of another width", lambda: layer.step(torch.cat([x[:, 0], x[:, 0]], -1), None)
    yield "a step in integers", lambda: layer.step(x[:, 0].long(), None)
    yield "initial_state of no sequences", lambda: layer.initial_state(0)


def _states(subject: Subject, layer: Any, x: Tensor) -> Iterator[Attempt]:
    good = drive.reached_state(subject, layer)
    fewer = map_tensors(lambda t: t[:-1], good)
    wrong: dict[str, Any] = {
        "a state of another batch": fewer,
        "a state that is no tensor": "warm",
        "a state with a part too many": (good, x.new_zeros(1)),
        "a state of another layer": x.new_zeros(x.shape[0], 1, 2, 3, 5, 7, dtype=subject.working),
        "a state of another dtype": map_tensors(_recast, good),
    }
    for name, state in wrong.items():
        yield name, partial(layer, x, state)
        yield f"{name}, in a step", partial(layer.step, x[:, 0], state)


def _recast(t: Tensor) -> Tensor:
    return t.to(torch.float16) if t.is_floating_point() else t.real.to(torch.int32)


def _not_finite(layer: Any, x: Tensor) -> Iterator[Attempt]:
    for name, value in {"NaN": float("nan"), "infinity": float("inf")}.items():
        bad = x.clone()
        bad[0, 1, 0] = value
        yield f"{name} with check_finite", partial(_checking_finite, layer, bad)


def _checking_finite(layer: Any, x: Tensor) -> None:
    before = layer.check_finite
    layer.check_finite = True
    try:
        layer(x)
    finally:
        layer.check_finite = before


def _complaint(name: str, attempt: Callable[[], Any]) -> str:
    """Empty if the attempt was refused properly."""
    try:
        attempt()
    except (ValueError, TypeError) as wrong:
        return "" if len(str(wrong)) >= 30 else f"{name} was refused with {str(wrong)!r}, which does not help"
    except Exception as wrong:
        return f"{name} raised {type(wrong).__name__}, not a ValueError or TypeError"
    return f"{name} was accepted"
