"""All steps of an attack in one call lead where steps one by one through the modules lead."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from pgd_loops import check_training
from torch import Tensor

from helpers import assert_close, stirred
from resolvent.attacks import Draws, Threat, kl
from resolvent.lowering import lowered
from resolvent.lowering.cpu.lanes import Path, run_loop
from resolvent.models.config import AdSConfig, ChannelsConfig, ClassifierConfig, ModelConfig, ResidualConfig
from resolvent.models.layer_config import S4DConfig
from resolvent.models.model import Model
from resolvent.models.presets import robustness
from resolvent.runtime.dispatch import use
from resolvent.training import pgd_at, trades
from resolvent.training.step import adversarial
from resolvent.training.step.batch import Batch, criterion

pytest.importorskip("numba")
EPS = 0.2


def config(d: int = 6, channels: int = 2, head: Any = None, **more: Any) -> ModelConfig:
    block = ResidualConfig(S4DConfig(4), mixer="linear", activation="gelu", final_activation="none")
    head = head or ClassifierConfig(5, "mean")
    return replace(
        robustness("s4"), d_model=d, layers=2, input=ChannelsConfig(channels), block=block, head=head, **more
    )


def model_of(settings: ModelConfig, dtype: torch.dtype = torch.float64) -> Model:
    return stirred(settings, 0.2, dtype)


def batch_of(b: int, l: int, c: int = 2, dtype: torch.dtype = torch.float64, classes: int = 5) -> Batch:
    g = torch.Generator().manual_seed(1)
    x = torch.rand(b, l, c, generator=g, dtype=torch.float64).to(dtype)
    return Batch(x, torch.arange(b) % classes, None, Draws(0, torch.arange(b)))


def at_once(model: Model, start: Tensor, target: Tensor, box: tuple[Tensor, Tensor], steps: int) -> Tensor | None:
    form = lowered.Lowered(model)
    with torch.no_grad():
        tables = form.tables(start.shape[1], start.dtype)
    size = torch.full((len(start), 1, 1), 0.5 * EPS, dtype=start.dtype)
    return form.run_loop(start, Path(target, *box, size, steps), tables)


def one_by_one(model: Model, batch: Batch, reach: tuple[Any, ...], steps: int) -> Tensor:
    """Through the modules."""
    objective = pgd_at(Threat("linf", EPS, (0, 1)), steps=steps, step_size=0.5 * EPS)
    threat = batch.fitted(objective.inner.threat)

    def f(x: Tensor) -> Tensor:
        return model.from_embedding(model.embed(x))

    return adversarial.rise(f, objective.inner.ascent(threat, batch.x), batch.x, reach)


def box_of(x: Tensor) -> tuple[Tensor, Tensor]:
    return (x - EPS).clamp(min=0.0), (x + EPS).clamp(max=1.0)


def compare(model: Model, batch: Batch, steps: int = 3) -> None:
    """For labels, then for probabilities."""
    clean = model(batch.x).detach().roll(1, 0) * 1.5  # another sample's: the KL to one's own has no slope at the start
    for target, reach in ((batch.y, (criterion, batch.y)), (clean.softmax(-1), (kl, clean))):
        got = at_once(model, batch.x, target, box_of(batch.x), steps)
        assert got is not None
        assert_close(got, one_by_one(model, batch, reach, steps))
        assert (got != batch.x).any()


@pytest.mark.parametrize(("b", "l", "d", "c"), [(1, 1, 3, 1), (8, 12, 4, 5), (19, 33, 13, 1), (2, 64, 8, 3)])
def test_shapes(b: int, l: int, d: int, c: int) -> None:
    compare(model_of(config(d, c)), batch_of(b, l, c))


@pytest.mark.parametrize("prenorm", [True, False])
@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_scaffolds(pooling: Any, prenorm: bool) -> None:
    head = ClassifierConfig(5, pooling)
    ads = AdSConfig("tanh", False)
    compare(model_of(config(head=head, prenorm=prenorm, final_norm=prenorm, ads=ads)), batch_of(9, 10))


def test_float32() -> None:
    """A rounded slope near zero may take another sign: nearly all samples agree in all places."""
    model, batch = model_of(config(), torch.float32), batch_of(16, 20, dtype=torch.float32)
    got = at_once(model, batch.x, batch.y, box_of(batch.x), 1)
    assert got is not None
    want = one_by_one(model, batch, (criterion, batch.y), 1)
    assert ((got - want).abs() > 1e-5).double().mean() < 0.01


def test_neither_threads_nor_cohorts_change_a_bit() -> None:
    model, batch = model_of(config(), torch.float32), batch_of(37, 30, dtype=torch.float32)
    threads = torch.get_num_threads()
    low, high = box_of(batch.x)
    found = []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            found.append(at_once(model, batch.x, batch.y, (low, high), 4))
    finally:
        torch.set_num_threads(threads)
    alone = at_once(model, batch.x[11:13], batch.y[11:13], (low[11:13], high[11:13]), 4)
    assert found[0] is not None
    assert alone is not None
    assert torch.equal(found[0], found[1])  # type: ignore[arg-type]
    assert torch.equal(found[0], found[2])  # type: ignore[arg-type]
    assert torch.equal(found[0][11:13], alone)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, 1.5e308])
def test_a_sample_that_is_not_finite_stays_put_and_spoils_no_other(bad: float) -> None:
    model, batch = model_of(config(norm="none", input_norm="none")), batch_of(3, 10)
    low, high = torch.full_like(batch.x, -torch.inf), torch.full_like(batch.x, torch.inf)
    spoilt = batch.x.clone()
    spoilt[1, 4, 0] = bad
    with torch.no_grad():
        model.tower.entry.weight.mul_(3)  # so that the largest of the three overflows on its way
    want, got = (at_once(model, x, batch.y, (low, high), 2) for x in (batch.x, spoilt))
    assert want is not None
    assert got is not None
    assert torch.equal(got[[0, 2]], want[[0, 2]])
    assert (want[1] != batch.x[1]).any()
    assert torch.equal(got[1].nan_to_num(7.0), spoilt[1].nan_to_num(7.0))


@pytest.mark.parametrize("make", [pgd_at, trades])
def test_training_takes_it(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch, objective = model_of(config()), batch_of(10, 12), make(Threat("linf", EPS, (0, 1)), steps=3)
    check_training(model, batch, objective, monkeypatch)


def test_what_it_does_not_know_runs_as_ever() -> None:
    batch = batch_of(4, 6)
    with use("torch"):
        assert at_once(model_of(config()), batch.x, batch.y, box_of(batch.x), 2) is None
    deep = model_of(config(head=ClassifierConfig(5, "mean", hidden=7)))
    assert at_once(deep, batch.x, batch.y, box_of(batch.x), 2) is None
    one = model_of(config(head=ClassifierConfig(1, "mean")))
    assert at_once(one, batch.x, batch.y % 2, box_of(batch.x), 2) is None
    objective, halves = pgd_at(Threat("linf", EPS), steps=2), replace(batch, y=batch.y % 2)
    assert objective(one, halves).value.isfinite()
    real = replace(batch, y=torch.rand(4, 5, dtype=torch.float64))
    assert objective(model_of(config()), real).value.isfinite()


@pytest.mark.parametrize("label", [5, -1])
def test_a_label_that_names_no_class_is_refused_as_ever(label: int) -> None:
    model, batch = model_of(config()), batch_of(4, 6)
    wrong = replace(batch, y=torch.tensor([0, 1, label, 2]))
    assert at_once(model, batch.x, wrong.y, box_of(batch.x), 2) is None
    with pytest.raises(IndexError, match="out of bounds"):
        pgd_at(Threat("linf", EPS), steps=2)(model, wrong)


def test_sizes_that_do_not_fit_are_left_to_others() -> None:
    model, x = model_of(config()), torch.rand(4, 6, 2, dtype=torch.float64)
    form = lowered.Lowered(model)
    with torch.no_grad():
        tables = form.tables(6, torch.float64)
    size = torch.full((1, 1, 1), 0.1, dtype=torch.float32)
    labels = torch.tensor([0, 1, 2, 3])

    def found(start: Tensor, target: Tensor) -> Tensor | None:
        bound = torch.zeros(1, 1, 1, dtype=torch.float32)
        return form.run_loop(start, Path(target, bound, bound + 1, size, 1), tables)

    moved = found(x, labels)
    assert moved is not None
    far = (moved - x).abs()  # one number for all samples, of another type
    assert ((far < 0.1 + 1e-6) & (moved >= 0) & (moved <= 1)).all()
    assert (far > 0.1 - 1e-6).any()
    assert found(x[:, :5], labels) is None
    assert found(x[:, :, :1], labels) is None
    assert found(x.float(), labels) is None
    assert found(x, labels[:3]) is None
    assert found(x, torch.ones(4, 3, dtype=torch.float64) / 3) is None


def test_no_bias() -> None:
    model, batch = model_of(config()), batch_of(3, 6)
    form = lowered.Lowered(model)
    with torch.no_grad():
        tables = form.tables(6, torch.float64)
        model.head.out.bias.zero_()  # type: ignore[union-attr]
    size = torch.full((3, 1, 1), 0.5 * EPS, dtype=torch.float64)
    assert tables.plan is not None
    got = run_loop(batch.x, tables.plan, (model.head.out.weight, None), Path(batch.y, *box_of(batch.x), size, 2))
    assert got is not None
    assert_close(got, one_by_one(model, batch, (criterion, batch.y), 2))
