"""A model whose parameters are new leaves in the old memory: a recording must not meet an older autograd graph."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def alias_parameters(
    model: nn.Module, made: dict[nn.Parameter, nn.Parameter] | None = None
) -> Iterator[dict[nn.Parameter, nn.Parameter]]:
    """Each parameter with the alias that replaces it inside; `made` are those of an earlier call.

    A loss still held by the user keeps the leaves of its graph alive, with the stream on which they were created.
    Gradients of the same parameters would go to that stream, which breaks a capture on another.
    """
    held = [(own._parameters, name, p) for own in model.modules() for name, p in own._parameters.items()]
    made = {} if made is None else made
    try:
        for own, name, p in held:
            if p is not None:
                if p not in made:
                    made[p] = nn.Parameter(p.detach(), p.requires_grad)
                own[name] = made[p]
        yield made
    finally:
        for own, name, p in held:
            own[name] = p
