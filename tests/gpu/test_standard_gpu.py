"""Standard training on a GPU: the step is recorded, and its replays are the step. Batches from there and elsewhere."""

from __future__ import annotations

import copy
import gc
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from resolvent.attacks import Draws
from resolvent.attacks.capacity import TooMany
from resolvent.data import Loader, Split, from_arrays
from resolvent.experiments.recipes.sequential import smnist
from resolvent.models import build_model
from resolvent.models.config import ChannelsConfig, ClassifierConfig, ModelConfig, ResidualConfig
from resolvent.training import FitSettings, fit, standard
from resolvent.training.step import cuda_graph
from resolvent.training.step.batch import Batch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
LAYERS = {cell.tags[0]: cell.model.block.layer for cell in smnist("full")}  # type: ignore[union-attr]
SAME = 1e-2  # bf16 sums in another order at most; parameters move by more than that between steps


def model_of(name: str, classes: int = 10) -> Any:
    block = ResidualConfig(LAYERS[name], mixer="half_glu1")
    return build_model(
        ModelConfig(ChannelsConfig(1), block, ClassifierConfig(classes, "mean"), 32, 2, final_norm=True)
    ).cuda()


def distance(got: Tensor, want: Tensor) -> float:
    return float((got.detach().double() - want.detach().double()).norm() / want.detach().double().norm())


def found(model: Any, batch: Batch) -> list[Tensor]:
    with torch.autocast("cuda", torch.bfloat16):
        loss = standard(model, batch)
    slopes = torch.autograd.grad(loss.value, list(model.parameters()), allow_unused=True)
    whole = torch.cat([g.flatten() for g in slopes if g is not None])
    return [loss.value, loss.output, whole]


@pytest.mark.parametrize("name", LAYERS)
def test_the_recorded_step_is_the_step(name: str) -> None:
    model, g = model_of(name), torch.Generator().manual_seed(0)
    for turn in range(4):
        x, y = torch.rand(16, 97, 1, generator=g).cuda(), torch.randint(0, 10, (16,), generator=g).cuda()
        batch = Batch(x, y, None, Draws(turn, torch.arange(16, device="cuda")))
        for got, want in zip(found(model, batch), found(copy.deepcopy(model), batch), strict=True):
            assert distance(got, want) <= SAME
        with torch.no_grad():
            for p in model.parameters():
                p.add_(0.05 * torch.randn_like(p))
    assert sum(isinstance(r, cuda_graph._Recording) for r in cuda_graph._recorded[model][1].values()) == 1


@pytest.mark.parametrize("name", LAYERS)
def test_bf16_against_float64(name: str) -> None:
    """Logits and all parameter gradients together."""
    model, x, y = model_of(name), torch.rand(8, 784, 1, device="cuda"), torch.arange(8, device="cuda")
    wide = copy.deepcopy(model).double()
    batch, truth = (Batch(x.to(kind), y, None, Draws(0, y)) for kind in (torch.float32, torch.float64))
    got = found(model, batch)[1:]
    loss = standard(wide, truth)
    slopes = torch.autograd.grad(loss.value, list(wide.parameters()), allow_unused=True)
    want = [loss.output, torch.cat([g.flatten() for g in slopes if g is not None])]
    for a, b in zip(got, want, strict=True):
        assert distance(a, b) <= 2e-2


def test_fit_replays_and_learns() -> None:
    x = torch.rand(96, 33, 1)
    task = from_arrays(x, (x.mean((1, 2)) > 0.5).long())
    model = model_of("s4d", 2)
    history = fit(
        model, task, standard, FitSettings(epochs=6, batch_size=16, lr=4e-3, precision="bf16", choose="clean")
    )
    assert history.rows[-1]["train_loss"] < history.rows[0]["train_loss"]
    assert any(isinstance(r, cuda_graph._Recording) for r in cuda_graph._recorded[model][1].values())


def test_out_of_memory_names_a_batch_that_fits() -> None:
    x = torch.rand(4096, 1024, 1)
    task = from_arrays(x, (x.mean((1, 2)) > 0.5).long())
    settings = FitSettings(epochs=1, batch_size=4096, precision="bf16", choose="clean")
    gc.collect()
    torch.cuda.empty_cache()  # what tests before it hold on to is beside the point
    room = torch.cuda.memory_reserved() + 1.4 * 2**30
    torch.cuda.set_per_process_memory_fraction(room / torch.cuda.get_device_properties(0).total_memory)
    try:
        with pytest.raises(TooMany, match="set batch_size=") as raised:
            fit(model_of("s4d", 2), task, standard, settings)
        assert 0 < raised.value.fits < 4096
        fit(model_of("s4d", 2), task, standard, replace(settings, batch_size=raised.value.fits))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


@pytest.mark.parametrize("resident", [True, False])
def test_batches_do_not_depend_on_where_the_split_lies(resident: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through pinned memory and a second thread, or from the device itself: the samples are those of a CPU."""
    if not resident:
        monkeypatch.setattr("resolvent.data.loader.SHARE", 0.0)
    split = Split(torch.randint(0, 256, (77, 12, 3), dtype=torch.uint8), torch.arange(77) % 10, None, 255)
    there, here = Loader(split, 10, 3, device="cuda"), Loader(split, 10, 3)
    assert there.resident == resident
    for step in (0, 1, 2, 7, 8, 3):
        got, want = there.at(step), here.at(step)
        assert got.x.is_cuda
        assert torch.equal(got.x.cpu(), want.x)
        assert torch.equal(got.y.cpu(), want.y)
