"""A model whose parameters are others for a while."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor, nn


@contextmanager
def put_parameters(model: nn.Module, made: Mapping[nn.Parameter, Tensor]) -> Iterator[None]:
    """Inside, these take the places of the model's own parameters, shared ones in every place."""
    held = [(own._parameters, name, p) for own in model.modules() for name, p in own._parameters.items() if p in made]
    try:
        for own, name, p in held:
            own[name] = made[p]  # type: ignore[assignment, index]
        yield
    finally:
        for own, name, p in held:
            own[name] = p


@contextmanager
def alias_parameters(model: nn.Module) -> Iterator[dict[nn.Parameter, nn.Parameter]]:
    """Each parameter with the alias that replaces it inside, a new leaf in the old memory.

    A recording must not meet an older autograd graph: a loss still held by the user keeps the leaves of its graph
    alive, with the stream on which they were created. Gradients of the same parameters would go to that stream, which
    breaks a capture on another.
    """
    made = {p: nn.Parameter(p.detach(), p.requires_grad) for p in model.parameters()}
    with put_parameters(model, made):
        yield made
