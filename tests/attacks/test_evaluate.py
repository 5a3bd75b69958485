"""Evaluations: one record per sample that can be checked by hand, loaders, folders, a surrogate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset
from victims import BOX, Recurrent, labelled, sequences

from resolvent.attacks import PGD, Threat
from resolvent.attacks.autoattack.evaluate import EvaluationSettings, evaluate
from resolvent.attacks.square.attack import Square

QUICK = (PGD(steps=4, stop=True), Square(n_queries=12))
SMALL = EvaluationSettings(batch_size=5, probe=0)


def case(n: int = 16) -> tuple[Recurrent, torch.Tensor, torch.Tensor]:
    model = Recurrent()
    x = sequences(n)
    return model, x, labelled(model, x)


def test_records_are_what_the_model_says() -> None:
    model, x, y = case()
    evaluation = evaluate(model, (x, y), BOX, QUICK, settings=EvaluationSettings(seed=3, batch_size=5, probe=0))
    with torch.no_grad():
        clean, now = model.eval()(x), model(evaluation.result.x_adv)
    for i, record in enumerate(evaluation.records):
        rest = now[i].clone()
        rest[y[i]] = -torch.inf
        assert record.index == i
        assert record.label == int(y[i])
        assert record.clean_prediction == int(clean[i].argmax())
        assert record.prediction == int(now[i].argmax())
        assert (record.broken_by is None) == (record.prediction == record.label)
        assert (record.broken_by == "clean") == (record.clean_prediction != record.label)
        assert record.margin == pytest.approx(float(rest.max() - now[i, y[i]]), abs=1e-6)
        assert record.norm == pytest.approx(float((evaluation.result.x_adv[i] - x[i]).abs().max()), abs=1e-7)
        assert record.queries >= 1
        assert record.seed == 3
    assert evaluation.accuracy == sum(r.broken_by is None for r in evaluation.records) / len(x)


def test_a_loader_and_its_first_samples() -> None:
    model, x, y = case()
    loader = DataLoader(TensorDataset(x, y), batch_size=3)
    whole = evaluate(model, (x, y), BOX, QUICK, settings=SMALL)
    assert evaluate(model, loader, BOX, QUICK, settings=SMALL).records == whole.records
    part = evaluate(model, loader, BOX, QUICK, settings=EvaluationSettings(batch_size=5, samples=7, probe=0))
    assert len(part.records) == 7


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        ([], ValueError, "loader is empty"),
        (DataLoader(TensorDataset(torch.rand(0, 6, 3), torch.zeros(0).long())), ValueError, "loader is empty"),
        (3, TypeError, "loader"),
        ([(torch.rand(2, 6, 3),)], TypeError, "pairs of tensors"),
        ([torch.rand(2, 6, 3)], TypeError, "pairs of tensors"),
    ],
)
def test_bad_data(data: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        evaluate(Recurrent(), data, BOX, QUICK)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"samples": "2000"}, TypeError, "samples must be a whole number, got '2000'"),
        ({"samples": 0}, ValueError, "samples"),
        ({"batch_size": 1.5}, TypeError, "batch_size"),
        ({"seed": -1}, ValueError, "seed"),
        ({"shard": (2, 2)}, ValueError, "i < k"),
        ({"shard": (0, 0)}, ValueError, "shards"),
        ({"shard": 3}, TypeError, "shard must be a pair"),
        ({"probe": -1}, ValueError, "probe"),
    ],
)
def test_bad_settings(given: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        EvaluationSettings(**given)


def test_an_empty_shard_is_refused() -> None:
    model, x, y = case(2)
    with pytest.raises(ValueError, match="shard"):
        evaluate(model, (x, y), BOX, QUICK, settings=EvaluationSettings(shard=(2, 3)))


def test_a_folder_holds_the_whole_story(tmp_path: Path) -> None:
    model, x, y = case()
    evaluation = evaluate(model, (x, y), BOX, QUICK, settings=SMALL, folder=tmp_path)
    record = json.loads((tmp_path / "record.json").read_text())
    assert record["accuracy"] == evaluation.accuracy
    assert record["table"] == evaluation.result.table
    assert [attack["name"] for attack in record["attacks"]] == ["pgd-4", "square"]
    assert record["attacks"][0]["objective"] == "cross_entropy"
    assert record["threat"] == {"norm": "linf", "eps": pytest.approx(0.03), "bounds": [0.0, 1.0], "mask": None}
    assert len(record["records"]) == len(x)
    assert not list(tmp_path.glob("*.p*t"))
    again = evaluate(model, (x, y), BOX, QUICK, settings=SMALL, folder=tmp_path)
    assert torch.equal(again.result.x_adv, evaluation.result.x_adv)
    assert again.records == evaluation.records


@pytest.mark.parametrize("kept", [0, 1, 2, 4])
def test_whatever_a_kill_left_is_built_upon(tmp_path: Path, kept: int) -> None:
    """Every prefix of the pieces is what some kill leaves behind: the rest is done again, to the same bits."""
    model, x, y = case()
    whole = evaluate(model, (x, y), BOX, QUICK, settings=SMALL, folder=tmp_path)
    for path in sorted(tmp_path.glob("*.safetensors"))[kept:]:
        path.unlink()
    again = evaluate(model, (x, y), BOX, QUICK, settings=SMALL, folder=tmp_path)
    assert torch.equal(again.result.x_adv, whole.result.x_adv)
    assert again.to_dict() == whole.to_dict()


class Counting(Recurrent):
    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        type(self).calls += x.shape[0]
        return super().forward(x)


def test_a_finished_folder_is_not_attacked_again(tmp_path: Path) -> None:
    model, x, y = Counting(), sequences(16), labelled(Recurrent(), sequences(16))
    evaluate(model, (x, y), BOX, QUICK, settings=SMALL, folder=tmp_path)
    Counting.calls = 0
    evaluate(model, (x, y), BOX, QUICK, settings=SMALL, folder=tmp_path)
    assert Counting.calls == 3 * 16 + 2 * 16  # a look before work, clean outputs, the verdict again


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"threat": Threat("linf", 0.04, bounds=(0.0, 1.0))}, "threat.eps"),
        ({"threat": Threat("l2", 0.03, bounds=(0.0, 1.0))}, "threat.norm"),
        ({"threat": Threat("linf", 0.03)}, "threat.bounds"),
        ({"preset": (PGD(steps=5, stop=True), Square(n_queries=12))}, "attacks[0].name"),
        ({"preset": (PGD(steps=4, stop=True), Square(n_queries=13))}, "attacks[1].n_queries"),
        ({"settings": EvaluationSettings(seed=1, batch_size=5, probe=0)}, "seed"),
        ({"settings": EvaluationSettings(batch_size=6, probe=0)}, "batch_size"),
        ({"settings": EvaluationSettings(batch_size=5, samples=10, probe=0)}, "samples"),
        ({"data": (sequences(16, seed=2), torch.zeros(16, dtype=torch.int64))}, "x"),
    ],
)
def test_a_changed_configuration_is_refused_by_field(tmp_path: Path, change: dict[str, Any], field: str) -> None:
    model, x, y = case()
    call: dict[str, Any] = {"data": (x, y), "threat": BOX, "preset": QUICK, "settings": SMALL}
    evaluate(model, **call, folder=tmp_path)
    with pytest.raises(ValueError, match="another configuration") as caught:
        evaluate(model, **{**call, **change}, folder=tmp_path)
    assert f": {field} was " in str(caught.value)


def test_another_model_is_refused(tmp_path: Path) -> None:
    model, x, y = case()
    evaluate(model, (x, y), BOX, QUICK, settings=SMALL, folder=tmp_path)
    with pytest.raises(ValueError, match="another model"):
        evaluate(Recurrent(seed=5), (x, y), BOX, QUICK, settings=SMALL, folder=tmp_path)


def test_progress_is_told_per_attack() -> None:
    model, x, y = case()
    heard: list[tuple[str, int, int]] = []
    evaluate(model, (x, y), BOX, QUICK, settings=SMALL, listener=lambda *news: heard.append(news))
    assert heard[0] == ("pgd-4", 5, 14)
    assert [done for name, done, _ in heard if name == "pgd-4"] == [5, 10, 14]
