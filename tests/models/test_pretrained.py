"""Models that come with the package: what their cards say is what they do."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import resolvent as rv
from resolvent.models import card, count_parameters, pretrained, pretrained_names
from resolvent.models.shipped import CARD, folder_of

NAMES = pretrained_names()


def test_some_are_there() -> None:
    assert {"scifar10-s4-pgd-at", "digits-l2ru-certified"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_the_card_is_of_these_weights(name: str) -> None:
    made, model = card(name), pretrained(name)
    assert not model.training
    assert made.parameters == count_parameters(model)
    weights = folder_of(name) / "model.safetensors"
    assert made.weights == hashlib.sha256(weights.read_bytes()).hexdigest()
    assert all((made.commit, made.command, made.licence))
    assert (folder_of(name) / "README.md").read_text(encoding="utf-8") == made.markdown()


@pytest.mark.parametrize("name", NAMES)
def test_it_predicts(name: str) -> None:
    ready = rv.load(folder_of(name))
    steps, channels = ready.preprocess.length, ready.preprocess.inputs
    x = np.random.default_rng(0).random((2, steps, channels), dtype=np.float32)
    assert ready.predict_proba(x).shape == (2, 10)
    with torch.no_grad():
        assert torch.equal(pretrained(name)(torch.tensor(x)).argmax(1), ready.outputs(ready.read(x)).argmax(1))


def test_what_the_certificate_says() -> None:
    name, task = "digits-l2ru-certified", rv.load_task("digits")
    model = pretrained(name)
    gain = rv.analysis.certified_gain(model.gain_parts(task.length))
    found = rv.analysis.certify(model, task.test.x, task.test.y, gain)
    assert 100 * float(found.correct.double().mean()) == pytest.approx(card(name).clean, abs=0.01)
    for radius, accuracy in card(name).certified.items():
        assert 100 * float(found.accuracy(float(radius))) == pytest.approx(accuracy, abs=0.5)


@pytest.mark.slow
def test_clean_accuracy_on_cifar10() -> None:
    try:
        task = rv.load_task("cifar10")
    except FileNotFoundError as absent:
        pytest.skip(f"CIFAR-10 is not here: {absent}")
    split = task.test.select(torch.arange(1000))
    with torch.no_grad():
        right = (pretrained("scifar10-s4-pgd-at")(split.x).argmax(1) == split.y).double().mean()
    assert float(right) == pytest.approx(card("scifar10-s4-pgd-at").clean / 100, abs=0.045)  # three standard errors


def test_another_name_is_told_the_nearest() -> None:
    with pytest.raises(ValueError, match="scifar10-s4-pgd-at"):
        pretrained("scifar10-s4-pgdat")
    with pytest.raises(ValueError, match="must be one of"):
        card("../../models")


def test_a_changed_card_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "digits-l2ru-certified"
    shutil.copytree(folder_of("digits-l2ru-certified"), place)
    record = json.loads((place / CARD).read_text())
    record["clean"] = 99.9
    (place / CARD).write_text(json.dumps(record))
    monkeypatch.setattr("resolvent.models.shipped.HERE", tmp_path)
    with pytest.raises(ValueError, match="card"):
        card("digits-l2ru-certified")
