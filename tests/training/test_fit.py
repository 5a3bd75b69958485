"""The loop against a plain one, what it records, how it chooses, and what it refuses."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from small_models import Small, small_task
from torch import Tensor, nn

from helpers import assert_close, small_classifier
from resolvent.attacks import Threat
from resolvent.data import Split, from_arrays
from resolvent.models import S4DConfig, build_model, load_model, save_model
from resolvent.training import FitSettings, Loss, Probe, fit, measure, pgd_at, standard, trades
from resolvent.training.history import best_rows
from resolvent.training.step.batches import Batches

THREAT = Threat("linf", 0.1, (0.0, 1.0))
QUICK = FitSettings(epochs=3, batch_size=16, lr=0.02)


def model(seed: int = 0, **options: float) -> Small:
    torch.manual_seed(seed)
    return Small(**options)  # type: ignore[arg-type]


def test_fit_is_a_plain_loop() -> None:
    """AdamW, cosine, clipping, in torch's own words on the same order of samples."""
    task = small_task()
    f, g = model().double(), model().double()
    settings = FitSettings(epochs=2, batch_size=16, lr=0.02, clip=0.05, weight_decay=0.1)
    fit(f, task, standard, settings)
    batches = Batches(task.train.to("cpu", torch.float64), 16, 0)
    optimiser = torch.optim.AdamW(g.parameters(), lr=0.02, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 2 * len(batches))
    for step in range(2 * len(batches)):
        batch = batches.at(step)
        optimiser.zero_grad()
        F.cross_entropy(g(batch.x), batch.y).backward()
        assert torch.nn.utils.clip_grad_norm_(g.parameters(), 0.05) > 0.05  # so that clipping is tested
        optimiser.step()
        schedule.step()
    assert_close(list(f.parameters()), list(g.parameters()))


def test_training_learns_and_robust_training_learns_to_stand() -> None:
    task = small_task(150)
    settings = FitSettings(epochs=25, batch_size=32, lr=0.03, evaluate_every=25, probe=Probe(THREAT))
    found = {}
    for name, objective in {"standard": standard, "pgd": pgd_at(THREAT), "trades": trades(THREAT, 3.0)}.items():
        found[name] = fit(model(), task, objective, settings).last
    assert found["standard"]["test_clean"] > 0.9
    assert min(found["pgd"]["test_robust"], found["trades"]["test_robust"]) >= found["standard"]["test_robust"]
    assert all(row["test_robust"] <= row["test_clean"] for row in found.values())


def test_rows_hold_what_was_measured() -> None:
    task, f = small_task(), model()
    history = fit(f, task, pgd_at(THREAT, steps=2), replace(QUICK, evaluate_every=2))
    assert [row["epoch"] for row in history.rows] == [1, 2, 3]
    assert ["validation_robust" in row for row in history.rows] == [False, True, True]
    found = measure(f, task.validation, Probe(THREAT), 16)
    assert history.rows[-1]["validation_clean"] == found["clean"]
    assert history.rows[-1]["validation_robust"] == found["robust"]
    with torch.no_grad():
        right = (f(task.validation.x).argmax(1) == task.validation.y).double().mean()
        loss = F.cross_entropy(f(task.validation.x), task.validation.y)
    assert found["clean"] == pytest.approx(float(right))
    assert found["loss"] == pytest.approx(float(loss), rel=1e-5)
    assert f.training  # as it was found


