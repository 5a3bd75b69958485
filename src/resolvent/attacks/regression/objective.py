"""Objectives of attacks on real outputs: the error, and single outputs in one direction.

The squared error has zero gradient where a model is exactly right; a push in one direction does not.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from resolvent.attacks.objective.objective import squared_deviation


def root_mean_square(output: Tensor, y: Tensor) -> Tensor:
    """The error of each sample over all of its outputs, (b,): |f - y| for a single one."""
    apart = (output - y.view_as(output)).double()
    return apart.square().flatten(1).mean(1).sqrt() if apart.dim() > 1 else apart.abs()


def squared_error(output: Tensor, y: Tensor) -> Tensor:
    """The squared error summed over outputs, differentiable everywhere."""
    return squared_deviation(output, y.view_as(output))


@dataclass(frozen=True)
class Push:
    """Push output `place` of the flattened outputs (None: their sum) up or down."""

    sign: float
    place: int | None = None

    @property
    def __name__(self) -> str:
        where = "" if self.place is None else f"-{self.place}"
        return f"{'up' if self.sign > 0 else 'down'}{where}"

    def __call__(self, output: Tensor, y: Tensor) -> Tensor:
        flat = output.flatten(1) if output.dim() > 1 else output[:, None]
        value = flat.sum(1) if self.place is None else flat[:, self.place]
        return self.sign * value


def pushes(outputs: int, most: int = 4) -> tuple[Push, ...]:
    """Pushes up and down for the sum, and for each output if there are few."""
    places: tuple[int | None, ...] = (None,) if outputs == 1 else (None, *range(min(outputs, most)))
    return tuple(Push(sign, place) for place in places for sign in (1.0, -1.0))


def check_targets(where: str, output: Tensor, y: Tensor) -> None:
    if output.numel() != y.numel():
        raise ValueError(
            f"{where}: expected a target for each output, got outputs {tuple(output.shape)} and y {tuple(y.shape)}."
        )
    if not bool(torch.isfinite(output).all()):
        raise ValueError(f"{where}: the model returns NaN or infinity on unperturbed samples; fix the model first.")
