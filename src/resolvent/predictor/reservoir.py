"""A sequence classifier for few samples: random state-space systems, a learned read-out, nothing trained by steps.

    ReservoirClassifier().fit(X, y).predict(X_new)                    # X (n, l, c), (n, l), or a list of (l, c)

The model is an S4D layer of many random systems (`init.reservoir`), the share of the time that each is above each of
several levels (`blocks.LevelReadout`), and a linear map in closed form (`training.ridge`). It is a model as any other:
`predictor_` can be attacked, saved, loaded and streamed, and `fit` trains it further.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from resolvent.data import Task
from resolvent.data.preparation.preprocess import Missing, Scale
from resolvent.init import reservoir
from resolvent.layers import S4D
from resolvent.layers.checks import check_positive
from resolvent.models import ChannelsConfig, LevelsConfig, Model, ModelConfig, ResidualConfig, S4DConfig, build_model
from resolvent.predictor.estimator import Layout, SequenceEstimator
from resolvent.predictor.predictor import rows_of
from resolvent.training.ridge import fit_ridge
from resolvent.usage.numbers import check_not_negative

MODES = 4  # oscillations of a system
ROWS, STEPS = 30, 64  # samples, and steps of each, from which levels are taken
ALPHAS = tuple(np.logspace(-3, 3, 10).tolist())
MOST = 9  # channels that one system reads at most


class ReservoirClassifier(SequenceEstimator):
    """Random state-space systems and a ridge read-out; classes are words or numbers. Fits in seconds.

    For tens to a few thousand samples; `SequenceClassifier` trains all weights, against an attacker if wished.

    systems       number of random systems
    levels        levels per system: the read-out has systems * levels weights for each class
    softness      width of the ramp at a level, in standard deviations of the system's output: 0.1 hardly differs from
                  counting steps above the level, 1 answers more smoothly
    scale, missing   as in `from_arrays`: learned on the training samples and applied to new ones
    layout        the order of the axes of a three-dimensional X: samples, steps, channels; or channels before steps
    random_state  of systems and levels: an integer, or as usual in scikit-learn a RandomState or None

    Examples:
        >>> X, y = torch.randn(20, 10, 2).numpy(), ["left", "right"] * 10
        >>> classifier = rv.ReservoirClassifier(systems=50).fit(X, y)
        >>> classifier.predict_proba(X[:3]).shape
        (3, 2)
    """

    def __init__(
        self,
        systems: int = 1000,
        *,
        levels: int = 8,
        softness: float = 0.1,
        scale: Scale = "standard",
        missing: Missing = "refuse",
        layout: Layout = "nlc",
        random_state: int | np.random.RandomState | None = 0,
    ) -> None:
        self.systems, self.levels, self.softness = systems, levels, softness
        self.scale, self.missing, self.layout, self.random_state = scale, missing, layout, random_state

    def _learn(self, task: Task, seed: int) -> Model:
        name = type(self).__name__
        check_not_negative(name, softness=self.softness)
        check_positive(name, systems=self.systems, levels=self.levels)
        generator = torch.Generator().manual_seed(seed)
        with torch.random.fork_rng([]):
            torch.manual_seed(seed)
            model = self._build(task, generator)
        x, lengths = task.train.x.double(), task.train.lengths
        with torch.no_grad(), model.frozen():
            some = torch.randperm(len(x), generator=generator)[:ROWS]
            ends = [x.shape[1]] * len(x) if lengths is None else lengths.tolist()
            seen = [_spread(_systems(model, x[i : i + 1, : ends[i]])) for i in some.tolist()]
            model.head.levels.set(torch.cat(seen), max(self.softness, 1e-6), generator)
            parts = torch.arange(len(x)).split(rows_of(model, x))
            shares = torch.cat([
                model.head.levels.shares(_systems(model, x[i]), None if lengths is None else lengths[i]) for i in parts
            ])  # fmt: skip
        _read_out(model.head.out, shares, task.train.y, len(self.classes_))
        return model

    def _build(self, task: Task, generator: torch.Generator) -> Model:
        channels = task.channels or 1
        block = ResidualConfig(S4DConfig(2 * MODES, skip=False), mixer="none", activation="none", skip=False)
        head = LevelsConfig(len(self.classes_), self.levels)
        entry = ChannelsConfig(channels, bias=False)
        model = build_model(ModelConfig(entry, block, head, self.systems, 1, norm="none")).double().eval()
        layer = next(module for module in model.modules() if isinstance(module, S4D))
        lam_bar, C = reservoir(self.systems, MODES, task.length, generator)
        layer.set_modes(lam_bar, torch.ones_like(lam_bar)[..., None], C[:, None])
        assert isinstance(model, Model)
        with torch.no_grad():
            model.tower.entry.weight.copy_(_mixtures(self.systems, channels, generator))
        return model


def _mixtures(d: int, channels: int, generator: torch.Generator) -> Tensor:
    """(d, channels) of signs: each row reads a few channels, one more often than many."""
    most = min(channels, MOST)
    count = (2 ** (torch.rand(d, 1, generator=generator) * np.log2(most + 1))).floor().clamp(1, most)
    place = torch.rand(d, channels, generator=generator).argsort(1).argsort(1)
    sign = torch.randint(0, 2, (d, channels), generator=generator) * 2.0 - 1
    return torch.where(place < count, sign, 0.0)


def _systems(model: Model, x: Tensor) -> Tensor:
    """The outputs of all systems (b, l, d)."""
    features: Tensor = model.tower.features(model.embed(x), None)[0]
    return features


def _spread(y: Tensor) -> Tensor:
    """At most STEPS steps (m, d) of one sample (1, l, d), evenly spaced."""
    l = y.shape[1]
    return y[0, torch.linspace(0, l - 1, min(STEPS, l)).long()]


@torch.no_grad()
def _read_out(out: torch.nn.Linear, shares: Tensor, y: Tensor, classes: int) -> None:
    """Ridge regression to 1 for the own class and -1 for others, on shares scaled to unit deviation.

    Its answers become logits by the factor that fits best to its leave-one-out predictions.
    """
    spread = shares.std(0, correction=0)
    spread = torch.where(spread > 0, spread, 1)
    aim = 2 * torch.nn.functional.one_hot(y, classes).to(shares) - 1
    found = fit_ridge(shares / spread, aim, ALPHAS)
    factor = _temper(found.left_out, y)
    out.weight.copy_(factor * (found.weight / spread[:, None]).mT)
    out.bias.copy_(factor * found.bias)


def _temper(answers: Tensor, y: Tensor) -> float:
    """The factor of the answers with the best log-likelihood; one part in n + 2 of each label is spread over all
    classes (Laplace), so that a separable problem has a finite factor."""
    doubt = 1 / (len(y) + 2)

    def loss(log_factor: float) -> float:
        logits = float(np.exp(log_factor)) * answers
        return float(torch.nn.functional.cross_entropy(logits, y, label_smoothing=doubt))

    return float(np.exp(minimize_scalar(loss, bounds=(-3.0, 5.0), method="bounded").x))
