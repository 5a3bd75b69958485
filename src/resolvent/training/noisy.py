"""Training on noisy samples: Gaussian noise, as randomised smoothing requires of its base classifier (Cohen et al.
2019, section 3.3), and tones at the sites inside a model where they would enter at test time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import nn

from resolvent.attacks.fourier.noise import FourierNoise
from resolvent.attacks.fourier.site import Site, disturbed
from resolvent.training.objective import Around, Loss, Objective, standard
from resolvent.training.step.batch import Batch, criterion, wide
from resolvent.usage.numbers import check_positive

Sites = Callable[[nn.Module], Sequence[Site]]


@dataclass(frozen=True)
class Noisy:
    """The mean loss on x + N(0, sigma^2); see `noisy`."""

    sigma: float

    def __call__(self, model: nn.Module, batch: Batch) -> Loss:
        if not batch.x.is_floating_point():
            raise ValueError("noisy: tokens take no normal noise; train on the part of the model after the embedding.")
        noise = batch.draws.normal(0, 0, batch.x.shape[1:], batch.x.dtype)
        output = wide(batch.call(model)(batch.x + self.sigma * noise))
        return Loss(batch.mean(criterion(output, batch.y)), output)


def noisy(sigma: float) -> Noisy:
    """Gaussian noise of standard deviation sigma on every sample, new in every epoch; not clipped to the data's range.

    Examples:
        >>> rv.training.noisy(0.1).sigma
        0.1
    """
    check_positive("noisy", sigma=sigma)
    return Noisy(sigma)


@dataclass(frozen=True)
class Toned(Around):
    """An objective under noise inside the model; see `toned`."""

    objective: Objective
    noise: FourierNoise
    sites: Sites

    def __call__(self, model: nn.Module, batch: Batch) -> Loss:
        with disturbed(self.sites(model), self.noise, batch.draws.fold("tone")):
            return self.objective(model, batch)


def toned(noise: FourierNoise, sites: Sites, objective: Objective = standard) -> Toned:
    """`objective` with the noise added at sites(model), with new random numbers in every epoch.

    Examples:
        >>> noise = rv.attacks.FourierNoise(0.1, 3.0)
        >>> objective = rv.training.toned(noise, lambda model: [rv.attacks.Site(model)])
        >>> objective.noise.amplitude
        0.1
    """
    return Toned(objective, noise, sites)
