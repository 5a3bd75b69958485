"""A sequence classifier for few samples: random state-space systems, a learned read-out, nothing trained by steps.

    ReservoirClassifier().fit(X, y).predict(X_new)                    # X (n, l, c), (n, l), or a list of (l, c)

The model is an S4D layer of many random systems (`init.reservoir`), the share of the time that each is above each of
several levels (`blocks.LevelReadout`), and a linear map in closed form (`models.learn_reservoir`). It is a model as any
other: `predictor_` can be attacked, saved, loaded and streamed, and `fit` trains it further.
"""

from __future__ import annotations

import numpy as np
import torch

from resolvent.data import Task
from resolvent.data.preparation.preprocess import Missing, Scale
from resolvent.models import Model, build_model, learn_reservoir, reservoir_config
from resolvent.predictor.estimator import Layout, SequenceEstimator


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
        systems: int = 250,
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
        config = reservoir_config(task.channels or 1, len(self.classes_), self.systems, self.levels)
        with torch.random.fork_rng([]):
            torch.manual_seed(seed)
            model = build_model(config).double().eval()
        assert isinstance(model, Model)
        generator = torch.Generator().manual_seed(seed)
        x, y, lengths = task.train.x, task.train.y, task.train.lengths
        learn_reservoir(model, x, y, lengths, softness=self.softness, generator=generator)
        return model