class Script(nn.Module):
    """Answers right on a share of the samples that follows a script, one entry an epoch."""

    def __init__(self, shares: list[float], per_epoch: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.shares, self.per_epoch = shares, per_epoch
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.steps += 1
        epoch = max(round(float(self.steps) / self.per_epoch) - 1, 0)
        label = (4 * x[:, 0, 0]).round().long()
        right = x[:, 0, 1] < self.shares[epoch]
        return 5 * self.weight * F.one_hot(torch.where(right, label, (label + 1) % 3), 3)


def scripted_task(shift: float = 0.0) -> tuple[object, int]:
    task = small_task(90)

    def make(n: int, shift: float) -> Split:
        y = torch.arange(n) % 3
        place = (torch.arange(n) + 0.5) / n
        return Split(torch.stack([y / 4, (place + shift) % 1], -1)[:, None].expand(n, 5, 2).contiguous(), y)

    task = replace(task, train=make(30, 0), validation=make(20, 0), test=make(40, shift))
    return task, 3


def test_the_best_epoch_is_kept_and_the_gap_to_the_last_is_told(tmp_path: Path) -> None:
    task, per_epoch = scripted_task()
    f = Script([0.2, 0.9, 0.5, 0.6], per_epoch)
    history = fit(f, task, standard, FitSettings(epochs=4, batch_size=10), tmp_path / "run")  # type: ignore[arg-type]
    assert [row["validation_clean"] for row in history.rows] == pytest.approx([0.2, 0.9, 0.5, 0.6])
    assert history.best["epoch"] == 2
    assert history.last["epoch"] == 4
    assert history.gap()["validation_clean"] == pytest.approx(0.3)
    assert history.gap()["test_clean"] == pytest.approx(0.3)
    assert float(f.steps) == 12
    history.load(f)
    assert float(f.steps) == 6
    history.load(f, "last")
    assert float(f.steps) == 12
    assert "best_by_test" not in history.summary
    with pytest.raises(ValueError, match="expected one of 'best', 'last', got 'worst'"):
        history.load(f, "worst")


def test_the_best_by_test_goes_under_its_own_name(tmp_path: Path) -> None:
    task, per_epoch = scripted_task()
    f = Script([0.2, 0.9, 0.5], per_epoch)
    settings = FitSettings(epochs=3, batch_size=10, track_test=True)
    history = fit(f, task, standard, settings, tmp_path / "run", final=lambda m: {"own": float(m.steps)})  # type: ignore
    assert history.summary["best_by_test"]["epoch"] == 2
    assert history.summary["best_by_test"]["own"] == 6
    assert history.gap("best_by_test")["own"] == 6 - 9
    assert (tmp_path / "run/checkpoint/best_by_test/model.safetensors").is_file()
    held = json.loads((tmp_path / "run/summary.json").read_text())
    assert held.pop("digest").startswith("sha256:")
    assert held == history.summary


def test_modes_come_back_as_they_were() -> None:
    f, seen = model().eval(), []
    f.drop.train()

    def final(m: nn.Module) -> dict[str, float]:
        seen.append(any(part.training for part in m.modules()))
        return {}

    fit(f, small_task(), standard, QUICK, final=final)
    assert seen == [False, False]
    assert [f.training, f.drop.training, f.enter.training] == [False, True, False]
    assert any(f.seen)  # it was trained in training mode all the same


def test_progress_is_a_bar_on_a_terminal_and_lines_in_a_log(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "resolvent.training")
    fit(model(), small_task(), standard, QUICK)
    assert len(caplog.messages) == 3
    assert caplog.messages[0].startswith("epoch 1, loss ")
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "160")
    fit(model(), small_task(), standard, QUICK)
    assert "validation clean" in capsys.readouterr().err


def test_what_makes_a_row_the_best() -> None:
    rows = [
        {"epoch": 1, "validation_clean": 0.5, "validation_robust": 0.3},
        {"epoch": 2, "train_loss": 0.0},  # not measured
        {"epoch": 3, "validation_clean": 0.9, "validation_robust": 0.2},
        {"epoch": 4, "validation_clean": 0.6, "validation_robust": 0.3, "test_clean": 0.1},
        {"epoch": 5, "validation_clean": 0.6, "validation_robust": 0.3, "test_clean": 0.1},
    ]
    assert {name: row["epoch"] for name, row in best_rows(rows).items()} == {"best": 4, "best_by_test": 4}
    assert best_rows(rows, "clean")["best"]["epoch"] == 3
    assert best_rows([]) == {}


