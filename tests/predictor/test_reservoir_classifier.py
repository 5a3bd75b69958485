"""The reservoir classifier: its model against numpy, scikit-learn's checks, attacks, streams, saved folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("sklearn")
from sklearn.base import clone
from sklearn.linear_model import RidgeClassifierCV
from sklearn.model_selection import cross_val_score
from sklearn.utils.estimator_checks import check_estimator

import resolvent as rv
from tests.predictor.test_classifier import tones


def classifier(**options: Any) -> Any:
    return rv.ReservoirClassifier(**{"systems": 60, **options})


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_scikit_learns_own_checks() -> None:
    found = check_estimator(classifier(), on_fail=None, on_skip=None)
    assert {r["check_name"]: r["exception"] for r in found if r["status"] not in ("passed", "skipped")} == {}


def test_its_answers_are_those_of_the_formulas() -> None:
    """Kernel, convolution, counting and scikit-learn's ridge in numpy, on the systems and levels that it drew."""
    x, y = tones(30)
    new, _ = tones(12, seed=1)
    made = classifier(systems=20, levels=3).fit(x, y)
    model, how = made.predictor_.model, made.predictor_.preprocess
    layer = next(m for m in model.modules() if isinstance(m, rv.S4D))
    system = layer.system().dense()
    A, B, C = (t.detach().numpy() for t in (system.A.dense(), system.B, system.C))  # of each channel
    kernel = np.stack([(C @ np.linalg.matrix_power(A, t) @ B)[:, 0, 0].real for t in range(24)], 1)  # (d, l)
    entry = model.tower.entry.weight.detach().numpy()
    levels, slope = (p.detach().numpy() for p in (model.head.levels.levels, model.head.levels.slope))

    def shares(raw: np.ndarray) -> np.ndarray:
        u = how(torch.from_numpy(raw.astype(np.float32))).double().numpy() @ entry.T  # (n, l, d)
        out = np.stack([[np.convolve(u[i, :, c], kernel[c])[:24] for c in range(20)] for i in range(len(u))])
        ramp = (out[..., None] - levels[:, None]) * slope[:, None, None]  # (n, d, l, k)
        return np.clip(ramp + 0.5, 0, 1).mean(2).reshape(len(u), -1)

    F = shares(x)
    width = F.std(0)
    width[width == 0] = 1
    known = RidgeClassifierCV(np.logspace(-3, 3, 10)).fit(F / width, y)
    scores = known.decision_function(shares(new) / width)  # positive: the second class
    logits = made.predictor_.outputs(made.predictor_.read(new.astype(np.float32))).numpy()
    factor = (logits[:, 1] - logits[:, 0]) / (2 * scores)
    np.testing.assert_allclose(factor, factor[0], rtol=1e-4)
    assert factor[0] > 0


def test_it_learns_from_few_uneven_samples_with_words() -> None:
    x, y = tones(24)
    new, truth = tones(60, seed=1)
    uneven = [row[: 24 - i % 7] for i, row in enumerate(x)]
    made = classifier(systems=200).fit(uneven, y)
    assert made.score(list(new), truth) > 0.9
    np.testing.assert_allclose(made.predict_proba(list(new)).sum(1), 1)
    alone = np.concatenate([made.predict_proba([row]) for row in uneven[:5]])
    np.testing.assert_allclose(made.predict_proba(uneven[:5]), alone, atol=1e-9)  # padding, batches


def test_equal_seeds_are_equal_and_layouts_too() -> None:
    x, y = tones(20)
    first = classifier().fit(x, y).predict_proba(x)
    np.testing.assert_array_equal(classifier().fit(x, y).predict_proba(x), first)
    np.testing.assert_allclose(classifier(layout="ncl").fit(x.swapaxes(1, 2), y).predict_proba(x.swapaxes(1, 2)), first)
    assert not np.allclose(classifier(random_state=1).fit(x, y).predict_proba(x), first)
    assert np.mean(cross_val_score(clone(classifier()), x, y, cv=3)) > 0.7


def test_its_model_is_attacked_streamed_saved_and_trained_further(tmp_path: Path) -> None:
    x, y = tones(40)
    made = classifier().fit(x, y)
    ready = made.predictor_
    raw = ready.read(x[:10].astype(np.float32))
    labels = torch.from_numpy(np.searchsorted(made.classes_, y[:10]))
    found = rv.attacks.pgd(ready.model, raw.x.double(), labels, rv.Threat("linf", 3.0))
    assert float((ready.model(found.x_adv).argmax(1) == labels).double().mean()) < 0.5  # slopes lead to errors
    state = None
    for t in range(24):
        answer, state = ready.step(x[:10, t].astype(np.float32), state)
    np.testing.assert_allclose(answer, made.predict_proba(x[:10]), atol=1e-5)
    ready.save(tmp_path / "saved")
    np.testing.assert_allclose(rv.load(tmp_path / "saved").predict_proba(x[:10].astype(np.float32)), answer, atol=1e-4)


def test_bad_options_are_named() -> None:
    x, y = tones(10)
    with pytest.raises(ValueError, match="softness"):
        classifier(softness=-1).fit(x, y)
    with pytest.raises(ValueError, match="systems"):
        classifier(systems=0).fit(x, y)
    with pytest.raises(ValueError, match="levels"):
        classifier(levels=0).fit(x, y)
    with pytest.raises(ValueError, match="2 classes"):
        classifier().fit(x, ["one"] * 10)
