"""A bidirectional layer: depends on both directions, adds an anticausal to its causal part, and refuses to stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from resolvent.conformance.result import Finding, Skip
from resolvent.conformance.subject import Subject
from resolvent.conformance.tolerance import VALUES, distance


@torch.no_grad()
def both_directions(subject: Subject) -> Finding | Skip:
    """Every clause of the contract on two directions; the note names the one with the largest error."""
    layer = subject.build()
    if not getattr(layer, "bidirectional", False):
        return Skip("one direction")
    x = subject.input()
    complaints = [*_refusals(subject, layer, x), *_blindness(layer, x)]
    if complaints:
        return Finding(float("inf"), VALUES[subject.dtype], complaints[0])
    return Finding(_looks_ahead_only(subject, layer, x), VALUES[subject.dtype], "remainder looks ahead only")


def _refusals(subject: Subject, layer: Any, x: Tensor) -> list[str]:
    attempts: dict[str, Callable[[], Any]] = {
        "step": lambda: layer.step(x[:, 0]),
        "initial_state": lambda: layer.initial_state(x.shape[0]),
        "a state": lambda: layer(x, x.new_zeros(x.shape[0], subject.d_model)),
    }
    taken = [name for name, attempt in attempts.items() if not _is_refused(attempt)]
    return [f"{name} was accepted by a bidirectional layer" for name in taken]


def _is_refused(attempt: Callable[[], Any]) -> bool:
    try:
        attempt()
    except (ValueError, TypeError) as wrong:
        return len(str(wrong)) > 20
    return False


def _blindness(layer: nn.Module, x: Tensor) -> list[str]:
    """An output must depend on the inputs before and after its own."""
    t = x.shape[1] // 2
    y, _ = layer(x)
    found = []
    for name, neighbour in {"earlier": t - 1, "later": t + 1}.items():
        moved = x.clone()
        moved[:, neighbour] += 1
        if torch.equal(layer(moved)[0][:, t], y[:, t]):
            found.append(f"outputs do not feel {name} inputs")
    return found


def _looks_ahead_only(subject: Subject, layer: nn.Module, x: Tensor) -> float:
    """y minus the one-direction layer with the same weights must not change with the past, padded or not."""
    if subject.traits.unidirectional is None or not subject.traits.additive:
        return 0.0
    causal = subject.traits.unidirectional().to(subject.device, subject.working).eval()
    weights = layer.state_dict()
    causal.load_state_dict({name: _forward_part(weights[name], t) for name, t in causal.state_dict().items()})
    cut = x.shape[1] // 2
    other = torch.cat([3 * subject.input(salt=5)[:, :cut], x[:, cut:]], 1)
    lengths = torch.full((x.shape[0],), x.shape[1] - 2, device=x.device)
    worst = 0.0
    for given in (None, lengths):
        ahead = layer(x, None, given)[0] - causal(x, None, given)[0]
        want = causal(other, None, given)[0] + ahead  # measured as a whole output, since that is what rounds
        worst = max(worst, distance(layer(other, None, given)[0][:, cut:], want[:, cut:]))
    return worst


def _forward_part(weight: Tensor, like: Tensor) -> Tensor:
    """If one tensor has both directions along its first axis, the forward one is first."""
    return weight if weight.shape == like.shape else weight[: like.shape[0]]
