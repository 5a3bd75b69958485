"""First and second gradients of inputs, states and parameters against the stepwise loop and finite differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.gradcheck import GradcheckError, gradcheck
from torch.func import functional_call
from torch.utils._pytree import tree_flatten, tree_unflatten

from resolvent.conformance import drive
from resolvent.conformance.properties.streaming import of_streams
from resolvent.conformance.result import Finding, Skip
from resolvent.conformance.subject import Subject
from resolvent.conformance.tolerance import GRADIENTS, distance, is_inexact, leaves

Run = Callable[[nn.Module, Tensor, Any], tuple[Tensor, Any]]


@of_streams
def first(subject: Subject) -> Finding | Skip:
    """d/dx, d/dstate, d/dparameters of outputs and final state together."""
    layer = subject.build()
    x = subject.input(subject.length - 5)
    start = drive.reached_state(subject, layer)
    got, want = (_first(subject, layer, x, start, run) for run in (_whole, drive.stepwise))
    return Finding(distance(got, want), GRADIENTS[subject.dtype])


@of_streams
def second(subject: Subject) -> Finding | Skip:
    """A Hessian-vector product, inputs, states and parameters together."""
    layer = subject.build()
    x = subject.input(subject.short)
    start = drive.reached_state(subject, layer)
    got, want = (_second(subject, layer, x, start, run) for run in (_whole, drive.stepwise))
    return Finding(distance(got, want), GRADIENTS[subject.dtype])


def finite_differences(subject: Subject) -> Finding | Skip:
    """torch.autograd.gradcheck in float64 on a short sequence, over inputs, state and parameters at once."""
    if subject.dtype != torch.float64:
        return Skip("finite differences need float64")
    layer, x = subject.build(), subject.input(4)
    start = drive.reached_state(subject, layer) if subject.traits.streams else None
    x, start, inputs = _sources(layer, x, start)
    try:
        gradcheck(_as_function(layer, start), inputs, fast_mode=True, eps=1e-6, atol=1e-6, rtol=1e-4)
    except GradcheckError as wrong:
        return Finding(float("inf"), 0.0, str(wrong).strip().splitlines()[0])
    return Finding(0.0, 0.0)


def _as_function(layer: nn.Module, start: Any) -> Callable[..., tuple[Tensor, ...]]:
    """The layer as a function of x, the inexact parts of its state and its parameters, one after another."""
    names = [name for name, p in layer.named_parameters() if p.requires_grad]
    parts, structure = tree_flatten(start)

    def run(x: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        given = iter(rest)
        swapped = [next(given) if isinstance(t, Tensor) and is_inexact(t) else t for t in parts]
        state = tree_unflatten(swapped, structure)
        y, end = functional_call(layer, dict(zip(names, given, strict=True)), (x, state))
        return (y, *(t for t in leaves(end) if is_inexact(t)))

    return run


def _whole(layer: nn.Module, x: Tensor, state: Any) -> tuple[Tensor, Any]:
    return layer(x, state)


def _sources(layer: nn.Module, x: Tensor, start: Any) -> tuple[Tensor, Any, list[Tensor]]:
    x = x.detach().clone().requires_grad_()
    state, parts = drive.require_grad(start)
    return x, state, [x, *parts, *drive.parameters(layer)]


def _first(subject: Subject, layer: nn.Module, x: Tensor, start: Any, run: Run) -> list[Tensor]:
    x, state, wrt = _sources(layer, x, start)
    return drive.gradients(drive.objective(subject, *run(layer, x, state)), wrt)


def _second(subject: Subject, layer: nn.Module, x: Tensor, start: Any, run: Run) -> list[Tensor]:
    x, state, wrt = _sources(layer, x, start)
    g = drive.gradients(drive.objective(subject, *run(layer, x, state)), wrt, create_graph=True)
    along = torch.zeros((), dtype=torch.float64, device=subject.device)
    for salt, part in enumerate(g):
        v = subject.like(part, 60 + salt)
        along = along + ((v.conj() * part).real if part.is_complex() else v * part).sum()
    return drive.gradients(along, wrt)
