"""Whole sequence = any chunking = step by step = dense simulation; states go in and out; the future stays hidden."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn

from resolvent.conformance import drive
from resolvent.conformance.result import Finding, Skip
from resolvent.conformance.subject import Subject, widen
from resolvent.conformance.tolerance import VALUES, distance, leaves

Measure = Callable[[Subject], Finding | Skip]


def of_streams(measure: Measure) -> Measure:
    """Skip layers that cannot continue from a state."""

    @wraps(measure)
    def measured(subject: Subject) -> Finding | Skip:
        return measure(subject) if subject.traits.streams else Skip("takes whole sequences only")

    return measured


@of_streams
@torch.no_grad()
def chunks(subject: Subject) -> Finding | Skip:
    """Random cuts, empty and single-step pieces among them, give the outputs and the final state of one pass."""
    layer, x = subject.build(), subject.input()
    want = layer(x)
    generator = subject.generator(3)
    cuts = [drive.random_cuts(x.shape[1], pieces, generator) for pieces in (2, 5, 9)]
    cuts.append([1, 0, x.shape[1] - 2, 1])
    errors = [_chunking_error(layer, x, c, want) for c in cuts]
    worst = errors.index(max(errors))
    tolerance = VALUES[subject.dtype]
    return Finding(errors[worst], tolerance, "" if errors[worst] <= tolerance else _sizes(cuts[worst]))


def _chunking_error(layer: nn.Module, x: Tensor, cuts: list[int], want: Any) -> float:
    with _naming(_sizes(cuts)):
        return distance(drive.run_chunked(layer, x, cuts), want)


@contextmanager
def _naming(what: str) -> Iterator[None]:
    """Adds to a crash what was tried."""
    try:
        yield
    except Exception as crash:
        crash.add_note(what)
        raise


def _sizes(cuts: list[int]) -> str:
    return f"in chunks of {', '.join(map(str, cuts))} steps"


@of_streams
@torch.no_grad()
def steps(subject: Subject) -> Finding | Skip:
    """Step by step, for the batch and for one sequence alone."""
    layer, x = subject.build(), subject.input()
    worst = max(distance(layer(part), drive.stepwise(layer, part)) for part in (x, x[:1], x[:, :1]))
    return Finding(worst, VALUES[subject.dtype])


@of_streams
@torch.no_grad()
def dense(subject: Subject) -> Finding | Skip:
    """The layer's System, stepped densely in float64, gives the layer's outputs."""
    layer, x = subject.build(), subject.input()
    want = drive.dense(widen(layer), x)
    if want is None:
        return Skip("has neither system() nor linearise()")
    offset = layer(torch.zeros_like(x))[0]  # the biases' response, which no linear system contains
    return Finding(distance(layer(x)[0], want + offset.double()), VALUES[subject.dtype])


@of_streams
@torch.no_grad()
def state(subject: Subject) -> Finding | Skip:
    """From a reached state, a pass equals the steps; no state equals initial_state; an empty pass keeps it."""
    layer = subject.build()
    x = subject.input(subject.length - 5)
    start = drive.reached_state(subject, layer)
    before = [t.clone() for t in leaves(start)]
    errors = {
        "pass and steps from a state": distance(layer(x, start), drive.stepwise(layer, x, start)),
        "no state and initial_state": distance(layer(x), layer(x, layer.initial_state(x.shape[0]))),  # type: ignore[operator]
    }
    with _naming("in an empty sequence, a chunk of 0 steps"):
        errors["an empty sequence"] = distance(layer(x[:, :0], start), (x[:, :0], start))
    errors["the caller's state was changed"] = distance(leaves(start), before)
    note = max(errors, key=lambda name: errors[name])
    return Finding(errors[note], VALUES[subject.dtype], note)


@torch.no_grad()
def causality(subject: Subject) -> Finding | Skip:
    """Large changes from some time on leave all earlier outputs as they were, to rounding."""
    if not subject.traits.streams and getattr(subject.build(), "bidirectional", False):
        return Skip("looks both ways by design")
    layer, x = subject.build(), subject.input()
    y, _ = layer(x)
    worst = 0.0
    for cut in (1, x.shape[1] // 2, x.shape[1] - 1):
        other = torch.cat([x[:, :cut], 1 + 3 * subject.input(salt=5)[:, cut:]], 1)
        worst = max(worst, distance(layer(other)[0][:, :cut], y[:, :cut]))
    return Finding(worst, VALUES[subject.dtype])


@torch.no_grad()
def long_stream(subject: Subject) -> Finding | Skip:
    """100,000 single steps in float32 against the float64 whole sequence: within 1e-3."""
    if not subject.full:
        return Skip("runs with --full")
    if not subject.traits.streams or subject.traits.grows:
        return Skip("does not stream without end")
    layer = subject.build(torch.float32)
    x = torch.randn(1, 100_000, subject.d_model, generator=subject.generator(9)).to(subject.device)
    want, _ = widen(layer)(x.double())
    with layer.frozen() if hasattr(layer, "frozen") else nullcontext():  # type: ignore[operator]
        got, _ = drive.stepwise(layer, x)
    return Finding(distance(got, want), 1e-3)
