"""Four ways to run the same layer over the same sequence; they must agree."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from resolvent.conformance.subject import Subject
from resolvent.conformance.tolerance import is_inexact, leaves, map_tensors


def stepwise(layer: nn.Module, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
    """One step at a time: the reference."""
    if state is None:
        state = layer.initial_state(x.shape[0])  # type: ignore[operator]
    outputs = []
    for t in range(x.shape[1]):
        y_t, state = layer.step(x[:, t], state)  # type: ignore[operator]
        outputs.append(y_t)
    return torch.stack(outputs, 1), state


def run_chunked(layer: nn.Module, x: Tensor, cuts: list[int], state: Any = None) -> tuple[Tensor, Any]:
    """In chunks of the given sizes, passing the state."""
    outputs = []
    for piece in x.split(cuts, dim=1):
        y, state = layer(piece, state)
        outputs.append(y)
    return torch.cat(outputs, 1), state


def dense(layer: nn.Module, x: Tensor) -> Tensor | None:
    """The layer's own system, simulated densely in float64; None if it has no system."""
    wide = x.double()
    if hasattr(layer, "system"):
        system = layer.system()  # type: ignore[operator]
    elif hasattr(layer, "linearise"):
        system = layer.linearise(wide)  # type: ignore[operator]
    else:
        return None
    y, _ = system.block_diagonal().simulate(wide)
    return y.real if y.is_complex() else y


def random_cuts(length: int, pieces: int, generator: torch.Generator) -> list[int]:
    """Chunk sizes that sum to `length`; some may be one or zero."""
    inner = torch.randint(0, length + 1, (pieces - 1,), generator=generator).sort().values.tolist()
    edges = [0, *inner, length]
    return [b - a for a, b in pairwise(edges)]


def reached_state(subject: Subject, layer: nn.Module, steps: int = 5) -> Any:
    """A detached state reached by the layer itself, hence valid for any layer."""
    with torch.no_grad():
        _, state = layer(subject.input(steps, salt=11))
    return map_tensors(lambda t: t.detach().clone(), state)


def require_grad(state: Any) -> tuple[Any, list[Tensor]]:
    """The state with its real and complex tensors as leaves of a graph, and these leaves."""
    fresh = map_tensors(lambda t: t.detach().clone().requires_grad_(is_inexact(t)), state)
    return fresh, [t for t in leaves(fresh) if t.requires_grad]


def parameters(layer: nn.Module) -> list[Tensor]:
    return [p for p in layer.parameters() if p.requires_grad]


def objective(subject: Subject, y: Tensor, state: Any = None) -> Tensor:
    """A scalar that depends on every output and the final state, nonlinear so that second gradients are nonzero.

    Values above 1 are scaled down first: the sine of a large number is inaccurate.
    """
    parts = [t for t in (y, *leaves(state)) if is_inexact(t) and t.numel()]
    total = torch.zeros((), dtype=torch.float64, device=subject.device)
    for salt, part in enumerate(parts):
        weight = subject.like(part, 20 + salt) / part.detach().abs().amax().clamp_min(1)
        product = (weight.conj() * part).real if part.is_complex() else weight * part
        total = total + product.sum() / part.numel() ** 0.5 + torch.sin(product).sum() / part.numel() ** 0.5
    return total


def gradients(value: Tensor, wrt: list[Tensor], create_graph: bool = False) -> list[Tensor]:
    """d value / d wrt; zero where there is no dependence."""
    found = torch.autograd.grad(value, wrt, create_graph=create_graph, allow_unused=True)
    return [torch.zeros_like(w) if g is None else g for w, g in zip(wrt, found, strict=True)]