def test_without_validation_only_the_test_can_choose() -> None:
    task = small_task()
    bare = replace(task, validation=task.validation.select(torch.arange(0)))
    with pytest.raises(ValueError, match="no validation samples"):
        fit(model(), bare, standard, QUICK)
    history = fit(model(), bare, standard, replace(QUICK, track_test=True))
    assert set(history.summary) == {"last", "best_by_test", "gap"}


def test_a_run_leaves_the_files_that_the_library_reads(tmp_path: Path) -> None:
    config = small_classifier(S4DConfig(4), channels=2, classes=3)
    torch.manual_seed(0)
    f = build_model(config)
    folder = tmp_path / "run"
    history = fit(f, small_task(), trades(THREAT, steps=2), replace(QUICK, epochs=2), folder, save=save_model)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert lines == list(history.rows)
    best = load_model(folder / "checkpoint" / "best")
    last = load_model(folder / "checkpoint" / "last")
    assert all(torch.equal(a, b) for a, b in zip(last.parameters(), f.parameters(), strict=True))
    history.load(f)
    assert all(torch.equal(a, b) for a, b in zip(best.parameters(), f.parameters(), strict=True))
    kinds = {path.suffix for path in folder.rglob("*") if path.is_file()}
    assert kinds == {".json", ".jsonl", ".safetensors"}
    again = fit(build_model(config), small_task(), trades(THREAT, steps=2), replace(QUICK, epochs=2), folder)
    assert again.summary == history.summary
    assert all(torch.equal(again.weights["last"][name], t) for name, t in last.state_dict().items())


def test_another_configuration_is_refused_by_field(tmp_path: Path) -> None:
    fit(model(), small_task(), standard, QUICK, tmp_path)
    with pytest.raises(ValueError, match=r"settings\.lr was 0\.02 there and is 0\.5 now"):
        fit(model(), small_task(), standard, replace(QUICK, lr=0.5), tmp_path)
    with pytest.raises(ValueError, match=r"task\.train"):
        fit(model(), small_task(seed=1), standard, QUICK, tmp_path)
    with pytest.raises(ValueError, match="objective"):
        fit(model(), small_task(), trades(THREAT), QUICK, tmp_path)
    with pytest.raises(ValueError, match=r"model\.shapes"):
        fit(Small().double(), small_task(), standard, QUICK, tmp_path)


def test_bf16_trains_with_float32_weights() -> None:
    f = model()
    history = fit(f, small_task(150), pgd_at(THREAT), replace(QUICK, epochs=8, precision="bf16"))
    assert all(p.dtype == torch.float32 for p in f.parameters())
    assert history.rows[-1]["train_loss"] < history.rows[0]["train_loss"]
    full = fit(model(), small_task(150), pgd_at(THREAT), replace(QUICK, epochs=8))
    assert history.rows[-1]["train_loss"] == pytest.approx(full.rows[-1]["train_loss"], rel=2e-2)
    assert history.rows[-1]["train_loss"] != full.rows[-1]["train_loss"]


def test_lengths_and_real_targets_train() -> None:
    padded = fit(model(), small_task(lengths=True), trades(THREAT), QUICK)
    assert padded.rows[-1]["train_loss"] < padded.rows[0]["train_loss"]
    real = fit(model(), small_task(regression=True), pgd_at(THREAT), QUICK)
    assert real.last["validation_robust"] < real.last["validation_clean"] < 0  # minus the squared error
    assert real.rows[-1]["train_loss"] < real.rows[0]["train_loss"]


