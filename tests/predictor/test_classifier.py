"""The estimator under scikit-learn's own checks, in its pipelines and searches, on sequences of three layouts."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sklearn")
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import check_estimator

import resolvent as rv
from resolvent.models import ResidualConfig, S5Config

QUICK = {"epochs": 8, "d_model": 8, "layers": 1}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_scikit_learns_own_checks() -> None:
    """All but what needs pandas or an array API that is not switched on."""
    found = check_estimator(rv.SequenceClassifier(**QUICK), on_fail=None, on_skip=None)
    assert {r["check_name"]: r["exception"] for r in found if r["status"] not in ("passed", "skipped")} == {}
    assert sum(r["status"] == "passed" for r in found) >= 50


def tones(n: int = 60, l: int = 24, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Slow or quick oscillations in the first of two channels; the second is noise. Words as classes."""
    rng = np.random.default_rng(seed)
    quick = rng.integers(0, 2, n).astype(bool)
    phase, t = rng.uniform(0, 6, (n, 1)), np.arange(l)
    x = np.stack([np.sin(np.where(quick, 2.2, 0.4)[:, None] * t + phase), rng.normal(size=(n, l))], -1)
    return 5 + 3 * x, np.where(quick, "quick", "slow")


def classifier(**options: Any) -> Any:
    return rv.SequenceClassifier(**{**QUICK, "epochs": 15, **options})


def test_it_learns_and_answers_with_the_classes_given() -> None:
    x, y = tones()
    new, truth = tones(seed=1)
    made = classifier(epochs=30, d_model=16, batch_size=16).fit(x, y)
    assert made.score(new, truth) > 0.9
    assert set(made.predict(new)) == {"quick", "slow"}
    np.testing.assert_allclose(made.predict_proba(new).sum(1), 1)
    assert made.classes_[made.predict_proba(new).argmax(1)].tolist() == made.predict(new).tolist()
    numbers = classifier(epochs=2).fit(x, np.where(y == "quick", 7, -3))
    assert set(numbers.classes_) == {7, -3}


def test_layouts_and_lists_are_the_same_samples() -> None:
    x, y = tones(30)
    first = classifier(epochs=2).fit(x, y)
    turned = classifier(epochs=2, layout="ncl").fit(x.transpose(0, 2, 1), y)
    np.testing.assert_array_equal(first.predict_proba(x), turned.predict_proba(x.transpose(0, 2, 1)))
    np.testing.assert_allclose(first.predict_proba(list(x)), first.predict_proba(x), atol=1e-12)
    cut = [v[: 10 + i % 9] for i, v in enumerate(x)]
    padded = np.zeros_like(x)
    for i, v in enumerate(cut):
        padded[i, : len(v)] = v
    lengths = [len(v) for v in cut]
    expected = first.predictor_.predict_proba(padded.astype(np.float32), lengths)
    np.testing.assert_allclose(first.predict_proba(cut), expected, atol=1e-12)


def test_pipelines_searches_and_pickles() -> None:
    x, y = tones(30)
    scores = cross_val_score(make_pipeline(FunctionTransformer(lambda v: v[:, ::2]), classifier(epochs=1)), x, y, cv=2)
    assert len(scores) == 2
    grid = {"block": [None, ResidualConfig(S5Config(d_state=8))]}
    found = GridSearchCV(classifier(epochs=1), grid, cv=2).fit(x, y)
    again = pickle.loads(pickle.dumps(found.best_estimator_))
    np.testing.assert_array_equal(again.predict_proba(x), found.best_estimator_.predict_proba(x))


def test_it_is_trained_against_an_attacker_saved_and_attacked(tmp_path: Path) -> None:
    x, y = tones(30)
    made = classifier(epochs=1, objective=rv.trades(rv.Threat("linf", 0.2), steps=2)).fit(x, y)
    made.predictor_.save(tmp_path / "kept")
    np.testing.assert_array_equal(rv.load(tmp_path / "kept").predict(x.astype(np.float32)), made.predict(x))
    assert "validation_robust" in made.history_.rows[-1]


