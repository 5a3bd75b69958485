"""Models to the hub and back, over a server on this machine that stands for it."""

from __future__ import annotations

import importlib
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hub_stand_in import StandIn

import resolvent as rv
from resolvent.disk import write_json
from resolvent.models import ClassifierConfig, LRUConfig, ModelConfig, ResidualConfig
from resolvent.predictor import card_of
from resolvent.usage.error import UsageError

huggingface_hub = pytest.importorskip("huggingface_hub", reason="needs pip install '.[hub]'")
constants = importlib.import_module("huggingface_hub.constants")
hf_api = importlib.import_module("huggingface_hub.hf_api")
PLACE = constants.HUGGINGFACE_CO_URL_TEMPLATE.removeprefix(constants.ENDPOINT)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    made = StandIn()
    with made.serve():
        ask_at(made.url, monkeypatch)
        yield made


def ask_at(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client takes its address from the environment when it is imported; here it may have been already."""
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + PLACE)
    monkeypatch.setattr(hf_api.api, "endpoint", url)
    monkeypatch.setattr(importlib.import_module("huggingface_hub.utils._http").time, "sleep", lambda seconds: None)


def small() -> rv.Predictor:
    torch.manual_seed(0)
    block = ResidualConfig(LRUConfig(8))
    model = rv.build_model(ModelConfig(block=block, head=ClassifierConfig(3), d_model=8, layers=1))
    how = rv.data.from_arrays(
        np.random.default_rng(0).normal(5, 3, (30, 12, 1)), np.arange(30) % 3, scale="standard"
    ).preprocess
    return rv.Predictor(model, how)


X = np.random.default_rng(1).normal(5, 3, (4, 9, 1))


def test_there_and_back(hub: StandIn, tmp_path: Path) -> None:
    """Answers, preprocessing included, are the same bits; the files are safetensors, JSON and a page."""
    ready = small()
    address = rv.push_to_hub(ready, "me/gait", token="hf_none")
    assert "/me/gait/" in address
    assert set(hub.repos["me/gait"]) == {"model.safetensors", "config.json", "preprocess.json", "README.md"}
    page = hub.repos["me/gait"]["README.md"].decode()
    assert page.startswith("---\nlibrary_name: resolvent\n")
    assert 'rv.from_hub("me/gait")' in page
    back = rv.from_hub("me/gait", cache=tmp_path / "cache")
    assert (back.predict_proba(X) == ready.predict_proba(X)).all()
    assert back.preprocess == ready.preprocess
    again = rv.from_hub("me/gait", cache=tmp_path / "cache", offline=True)
    assert (again.predict_proba(X) == ready.predict_proba(X)).all()


def test_a_card_goes_along(hub: StandIn, tmp_path: Path) -> None:
    place = rv.models.folder_of("digits-l2ru-certified")
    rv.push_to_hub(place, "me/digits")
    card = json.loads(hub.repos["me/digits"]["card.json"])
    assert card["certified"] == rv.models.card("digits-l2ru-certified").certified
    page = hub.repos["me/digits"]["README.md"].decode()
    assert "license: apache-2.0" in page
    assert "| clean | 96.87 |" in page
    parsed = huggingface_hub.ModelCard(page)
    assert parsed.data.license == "apache-2.0"
    assert parsed.data.library_name == "resolvent"


def test_only_our_files_are_fetched(hub: StandIn, tmp_path: Path) -> None:
    """A pickle, or code, beside them is not even asked for; a repository of pickles alone is refused."""
    rv.push_to_hub(small(), "me/mixed")
    hub.repos["me/mixed"] |= {"pytorch_model.bin": b"\x80\x04boom", "modeling.py": b"raise SystemExit"}
    rv.from_hub("me/mixed", cache=tmp_path)
    assert not [path for path in hub.asked if path.endswith((".bin", ".py"))]
    hub.repos["me/pickled"] = {"pytorch_model.bin": b"\x80\x04boom", "config.json": b"{}"}
    with pytest.raises(UsageError, match=r"'me/pickled' holds no model.safetensors of ours.*Pickles are not read"):
        rv.from_hub("me/pickled", cache=tmp_path)
    assert not list(tmp_path.rglob("*.bin"))


def test_weights_that_were_changed_are_refused(hub: StandIn, tmp_path: Path) -> None:
    rv.push_to_hub(small(), "me/gait")
    data = bytearray(hub.repos["me/gait"]["model.safetensors"])
    data[-3] ^= 1
    hub.repos["me/gait"]["model.safetensors"] = bytes(data)
    with pytest.raises(ValueError, match="damaged"):
        rv.from_hub("me/gait", cache=tmp_path)


def test_what_the_hub_refuses_comes_in_one_line(hub: StandIn, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"from_hub: 'me/absent': .*404") as raised:
        rv.from_hub("me/absent", cache=tmp_path)
    assert "\n" not in str(raised.value)
    with pytest.raises(UsageError, match="from_hub: 'no such name!'"):
        rv.from_hub("no such name!", cache=tmp_path)
    with pytest.raises(UsageError, match="from_hub: 'me/absent'"):
        rv.from_hub("me/absent", cache=tmp_path, offline=True)


def test_without_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ask_at("http://127.0.0.1:9", monkeypatch)
    for call in (lambda: rv.from_hub("me/gait", cache=tmp_path), lambda: rv.push_to_hub(small(), "me/gait")):
        with pytest.raises(UsageError, match="'me/gait': ") as raised:
            call()
        assert "\n" not in str(raised.value)


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)  # type: ignore[arg-type]
    with pytest.raises(ImportError, match=r"pip install 'resolvent\[hub\]'"):
        rv.from_hub("me/gait")


def test_the_card_of_a_run(tmp_path: Path) -> None:
    """From its record: AutoAttack with what PGD-10 alone broke, not a quick preset; None where nothing is known."""
    shutil.copytree(rv.models.folder_of("digits-l2ru-certified"), tmp_path / "checkpoint" / "best")
    whole = {"checkpoint": "best", "preset": "standard", "accuracy": 0.5, "samples": 200, "standard_error": 0.035,
             "pgd10": {"accuracy": 0.6, "missed": 2}}  # fmt: skip
    record = {
        "cell": {"recipe": "r", "tags": ["t"], "seed": 3, "budget": {"epochs": 4},
                 "model": {"block": {"layer": {"class": "S4DConfig"}}, "layers": 2, "d_model": 16},
                 "goal": {"kind": "trades", "norm": "linf", "eps": 0.1}},
        "task": {"name": "digits", "length": 64, "channels": 1, "vocabulary": None, "classes": 10,
                 "samples": {"train": 1000, "test": 447}},
        "training": {"parameters": 1818, "summary": {"best": {"test_clean": 0.9125, "test_robust": 0.7}}},
        "attacks": {"fast-best": whole | {"preset": "fast", "accuracy": 0.9}, "standard-best": whole},
    }  # fmt: skip
    assert card_of(tmp_path, "gait") is None
    write_json(tmp_path / "record.json", record)
    card = card_of(tmp_path, "gait", licence="MIT")
    assert card is not None
    assert (card.clean, card.pgd10, card.autoattack, card.standard_error) == (91.25, 60.0, 49.0, 3.5)
    assert (card.model, card.threat, card.seed) == ("S4D, 2 blocks of width 16", "linf, eps 0.1", 3)
    assert card.weights == rv.models.card("digits-l2ru-certified").weights
    assert "| autoattack | 49.0 |" in card.markdown()