def test_dropout_follows_the_seed_and_the_outer_generator_is_left_alone() -> None:
    torch.manual_seed(7)
    want = torch.rand(3)
    torch.manual_seed(7)
    f = Small(dropout=0.5)
    start = {k: v.clone() for k, v in f.state_dict().items()}
    torch.manual_seed(7)
    a = fit(f, small_task(), standard, QUICK)
    assert torch.equal(torch.rand(3), want)
    f.load_state_dict(start)
    torch.manual_seed(99)
    b = fit(f, small_task(), standard, QUICK)
    f.load_state_dict(start)
    c = fit(f, small_task(), standard, replace(QUICK, seed=1))
    lines = [[row["train_loss"] for row in h.rows] for h in (a, b, c)]
    assert lines[0] == lines[1]
    assert lines[0] != lines[2]


def test_ones_own_objective_is_a_function() -> None:
    def smoothed(f: nn.Module, batch: object) -> Loss:
        output = f(batch.x)  # type: ignore[attr-defined]
        return Loss(F.cross_entropy(output, batch.y, label_smoothing=0.1), output)  # type: ignore[attr-defined]

    rows = fit(model(), small_task(), smoothed, QUICK).rows
    assert rows[-1]["train_loss"] < rows[0]["train_loss"]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: FitSettings(epochs=0), ValueError, "epochs must be at least 1"),
        (lambda: FitSettings(lr="0.1"), TypeError, "lr must be a number, got '0.1'"),  # type: ignore[arg-type]
        (lambda: FitSettings(lr=-1.0), ValueError, "lr must be finite and not negative"),
        (lambda: FitSettings(precision="bf61"), ValueError, "precision must be one of"),  # type: ignore[arg-type]
        (lambda: FitSettings(warmup=99), ValueError, "warmup must lie within"),
        (lambda: FitSettings(seed=0.5), TypeError, "seed must be a whole number"),  # type: ignore[arg-type]
        (lambda: FitSettings(seed=-1), ValueError, "seed must be at least 0, got -1"),
        (lambda: FitSettings(track_test="yes"), TypeError, "track_test must be True or False"),  # type: ignore[arg-type]
        (lambda: FitSettings(groups=3), TypeError, "groups must be True or False, got 3"),  # type: ignore[arg-type]
        (lambda: FitSettings(betas="x"), TypeError, "betas must be a pair"),  # type: ignore[arg-type]
        (lambda: FitSettings(betas=("a", 0.9)), TypeError, "must be a number, got 'a'"),  # type: ignore[arg-type]
        (lambda: FitSettings(betas=(0.9, 1.0)), ValueError, "betas must lie below 1"),
        (lambda: FitSettings(probe=THREAT), TypeError, "must be a Probe"),  # type: ignore[arg-type]
        (
            lambda: fit(nn.Sequential(model(), nn.Softmax(1)), small_task(), standard, QUICK),
            ValueError,
            "probabilities",
        ),
        (lambda: fit(model(), [1], standard, QUICK), TypeError, "expected a Task, got list"),  # type: ignore[arg-type]
        (lambda: fit(abs, small_task(), standard, QUICK), TypeError, "expected an nn.Module"),  # type: ignore[arg-type]
        (lambda: fit(model(classes=4), small_task(), standard, QUICK), ValueError, "give the model 3 outputs"),
        (lambda: fit(nn.Flatten(), small_task(), standard, QUICK), ValueError, "no parameter to train"),
        (
            lambda: fit(model(), small_task(), pgd_at(Threat("linf", 0.1, (0.4, 0.6))), QUICK),
            ValueError,
            "bounds",
        ),
    ],
)
def test_bad_input_is_told_before_any_work(call: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()  # type: ignore[operator]


def test_an_empty_task_and_tokens_under_attack_are_told() -> None:
    task = small_task()
    none = replace(task, train=task.train.select(torch.arange(0)))
    with pytest.raises(ValueError, match="no training samples"):
        fit(model(), none, standard, QUICK)
    tokens = from_arrays(torch.arange(300).reshape(60, 5) % 4, torch.arange(60) % 3)
    with pytest.raises(ValueError, match="has tokens, which no norm ball surrounds"):
        fit(model(), tokens, pgd_at(THREAT), QUICK)
