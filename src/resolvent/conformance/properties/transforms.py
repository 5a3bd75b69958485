"""torch.compile without graph breaks, and the transforms of torch.func."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, vmap

from resolvent.conformance import drive
from resolvent.conformance.result import Finding, Skip
from resolvent.conformance.subject import Subject
from resolvent.conformance.tolerance import GRADIENTS, distance


def check_compiled(subject: Subject) -> Finding | Skip:
    """One graph of a pass, a continued pass and a padded pass: values and gradients of the eager ones."""
    layer = subject.build()
    lengths = torch.tensor([subject.short, subject.short // 2 + 1, 1], device=subject.device)

    def passes(x: Tensor) -> tuple[Any, ...]:
        y, end = layer(x)
        again, _ = layer(x, None, lengths)
        onward = layer(x, end) if subject.traits.streams else ()
        return y, again, end, onward

    torch._dynamo.reset()
    backend = "inductor" if subject.full else "aot_eager"
    fast = torch.compile(passes, backend=backend, fullgraph=True, dynamic=False)
    got, want = (_values_and_gradients(subject, layer, run) for run in (fast, passes))
    torch._dynamo.reset()
    return Finding(distance(got, want), GRADIENTS[subject.dtype], backend)


def check_vectorised(subject: Subject) -> Finding | Skip:
    """vmap over an extra axis equals a loop over it, in values and in gradients."""
    layer = subject.build()
    x = torch.stack([subject.input(subject.short, salt=30 + i) for i in range(2)])  # (k, b, l, d)

    def loss(x_one: Tensor) -> Tensor:
        return drive.objective(subject, layer(x_one)[0])

    with torch.no_grad():
        values = distance(vmap(lambda x_one: layer(x_one)[0])(x), torch.stack([layer(x_one)[0] for x_one in x]))
    slopes = distance(vmap(grad(loss))(x), torch.stack([grad(loss)(x_one) for x_one in x]))
    return Finding(max(values, slopes), GRADIENTS[subject.dtype])


def tangents(subject: Subject) -> Finding | Skip:
    """Forward-mode J v, for inputs and parameters together, against J v made from two reverse passes."""
    layer = subject.build()
    x = subject.input(subject.short)
    point = (x, {name: p.detach() for name, p in layer.named_parameters()})
    along = (subject.like(x, 40), {name: subject.like(p, 41 + i) for i, (name, p) in enumerate(point[1].items())})

    def run(x_in: Tensor, given: dict[str, Tensor]) -> Tensor:
        return functional_call(layer, given, (x_in,))[0]

    forward = jvp(run, point, along)[1]
    primals, tangent = [x, *point[1].values()], [along[0], *along[1].values()]
    reverse = torch.autograd.functional.jvp(
        lambda x_in, *rest: run(x_in, dict(zip(point[1], rest, strict=True))), tuple(primals), tuple(tangent)
    )[1]
    return Finding(distance(forward, reverse), GRADIENTS[subject.dtype])


def per_sample(subject: Subject) -> Finding | Skip:
    """Gradients of each sample on its own through vmap and functional_call, against a loop."""
    layer = subject.build()
    x = subject.input(subject.short)
    given = {name: p.detach() for name, p in layer.named_parameters()}

    def loss(parameters: dict[str, Tensor], sample: Tensor) -> Tensor:
        return drive.objective(subject, functional_call(layer, parameters, (sample[None],))[0])

    got = vmap(grad(loss), in_dims=(None, 0))(given, x)
    alone = [grad(loss)(given, sample) for sample in x]
    want = {name: torch.stack([g[name] for g in alone]) for name in given}
    return Finding(distance(got, want), GRADIENTS[subject.dtype])


def _values_and_gradients(subject: Subject, layer: nn.Module, run: Any) -> tuple[Any, list[Tensor]]:
    x = subject.input(subject.short).requires_grad_()
    out = run(x)
    return out, drive.gradients(drive.objective(subject, out[0], out[1:]), [x, *drive.parameters(layer)])
