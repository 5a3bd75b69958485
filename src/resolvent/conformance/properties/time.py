"""Steps of uneven length: layer(x, dt=...) for layers in continuous time."""

from __future__ import annotations

from typing import Any

import torch

from resolvent.conformance.result import Finding, Skip
from resolvent.conformance.subject import Subject
from resolvent.conformance.tolerance import VALUES, distance

STEPS = 8  # taken one by one


@torch.no_grad()
def uneven(subject: Subject) -> Finding | Skip:
    """Even steps are the plain pass; chunks, single steps and padded rows are the whole one, with states in and out."""
    layer: Any = subject.build()
    x = subject.input()
    ones = torch.ones(x.shape[:2], dtype=x.dtype, device=x.device)
    try:
        even = layer(x, dt=ones)
    except TypeError:
        return Skip("takes no dt")
    except ValueError as refused:
        return Skip(str(refused).split(": ", 1)[-1].split(";")[0])
    dt = 0.2 + 2 * torch.rand(x.shape[:2], generator=subject.generator(11), dtype=torch.float64).to(x.device, x.dtype)
    whole, cut = layer(x, dt=dt), x.shape[1] // 3
    first, state = layer(x[:, :cut], dt=dt[:, :cut])
    rest, end = layer(x[:, cut:], state, dt=dt[:, cut:])
    stepped, state = [], None
    for k in range(min(STEPS, x.shape[1])):
        y_t, state = layer.step(x[:, k], state, dt=dt[:, k])
        stepped.append(y_t)
    lengths = torch.full((len(x),), cut, device=x.device)
    errors = {
        "even steps and the plain pass": distance(even, layer(x)),
        "chunks of uneven steps": distance((torch.cat([first, rest], 1), end), whole),
        "single uneven steps": distance(torch.stack(stepped, 1), whole[0][:, : len(stepped)]),
        "padded rows": distance(layer(x, lengths=lengths, dt=dt)[0][:, :cut], first),
    }
    note = max(errors, key=lambda name: errors[name])
    return Finding(errors[note], VALUES[subject.dtype], note)
