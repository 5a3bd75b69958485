"""What sequence classifiers with scikit-learn's interface share: how they read X and y, and how they answer."""

from __future__ import annotations

import numbers
from abc import ABC, abstractmethod
from typing import Any, Literal, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_array, check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d

from resolvent.data import Task, from_dataset
from resolvent.data.preparation.preprocess import Missing, Scale
from resolvent.models import Model
from resolvent.predictor.predictor import Predictor

Layout = Literal["nlc", "ncl"]


def draw_seed(state: Any) -> int:
    """An integer unchanged; from a RandomState the next draw, so that two fits differ as in scikit-learn."""
    if isinstance(state, numbers.Integral):
        return int(state)
    return int(check_random_state(state).randint(2**31 - 1))


class SequenceEstimator(ClassifierMixin, BaseEstimator, ABC):
    """Reads samples for `fit` and answers by `predictor_`, which a subclass makes in `_learn`."""

    scale: Scale
    missing: Missing
    layout: Layout
    random_state: int | np.random.RandomState | None
    predictor_: Predictor

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
        seed = draw_seed(self.random_state)
        task = self._task(sequences, answers, self._share(len(answers)), seed)
        self.predictor_ = Predictor(self._learn(task, seed).double(), task.preprocess)  # not dependent on the batch
        return self

    @abstractmethod
    def _learn(self, task: Task, seed: int) -> Model:
        """The model learned from the task."""

    def _share(self, samples: int) -> float:
        """The share of the samples that is held out for validation."""
        return 0.0

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

    def _sequences(self, X: Any, first: bool = False) -> list[np.ndarray]:
        """One array (l, c) per sample. A table (n, l) is n sequences of one channel."""
        finite: Any = True if self.missing == "refuse" else "allow-nan"
        if self.layout not in ("nlc", "ncl"):
            raise ValueError(f"{type(self).__name__}: layout must be 'nlc' or 'ncl', got {self.layout!r}.")
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

    def _task(self, sequences: list[np.ndarray], answers: np.ndarray, share: float, seed: int) -> Task:
        names = tuple(str(name) for name in self.classes_)
        names = names if len(set(names)) == len(names) else ()
        pairs: Any = list(zip(sequences, answers.tolist(), strict=True))
        return from_dataset(
            pairs,
            class_names=names,
            fractions=(share, 0.0),
            seed=seed,
            scale=self.scale,
            missing=self.missing,
        )
