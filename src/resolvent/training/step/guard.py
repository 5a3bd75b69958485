"""Updates that leave themselves out where a loss or gradient is not finite, and numbers that are read later."""

from __future__ import annotations

import torch
from torch import Tensor

from resolvent.training.step.batch import Batch


class Guard:
    """After the first step with a number that is not finite, no update changes a weight or the optimiser's state.

    AdamW and Adam in one launch read a flag on the device (`found_inf`, which torch's gradient scaler sets too).
    """

    def __init__(self, optimiser: torch.optim.Optimizer, device: torch.device) -> None:
        self.flag = torch.zeros((), dtype=torch.float32, device=device)
        optimiser.found_inf = self.flag  # type: ignore[attr-defined]

    def look(self, values: Tensor) -> None:
        """Loss, norm of the gradient, and what else must be finite."""
        self.flag.copy_(torch.maximum(self.flag, (~torch.isfinite(values).all()).to(self.flag.dtype)))


def guard(optimiser: torch.optim.Optimizer, device: torch.device) -> Guard | None:
    """For a device that runs ahead of Python, where the optimiser can read the flag."""
    able = all(group.get("fused") for group in optimiser.param_groups)
    return Guard(optimiser, device) if able and device.type == "cuda" else None


class Taken:
    """A step that was asked for, and its numbers on their way to the host."""

    def __init__(self, step: int, batch: Batch, values: Tensor) -> None:
        self.step, self.batch = step, batch
        self._values = values.to("cpu", non_blocking=True)  # into memory that a device may write to on its own
        self._there = torch.cuda.Event() if values.is_cuda else None
        if self._there is not None:
            self._there.record()

    def numbers(self) -> list[float]:
        if self._there is not None:
            self._there.synchronize()
        found: list[float] = self._values.tolist()
        return found
