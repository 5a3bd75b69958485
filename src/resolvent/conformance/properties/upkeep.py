"""Freezing, repeating, saving: operations around a layer that must not change its numbers."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn

from resolvent.conformance import drive
from resolvent.conformance.result import Finding, Skip
from resolvent.conformance.subject import Subject
from resolvent.conformance.tolerance import VALUES, distance


def check_frozen(subject: Subject) -> Finding | Skip:
    """Inside frozen(): same outputs and input gradients (twice, so that cached tables are used), fixed parameters."""
    layer = subject.build()
    if not hasattr(layer, "frozen"):
        return Skip("has no frozen()")
    x = subject.input()
    want = _pass(subject, layer, x)
    needed = [p.requires_grad for p in layer.parameters()]
    with layer.frozen():  # type: ignore[operator]
        loose = [name for name, p in layer.named_parameters() if p.requires_grad]
        got = max(distance(_pass(subject, layer, x), want) for _ in range(2))
    if loose:
        return Finding(float("inf"), 0.0, f"{loose[0]} still takes gradients inside frozen()")
    if [p.requires_grad for p in layer.parameters()] != needed:
        return Finding(float("inf"), 0.0, "parameters do not take gradients again after frozen()")
    return Finding(max(got, _after_update(subject, layer, x)), VALUES[subject.dtype])


def determinism(subject: Subject) -> Finding | Skip:
    """Two runs of one build, and of two builds from one seed, agree bit by bit, gradients included."""
    x = subject.input()
    layer, twin = subject.build(), subject.build()
    first, second, other = (_pass(subject, each, x, True) for each in (layer, layer, twin))
    same = all(torch.equal(a, b) and torch.equal(a, c) for a, b, c in zip(first, second, other, strict=True))
    return Finding(0.0 if same else max(distance(second, first), distance(other, first), 1e-300), 0.0)


def saving(subject: Subject) -> Finding | Skip:
    """Through safetensors into a layer built from another seed: the same numbers bit by bit."""
    from safetensors.torch import load_file, save_file

    layer, other = subject.build(), subject.build(seed=1)
    x = subject.input()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "layer.safetensors"
        save_file(layer.state_dict(), path)
        other.load_state_dict(load_file(path))
    with torch.no_grad():
        return Finding(distance(other(x)[0], layer(x)[0]), 0.0)


def _pass(subject: Subject, layer: nn.Module, x: Tensor, all_gradients: bool = False) -> list[Tensor]:
    x = x.detach().clone().requires_grad_()
    y, _ = layer(x)
    wrt = [x, *drive.parameters(layer)] if all_gradients else [x]
    return [y.detach(), *drive.gradients(drive.objective(subject, y), wrt)]


def _after_update(subject: Subject, layer: nn.Module, x: Tensor) -> float:
    """Parameters that change after a frozen() context must be seen by the next one: no table may outlive it."""
    with torch.no_grad():
        for p in layer.parameters():
            p.add_(0.01)
    want = _pass(subject, layer, x)
    with layer.frozen():  # type: ignore[operator]
        return distance(_pass(subject, layer, x), want)
