"""Updates that skip themselves where a loss or gradient is not finite, and numbers that are read later."""

from __future__ import annotations

import torch
from torch import Tensor

from resolvent.training.step.batch import Batch


class Guard:
    """After the first step with a non-finite number, no update changes a weight or the optimiser's state.

    Fused AdamW and Adam read a flag on the device (`found_inf`, also used by torch's gradient scaler).
    """

    def __init__(self, optimiser: torch.optim.Optimizer, device: torch.device) -> None:
        self.flag = torch.zeros((), dtype=torch.float32, device=device)
        optimiser.found_inf = self.flag  # type: ignore[attr-defined]

    def look(self, values: Tensor) -> None:
        """Update the flag from the loss, the gradient norm, and whatever else must be finite."""
        self.flag.copy_(torch.maximum(self.flag, (~torch.isfinite(values).all()).to(self.flag.dtype)))


def guard(optimiser: torch.optim.Optimizer, device: torch.device) -> Guard | None:
    """A guard for asynchronous devices, if the optimiser supports the flag."""
    able = all(group.get("fused") for group in optimiser.param_groups)
    return Guard(optimiser, device) if able and device.type == "cuda" else None


class Taken:
    """A launched step, and its numbers in transfer to the host."""

    def __init__(self, step: int, batch: Batch, values: Tensor) -> None:
        self.step, self.batch = step, batch
        self._values = values.to("cpu", non_blocking=True)  # into pinned memory
        self._there = torch.cuda.Event() if values.is_cuda else None
        if self._there is not None:
            self._there.record()

    def numbers(self) -> list[float]:
        if self._there is not None:
            self._there.synchronize()
        found: list[float] = self._values.tolist()
        return found