def test_missing_values() -> None:
    x, y = tones(30)
    x[3, 4, 0] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        classifier().fit(x, y)
    made = classifier(epochs=1, missing="ffill").fit(x, y)
    assert np.isfinite(made.predict_proba(x)).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, y: (x, y[:-1]), "one label per sample"),
        (lambda x, y: (x, np.full(len(y), "one")), "at least 2 classes"),
        (lambda x, y: (x[:, :, :, None], y), "x of shape"),
        (lambda x, y: (x[:0], y[:0]), "0 sample"),
    ],
)
def test_bad_input_is_refused(change: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        classifier(epochs=1).fit(*change(*tones(12)))


def test_another_width_is_refused() -> None:
    x, y = tones(12)
    made = classifier(epochs=1).fit(x, y)
    with pytest.raises(ValueError, match="X has 1 features, but SequenceClassifier is expecting 2"):
        made.predict(x[..., :1])
    with pytest.raises(ValueError, match="layout must be"):
        classifier(layout="cnl").fit(x, y)


@pytest.mark.parametrize(("best", "last", "kept"), [(0.9, 0.9, "last"), (0.9, 0.8, "best"), (0.8, 0.9, "last")])
def test_of_equals_the_last_epoch_is_kept(best: float, last: float, kept: str) -> None:
    """Ten validation samples are all right early on; what was learned since then is not thrown away."""
    from resolvent.predictor.classifier import _better
    from resolvent.training import History

    rows = {"best": {"epoch": 2, "validation_clean": best}, "last": {"epoch": 9, "validation_clean": last}}
    assert _better(History((), rows)) == kept
    robust = {name: row | {"validation_robust": 0.5} for name, row in rows.items()}
    robust["best"]["validation_robust"] = 0.6
    assert _better(History((), robust)) == "best"


def slopes() -> tuple[np.ndarray, np.ndarray]:
    """X (n, 1, l), rising or falling under noise."""
    rng, y = np.random.default_rng(0), np.array(["up", "down"] * 20)
    slope = np.where(y == "up", 1.0, -1.0)[:, None, None] * np.linspace(-2, 2, 16)
    return rng.normal(size=(40, 1, 16)) + slope, y


def test_it_runs_inside_aeon() -> None:
    """Among its own pipelines and ensembles, on its layout of arrays."""
    pipeline = pytest.importorskip("aeon.pipeline", reason="needs pip install aeon")
    from aeon.classification.compose import ClassifierEnsemble
    from aeon.classification.distance_based import KNeighborsTimeSeriesClassifier
    from aeon.transformations.collection import Normalizer

    own = rv.SequenceClassifier(layout="ncl", epochs=20, d_model=8, layers=1)
    X, y = slopes()
    assert pipeline.make_pipeline(Normalizer(), own).fit(X, y).score(X, y) > 0.9
    assert (ClassifierEnsemble([own, KNeighborsTimeSeriesClassifier()]).fit(X, y).predict(X) == y).mean() > 0.9


def test_it_runs_behind_transformers_of_sktime() -> None:
    exponent = pytest.importorskip("sktime.transformations.series.exponent", reason="needs pip install sktime")
    X, y = slopes()
    own = rv.SequenceClassifier(epochs=20, d_model=8, layers=1)
    piped = exponent.ExponentTransformer(1, 0) * own  # which changes nothing
    assert (piped.fit(X, y).predict(X) == own.fit(X[:, 0], y).predict(X[:, 0])).all()


def test_few_samples_are_seen_more_often() -> None:
    """By cross-validation on training parts 30 epochs of one or two steps each were too few."""
    X, y = slopes()
    few = rv.SequenceClassifier(d_model=4, layers=1).fit(X[:, 0], y)
    assert len(few.history_.rows) == 100  # two steps each: 34 samples
    assert len(rv.SequenceClassifier(epochs=3, d_model=4, layers=1).fit(X[:, 0], y).history_.rows) == 3
    with pytest.raises(ValueError, match="batch_size"):
        rv.SequenceClassifier(batch_size=0).fit(X[:, 0], y)


def test_of_few_samples_none_is_left_out() -> None:
    """By cross-validation on training parts, too: the score of ten samples chooses no epoch."""
    X, y = np.random.default_rng(0).normal(size=(340, 3, 1)), ["a", "b"] * 170
    quick = {"d_model": 2, "layers": 1, "epochs": 2}
    few = rv.SequenceClassifier(**quick).fit(X[:330], y[:330])
    assert ["validation_clean" in row for row in few.history_.rows] == [False, True]  # the last epoch is kept
    assert few.history_.best["epoch"] == 2
    for enough in (rv.SequenceClassifier(**quick).fit(X, y), rv.SequenceClassifier(**quick, validation=0.1).fit(X, y)):
        assert ["validation_clean" in row for row in enough.history_.rows] == [True, True]
    learned = few.predictor_.preprocess.centre
    assert learned == pytest.approx((float(X[:330].mean()),), rel=1e-4)  # of all of them


def test_random_states_of_scikit_learn() -> None:
    X, y = slopes()

    def answer(state: object) -> np.ndarray:
        return (
            rv.SequenceClassifier(epochs=1, d_model=4, layers=1, random_state=state)
            .fit(X[:, 0], y)
            .predict_proba(X[:, 0])
        )

    assert (answer(np.int64(3)) == answer(3)).all()
    one = np.random.RandomState(0)
    assert (answer(one) != answer(one)).any()
    assert (answer(np.random.RandomState(0)) == answer(np.random.RandomState(0))).all()
    assert answer(None).shape == (40, 2)


def test_an_array_of_sequences() -> None:
    X, y = slopes()
    uneven = [x[: 4 + i % 9, None] for i, x in enumerate(X[:, 0])]
    held = np.empty(40, dtype=object)
    held[:] = uneven
    own = rv.SequenceClassifier(epochs=1, d_model=4, layers=1)
    assert (own.fit(held, y).predict_proba(held) == own.fit(uneven, y).predict_proba(uneven)).all()
