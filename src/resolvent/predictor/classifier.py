"""A sequence classifier with scikit-learn's interface, for its pipelines, searches and cross-validation.

    SequenceClassifier(epochs=20).fit(X, y).predict(X_new)            # X (n, l, c), (n, l), or a list of (l, c)
    SequenceClassifier(layout="ncl")                                  # as aeon and sktime order their axes
    SequenceClassifier(objective=rv.trades(rv.Threat("linf", 0.1)))   # trained against an attacker

`predictor_` is a predictor as from `rv.load`, which can be attacked, certified, saved and streamed.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from resolvent.data import Task
from resolvent.data.preparation.preprocess import Missing, Scale
from resolvent.models import (
    ChannelsConfig,
    ClassifierConfig,
    Model,
    ModelConfig,
    ResidualConfig,
    S4DConfig,
    build_model,
)
from resolvent.models.config import BlockConfig
from resolvent.predictor.estimator import Layout, SequenceEstimator
from resolvent.training import FitSettings, History, Objective, fit

EPOCHS, STEPS = 30, 200  # minimum; docs/predict.md has the comparison on training parts
SHARE, ENOUGH = 0.15, 50  # share held out for validation, if at least ENOUGH samples: fewer give no reliable score


def _better(history: History) -> str:
    """The best epoch, or the last if it is no worse: with few validation samples many epochs get all right, and the
    first of them has trained least."""

    def rank(row: dict[str, Any]) -> list[float]:
        return [row[key] for key in ("validation_robust", "validation_clean") if key in row]

    return "last" if rank(history.last) >= rank(history.best) else "best"


class SequenceClassifier(SequenceEstimator):
    """Residual blocks around a state-space layer, trained on X and y; classes are words or numbers.

    block         settings of a block, e.g. ResidualConfig(S5Config()) or MambaConfig(); None: S4D with a GLU
    d_model, layers   channels of the model, and its number of blocks
    objective     "standard", `pgd_at(threat)`, `trades(threat)`, or a function of model and batch
    epochs, batch_size, lr   of the training; epochs None: 30, or more if that makes fewer than 200 steps
    validation    share of the samples that choose the best epoch (the last if no worse); 0: train on all and keep
                  the last epoch; None: 0.15, or 0 if that is fewer than 50 samples
    scale, missing   as in `from_arrays`: learned on the training samples and applied to new ones
    layout        the order of the axes of a three-dimensional X: samples, steps, channels; or channels before steps
    random_state  of weights, split and order: an integer, or as usual in scikit-learn a RandomState or None

    Examples:
        >>> X, y = torch.randn(20, 10, 2).numpy(), ["left", "right"] * 10
        >>> classifier = rv.SequenceClassifier(epochs=1, d_model=4, layers=1).fit(X, y)
        >>> classifier.predict_proba(X[:3]).shape
        (3, 2)
    """

    def __init__(
        self,
        block: BlockConfig | None = None,
        *,
        d_model: int = 32,
        layers: int = 2,
        objective: Objective | str = "standard",
        epochs: int | None = None,
        batch_size: int = 32,
        lr: float = 1e-2,
        validation: float | None = None,
        scale: Scale = "standard",
        missing: Missing = "refuse",
        layout: Layout = "nlc",
        random_state: int | np.random.RandomState | None = 0,
    ) -> None:
        self.block, self.d_model, self.layers = block, d_model, layers
        self.objective, self.epochs, self.batch_size, self.lr = objective, epochs, batch_size, lr
        self.validation, self.random_state = validation, random_state
        self.scale, self.missing, self.layout = scale, missing, layout

    def _learn(self, task: Task, seed: int) -> Model:
        epochs = self._count_epochs(len(task.train)) if self.epochs is None else self.epochs
        settings = FitSettings(
            epochs, self.batch_size, self.lr, clip=1.0, warmup=min(1.0, epochs / 2), seed=seed,
            evaluate_every=1 if len(task.validation) else epochs,
        )  # fmt: skip
        if not len(task.validation):
            task = replace(task, validation=task.train)  # measured once, at the end
        with torch.random.fork_rng([]):
            torch.manual_seed(seed)
            model = build_model(self._config(task))
        assert isinstance(model, Model)
        self.history_ = fit(model, task, self.objective, settings)
        self.history_.load(model, _better(self.history_))
        return model

    def _share(self, samples: int) -> float:
        few = self.validation is None and SHARE * samples < ENOUGH
        return 0.0 if few else SHARE if self.validation is None else self.validation

    def _count_epochs(self, samples: int) -> int:
        return max(EPOCHS, math.ceil(STEPS / math.ceil(samples / max(1, self.batch_size))))

    def _config(self, task: Task) -> ModelConfig:
        usual = S4DConfig(dt_min=min(0.01, 0.64 / task.length), dt_max=min(0.5, 64 / task.length))
        block = ResidualConfig(usual) if self.block is None else self.block
        head = ClassifierConfig(len(self.classes_))
        entry = ChannelsConfig(task.channels or 1)
        return ModelConfig(entry, block, head, self.d_model, self.layers, final_norm=True)
