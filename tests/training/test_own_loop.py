"""Our objectives in loops of others: plain torch, and Lightning, which must take the same steps."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import resolvent as rv
from resolvent.models import ClassifierConfig, ModelConfig, ResidualConfig, S4DConfig
from resolvent.training import Batch, parameter_groups

THREAT = rv.Threat("linf", eps=0.05, bounds=(0, 1))


def data() -> DataLoader[tuple[torch.Tensor, ...]]:
    task = rv.load_task("digits").head(48)
    return DataLoader(TensorDataset(task.train.x, task.train.y), batch_size=16)


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    block = ResidualConfig(S4DConfig(4))
    return rv.build_model(ModelConfig(block=block, head=ClassifierConfig(10), d_model=6, layers=1))


def train_plainly(objective: rv.training.Objective, epochs: int = 2) -> tuple[torch.nn.Module, list[float]]:
    own, losses, step = model(), [], 0
    optimiser = torch.optim.AdamW(parameter_groups(own), lr=1e-2)
    for _ in range(epochs):
        for x, y in data():
            loss = objective(own, Batch.of(x, y, seed=step)).value
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(float(loss.detach()))
            step += 1
    return own, losses


@pytest.mark.parametrize("objective", [rv.trades(THREAT, steps=2), rv.pgd_at(THREAT, steps=2)], ids=["trades", "pgd"])
def test_a_plain_loop_learns_and_repeats(objective: rv.training.Objective) -> None:
    own, losses = train_plainly(objective, epochs=4)
    assert sum(losses[-3:]) < sum(losses[:3])
    again, same = train_plainly(objective, epochs=4)
    assert same == losses
    assert all(torch.equal(a, b) for a, b in zip(own.parameters(), again.parameters(), strict=True))
    assert own.training


def test_lightning_takes_the_same_steps(tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning", reason="needs pip install lightning")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    objective = rv.trades(THREAT, steps=2)

    class Robust(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.losses = model(), []

        def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], number: int) -> torch.Tensor:
            found = objective(self.model, Batch.of(*batch, seed=self.global_step))
            self.log("loss", found.value)
            self.losses.append(float(found.value.detach()))
            return found.value

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(parameter_groups(self.model), lr=1e-2)

    ours = Robust()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning's advice on workers and loggers
        trainer = lightning.Trainer(
            max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False, default_root_dir=tmp_path,
        )  # fmt: skip
        trainer.fit(ours, data())
    plain, losses = train_plainly(objective)
    assert ours.losses == losses
    assert all(torch.equal(a, b) for a, b in zip(ours.model.parameters(), plain.parameters(), strict=True))


def test_lengths_reach_the_objective() -> None:
    """Padding is neither read nor attacked: its values change nothing."""
    x, y, lengths = torch.rand(4, 12, 1), torch.tensor([0, 1, 2, 3]), torch.tensor([12, 5, 1, 9])
    noise = torch.where(torch.arange(12)[None, :, None] < lengths[:, None, None], x, torch.rand(4, 12, 1))
    own, objective = model(), rv.trades(THREAT, steps=2)
    found = [objective(own, Batch.of(each, y, lengths, seed=3)).value.detach() for each in (x, noise)]
    assert torch.allclose(*found, rtol=0, atol=1e-6)


def test_answers_that_do_not_match_are_refused() -> None:
    with pytest.raises(ValueError, match=r"Batch.of: .* \(4, 12, 1\), \(3,\)"):
        Batch.of(torch.rand(4, 12, 1), torch.zeros(3))
