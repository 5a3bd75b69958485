"""A sequence classifier with scikit-learn's interface, for its pipelines, searches and cross-validation.

    SequenceClassifier(epochs=20).fit(X, y).predict(X_new)            # X (n, l, c), (n, l), or a list of (l, c)
    SequenceClassifier(layout="ncl")                                  # as aeon and sktime order their axes
    SequenceClassifier(objective=rv.trades(rv.Threat("linf", 0.1)))   # trained against an attacker

`predictor_` is a predictor as from `rv.load`, which can be attacked, certified, saved and streamed.
"""

from __future__ import annotations

import math
import numbers
from dataclasses import replace
from typing import Any, Literal, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_array, check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d

from resolvent.data import Task, from_dataset
from resolvent.data.preparation.preprocess import Missing, Scale
from resolvent.models import ChannelsConfig, ClassifierConfig, ModelConfig, ResidualConfig, S4DConfig, build_model
from resolvent.models.config import BlockConfig
from resolvent.predictor.predictor import Predictor
from resolvent.training import FitSettings, History, Objective, fit

Layout = Literal["nlc", "ncl"]
EPOCHS, STEPS = 30, 200  # minimum; docs/predict.md has the comparison on training parts
SHARE, ENOUGH = 0.15, 50  # share held out for validation, if at least ENOUGH samples: fewer give no reliable score


def _better(history: History) -> str:
    """The best epoch, or the last if it is no worse: with few validation samples many epochs get all right, and the
    first of them has trained least."""

    def rank(row: dict[str, Any]) -> list[float]:
        return [row[key] for key in ("validation_robust", "validation_clean") if key in row]

    return "last" if rank(history.last) >= rank(history.best) else "best"


def _draw_seed(state: Any) -> int:
    """An integer unchanged; from a RandomState the next draw, so that two fits differ as in scikit-learn."""
    if isinstance(state, numbers.Integral):
        return int(state)
    return int(check_random_state(state).randint(2**31 - 1))


class SequenceClassifier(ClassifierMixin, BaseEstimator):
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

    def fit(self, X: Any, y: Any) -> Self:
        """X (n, l, c) in the layout's order, (n, l), or a list of n sequences (l, c) of any lengths; y (n,)."""
        sequences = self._sequences(X, first=True)
        y = column_or_1d(y, warn=True)
        check_classification_targets(y)
        if len(y) != len(sequences):
            raise ValueError(f"fit: expected one label per sample, got {len(sequences)} samples and {len(y)} labels.")
        self.classes_, answers = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"fit: expected at least 2 classes in y, got 1 class ({self.classes_[0]!r}).")
        seed = _draw_seed(self.random_state)
        task = self._task(sequences, answers, seed)
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
        self.history_ = fit(model, task, self.objective, settings)
        self.history_.load(model, _better(self.history_))
        self.predictor_ = Predictor(model.double(), task.preprocess)  # float64: results do not depend on the batch
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """(n, classes), in the order of `classes_`."""
        check_is_fitted(self)
        raw = self.predictor_.read(self._sequences(X))
        return self.predictor_.probabilities(self.predictor_.outputs(raw))

    def predict(self, X: Any) -> np.ndarray:
        """(n,) of `classes_`."""
        check_is_fitted(self)
        found: np.ndarray = self.classes_[self.predict_proba(X).argmax(1)]
        return found

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        tags.input_tags.allow_nan = self.missing != "refuse"
        return tags

    # -- helpers ----------------------------------------------------------------------------------------------------

    def _count_epochs(self, samples: int) -> int:
        return max(EPOCHS, math.ceil(STEPS / math.ceil(samples / max(1, self.batch_size))))

    def _sequences(self, X: Any, first: bool = False) -> list[np.ndarray]:
        """One array (l, c) per sample. A table (n, l) is n sequences of one channel."""
        finite: Any = True if self.missing == "refuse" else "allow-nan"
        if self.layout not in ("nlc", "ncl"):
            raise ValueError(f"SequenceClassifier: layout must be 'nlc' or 'ncl', got {self.layout!r}.")
        if isinstance(X, np.ndarray) and X.dtype == object and X.ndim == 1:
            X = list(X)  # of sequences of different lengths
        uneven = isinstance(X, list | tuple) and len({np.shape(x) for x in X}) > 1
        if uneven:
            found = [check_array(x, ensure_all_finite=finite, dtype="numeric", estimator=self) for x in X]
        else:
            array = check_array(X, allow_nd=True, ensure_all_finite=finite, dtype="numeric", estimator=self)
            found = list(array[..., None] if array.ndim == 2 else array)
        if self.layout == "ncl" and (uneven or array.ndim == 3):
            found = [x.T for x in found]
        self._check_width(found, None if uneven or array.ndim != 2 else array.shape[1], first)
        return [np.ascontiguousarray(x, dtype=np.float32) for x in found]

    def _check_width(self, found: list[np.ndarray], columns: int | None, first: bool) -> None:
        """For a table the columns must match `fit`, as usual in scikit-learn; otherwise the channels."""
        width = columns or found[0].shape[1]
        if first:
            self.n_features_in_ = width
        elif width != self.n_features_in_:
            own = f"{type(self).__name__} is expecting {self.n_features_in_}"
            raise ValueError(f"X has {width} features, but {own} features as input")

    def _task(self, sequences: list[np.ndarray], answers: np.ndarray, seed: int) -> Task:
        names = tuple(str(name) for name in self.classes_)
        names = names if len(set(names)) == len(names) else ()
        pairs: Any = list(zip(sequences, answers.tolist(), strict=True))
        few = self.validation is None and SHARE * len(answers) < ENOUGH
        share = 0.0 if few else SHARE if self.validation is None else self.validation
        return from_dataset(
            pairs,
            class_names=names,
            fractions=(share, 0.0),
            seed=seed,
            scale=self.scale,
            missing=self.missing,
        )

    def _config(self, task: Task) -> ModelConfig:
        usual = S4DConfig(dt_min=min(0.01, 0.64 / task.length), dt_max=min(0.5, 64 / task.length))
        block = ResidualConfig(usual) if self.block is None else self.block
        head = ClassifierConfig(len(self.classes_))
        entry = ChannelsConfig(task.channels or 1)
        return ModelConfig(entry, block, head, self.d_model, self.layers, final_norm=True)
