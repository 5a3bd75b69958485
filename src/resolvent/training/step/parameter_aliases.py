"""A model whose parameters are new leaves in the old memory: what is recorded must not meet a graph from before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def alias_parameters(
    model: nn.Module, made: dict[nn.Parameter, nn.Parameter] | None = None
) -> Iterator[dict[nn.Parameter, nn.Parameter]]:
    """Every parameter with the one that stands in for it inside; `made` are those of an earlier time.

    A loss that somebody still holds keeps the ends of its graph alive, with the stream that they were made on.
    Gradients of the same parameters would be handed to that stream, which a recording on another does not survive.
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
