"""Training on noisy samples: what randomised smoothing asks of its base classifier (Cohen et al. 2019, section 3.3)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from resolvent.attacks.setting import check_positive
from resolvent.training.batch import Batch
from resolvent.training.criterion import criterion, wide
from resolvent.training.objective import Loss


@dataclass(frozen=True)
class Noisy:
    """The mean loss on x + N(0, sigma^2); see `noisy`."""

    sigma: float

    def __call__(self, model: nn.Module, batch: Batch) -> Loss:
        if not batch.x.is_floating_point():
            raise ValueError("noisy: tokens take no normal noise; train on the part of the model after the embedding.")
        noise = batch.draws.normal(0, 0, batch.x.shape[1:], batch.x.dtype)
        output = wide(batch.call(model)(batch.x + self.sigma * noise))
        return Loss(criterion(output, batch.y).mean(), output)


def noisy(sigma: float) -> Noisy:
    """Normal noise of deviation sigma on every sample, drawn anew in every epoch; it is not cut to the data's range."""
    check_positive("noisy", sigma=sigma)
    return Noisy(sigma)
