"""A padded batch gives what each short sequence gives alone, whatever the padding holds."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from resolvent.conformance import drive
from resolvent.conformance.result import Finding, Skip
from resolvent.conformance.subject import Subject
from resolvent.conformance.tolerance import GRADIENTS, VALUES, distance, is_inexact, leaves, map_tensors


def values(subject: Subject) -> Finding | Skip:
    """Outputs, final states (compared by what they do next) and zeros beyond the end, with NaN in the padding."""
    layer = subject.build()
    x, lengths = _make_padded(subject)
    errors: dict[str, float] = {}
    with torch.no_grad():
        y, end = layer(x, None, lengths)
        for i, length in enumerate(lengths.tolist()):
            y_alone, end_alone = layer(x[i : i + 1, :length])
            errors[f"outputs at length {length}"] = distance(y[i : i + 1, :length], y_alone)
            errors[f"padding after length {length}"] = distance(y[i, length:], torch.zeros_like(y[i, length:]))
            if subject.traits.streams:
                errors[f"state after length {length}"] = _states_apart(subject, layer, _sample(end, i), end_alone)
    note = max(errors, key=lambda name: errors[name])
    return Finding(errors[note], VALUES[subject.dtype], note)


def gradients(subject: Subject) -> Finding | Skip:
    """Input gradients vanish in the padding and equal the short runs' elsewhere; parameter gradients are their sum."""
    layer = subject.build()
    x, lengths = _make_padded(subject)
    wrt = drive.parameters(layer)
    x = x.requires_grad_()
    y, end = layer(x, None, lengths)
    total = sum(_loss(subject, y[i, :n], _sample(end, i)) for i, n in enumerate(lengths.tolist()))
    assert isinstance(total, Tensor)
    got = drive.gradients(total, [x, *wrt])
    want = [torch.zeros_like(g) for g in got]
    for i, n in enumerate(lengths.tolist()):
        alone = x.detach()[i : i + 1, :n].requires_grad_()
        y_alone, end_alone = layer(alone)
        parts = drive.gradients(_loss(subject, y_alone[0], _sample(end_alone, 0)), [alone, *wrt])
        want[0][i, :n] = parts[0][0]
        want[1:] = [a + b for a, b in zip(want[1:], parts[1:], strict=True)]
    return Finding(distance(got, want), GRADIENTS[subject.dtype])


def _make_padded(subject: Subject) -> tuple[Tensor, Tensor]:
    """A batch with one full, one medium and one single-step sequence; NaN beyond each end."""
    longest = subject.length - 5
    lengths = torch.tensor([longest, longest // 2 + 1, 1], device=subject.device)
    x = subject.input(longest, batch=3)
    beyond = torch.arange(longest, device=subject.device) >= lengths[:, None]  # (b, l)
    return x.masked_fill(beyond[..., None], float("nan")), lengths


def _sample(state: Any, i: int) -> Any:
    return map_tensors(lambda t: t[i : i + 1], state)


def _states_apart(subject: Subject, layer: nn.Module, got: Any, want: Any) -> float:
    """States of one shape must agree as numbers; caches of other sizes must give the same continuation."""
    x = subject.input(4, batch=1, salt=13)
    onward = distance(layer(x, got)[0], layer(x, want)[0])
    same_shape = all(a.shape == b.shape for a, b in zip(leaves(got), leaves(want), strict=True))
    return max(onward, distance(got, want)) if same_shape else onward


def _loss(subject: Subject, y: Tensor, state: Any) -> Tensor:
    """Every output, and the state's norm, which does not depend on a cache's size."""
    total = drive.objective(subject, y)
    for part in leaves(state):
        if is_inexact(part) and subject.traits.streams and not subject.traits.grows:
            total = total + (part.abs() ** 2).sum().double()
    return total
