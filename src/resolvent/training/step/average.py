"""The average of the weights along training, which is measured, stored and returned instead of the last ones.

    "ema"   w' <- r w' + (1 - r) w, r = min(decay, (k + 1) / (k + 10))   after every step    Polyak and Juditsky 1992
    "swa"   w' <- w' + (w - w') / (k + 1)                                after every epoch   Izmailov et al. 2018, 3.1

k weights are averaged already. With its final decay from the start, an "ema" would still contain the initial
weights at the end of a short run; the increasing decay is that of TensorFlow's moving averages.
Running statistics of norms are averaged with the parameters; counters keep their last value.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from resolvent.training.settings import Budget


class Average:
    """The average so far; empty until training reaches `average_from`."""

    def __init__(self, settings: Budget) -> None:
        self.settings = settings
        self.weights: dict[str, Tensor] = {}
        self.count = 0  # number of averaged weights

    def include(self, model: nn.Module, step: int, per_epoch: int) -> None:
        """Include the weights after `step` steps in the average if they are due."""
        kind = self.settings.average
        due = kind == "ema" or (kind == "swa" and step % per_epoch == 0)
        if not due or step < self.settings.average_from * per_epoch:
            return
        with torch.no_grad():
            self._mix({name: t.detach() for name, t in model.state_dict().items()})
        self.count += 1

    def _mix(self, now: dict[str, Tensor]) -> None:
        k = self.count
        rate = min(self.settings.average_decay, (k + 1) / (k + 10))
        share = 1 - rate if self.settings.average == "ema" else 1 / (k + 1)
        for name, t in now.items():
            if self.count and (t.is_floating_point() or t.is_complex()):
                self.weights[name].lerp_(t, share)
            else:
                self.weights[name] = t.clone()

    @contextmanager
    def shown(self, model: nn.Module) -> Iterator[None]:
        """Inside, the model holds the mean."""
        if not self.weights:
            yield
            return
        own = {name: t.detach().clone() for name, t in model.state_dict().items()}
        model.load_state_dict(self.weights)
        try:
            yield
        finally:
            model.load_state_dict(own)

    def settle(self, model: nn.Module) -> None:
        """Leave the average in the model at the end of training."""
        if self.weights:
            model.load_state_dict(self.weights)
