"""A run that is stopped anywhere goes on to the numbers of one that was not."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import Small, small_task
from torch import nn

from resolvent.attacks import Threat
from resolvent.models import (
    ChannelsConfig,
    ClassifierConfig,
    MambaConfig,
    ModelConfig,
    ResidualConfig,
    S4DConfig,
    S5Config,
    build_model,
    save_model,
)
from resolvent.training import Batch, FitSettings, History, Loss, fit, trades
from resolvent.training import state as files
from resolvent.training.step.average import Average

SETTINGS = FitSettings(epochs=3, batch_size=16, lr=0.02, save_every=2)  # 3 steps an epoch, dropout on
ROBUST = trades(Threat("linf", 0.1, (0.0, 1.0)), steps=2)


class Killed(BaseException):
    """No handler for ordinary errors sees it."""


def run(folder: Path | None, objective: Any, seed: int = 0) -> tuple[nn.Module, History]:
    torch.manual_seed(seed)
    model = Small(dropout=0.3)
    return model, fit(model, small_task(), objective, SETTINGS, folder)


def dies_at(call: int) -> Any:
    calls = 0

    def objective(model: nn.Module, batch: Batch) -> Loss:
        nonlocal calls
        calls += 1
        if calls == call:
            raise Killed
        return ROBUST(model, batch)

    return objective


def results(history: History) -> tuple[Any, ...]:
    """Everything but the times."""
    rows = [{k: v for k, v in row.items() if k != "seconds"} for row in history.rows]
    return rows, history.summary


def same(a: nn.Module, b: nn.Module) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


@pytest.mark.parametrize("call", [1, 2, 3, 4, 6, 9])
def test_stopped_in_any_step_and_gone_on(tmp_path: Path, call: int) -> None:
    whole, want = run(None, dies_at(-1))
    with pytest.raises(Killed):
        run(tmp_path, dies_at(call))
    model, got = run(tmp_path, dies_at(-1), seed=5)  # even a model that starts elsewhere: the start was stored
    assert results(got) == results(want)
    assert same(model, whole)
    assert all(torch.equal(got.weights["best"][k], v) for k, v in want.weights["best"].items())
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert lines == list(got.rows)


BLOCKS = {"s4d": ResidualConfig(S4DConfig(4)), "s5": ResidualConfig(S5Config(4)), "mamba": MambaConfig(2)}


@pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS)
def test_models_of_the_library_go_on_to_the_same_bits(tmp_path: Path, block: Any) -> None:
    config = ModelConfig(
        input=ChannelsConfig(2), block=block, head=ClassifierConfig(3), d_model=4, layers=1, dropout=0.2
    )

    def go(folder: Path | None, objective: Any) -> tuple[nn.Module, History]:
        torch.manual_seed(0)
        model = build_model(config)
        return model, fit(model, small_task(), objective, SETTINGS, folder, save=save_model)

    whole, want = go(None, dies_at(-1))
    with pytest.raises(Killed):
        go(tmp_path, dies_at(6))
    model, got = go(tmp_path, dies_at(-1))
    assert results(got) == results(want)
    assert same(model, whole)


@pytest.mark.parametrize("write", range(1, 16))
def test_stopped_in_any_write_and_gone_on(tmp_path: Path, write: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before every move into place in turn: config, states, best weights, summary; then right after it."""
    _, want = run(None, dies_at(-1))
    replace, count = os.replace, 0

    def torn(source: Any, target: Any) -> None:
        nonlocal count
        count += 1
        if count == write:
            if write % 2:
                replace(source, target)
            raise Killed
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", torn)
        try:
            run(tmp_path, dies_at(-1))
        except Killed:
            pass
        else:
            assert count < write  # the run has fewer writes than that
    _, got = run(tmp_path, dies_at(-1))
    assert results(got) == results(want)
    assert not list(tmp_path.rglob(".*.part"))


def test_a_flipped_bit_is_found(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        run(tmp_path, dies_at(5))
    path = tmp_path / "checkpoint" / "state.safetensors"
    raw = bytearray(path.read_bytes())
    raw[-9] ^= 4
    path.write_bytes(raw)
    with pytest.raises(ValueError, match=r"state\.safetensors is damaged"):
        run(tmp_path, dies_at(-1))
    path.write_bytes(raw[:-100])
    with pytest.raises(ValueError, match=r"state\.safetensors cannot be read"):
        run(tmp_path, dies_at(-1))
    path.unlink()
    assert results(run(tmp_path, dies_at(-1))[1]) == results(run(None, dies_at(-1))[1])


def test_the_optimiser_comes_back_whole(tmp_path: Path) -> None:
    model = Small()
    a, b = (torch.optim.AdamW(model.parameters(), lr=0.1) for _ in range(2))
    model(torch.rand(2, 5, 2)).sum().backward()
    a.step()
    folder = files.RunFolder(tmp_path, {})
    folder.store(model, a, Average(FitSettings()), files.Ledger(3, [0.1, 1e-17, 2.0], [{"epoch": 1, "x": 0.1 + 0.2}]))
    ledger = folder.restore(model, b, Average(FitSettings()))
    assert ledger == files.Ledger(3, [0.1, 1e-17, 2.0], [{"epoch": 1, "x": 0.1 + 0.2}])
    for p in model.parameters():
        assert a.state[p].keys() == b.state[p].keys()
        assert all(torch.equal(a.state[p][k], b.state[p][k]) for k in a.state[p])


PROGRAM = """
import sys, torch
torch.set_num_threads(1)
sys.path.insert(0, sys.argv[2])
from small_models import Small, small_task
from resolvent.attacks import Threat
from resolvent.training import FitSettings, fit, pgd_at
torch.manual_seed(0)
model = Small(dropout=0.3)
settings = FitSettings(epochs=40, batch_size=16, lr=0.02, save_every=2)
print("ready", flush=True)
fit(model, small_task(), pgd_at(Threat("linf", 0.1, (0.0, 1.0)), steps=5), settings, sys.argv[1])
"""


@pytest.mark.slow
def test_killed_ten_times(tmp_path: Path) -> None:
    """kill -9 at ten random moments; the files that remain at the end are those of an undisturbed run."""

    def start(folder: Path) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", PROGRAM, str(folder), str(Path(__file__).parent)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    calm, hit = tmp_path / "calm", tmp_path / "hit"
    begun = time.perf_counter()
    process = start(calm)
    assert process.stdout is not None
    process.stdout.readline()
    took = time.perf_counter() - begun
    assert process.wait() == 0
    whole = time.perf_counter() - begun - took
    rng, kills = random.Random(0), 0
    while kills < 10:
        process = start(hit)
        assert process.stdout is not None
        process.stdout.readline()
        try:
            process.wait(rng.uniform(0.0, whole / 6))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            kills += 1
        if (hit / "summary.json").is_file() and kills < 10:  # it got through: the rest of the kills hit a new run
            assert (hit / "summary.json").read_bytes() == (calm / "summary.json").read_bytes()
            shutil.rmtree(hit)
    assert start(hit).wait() == 0
    assert (hit / "summary.json").read_bytes() == (calm / "summary.json").read_bytes()
    for name in ("checkpoint/best/model.safetensors", "config.json"):
        assert (hit / name).read_bytes() == (calm / name).read_bytes()
    rows = [[json.loads(line) for line in (f / "metrics.jsonl").read_text().splitlines()] for f in (hit, calm)]
    assert [row | {"seconds": 0} for row in rows[0]] == [row | {"seconds": 0} for row in rows[1]]


@pytest.mark.parametrize("batch", [1, 3])
def test_a_threat_that_was_used_meanwhile_is_the_same(tmp_path: Path, batch: int) -> None:
    """A threat remembers the batches that it was fitted to; a run is not told apart by that."""
    threat = Threat("linf", 0.1, (0.0, 1.0))
    want = run(tmp_path, trades(threat, steps=2))[1]
    threat.check(torch.rand(batch, 5))
    again = run(tmp_path, trades(threat, steps=2))[1]
    assert results(again) == results(want)
    assert "_fits" not in (tmp_path / "config.json").read_text()


def test_a_callable_object_in_an_objective_has_no_address(tmp_path: Path) -> None:
    class Own:
        def __call__(self, model: nn.Module, batch: Batch) -> Loss:
            return ROBUST(model, batch)

    first = Own()  # it stays, so that the second has another address
    want = run(tmp_path, first)[1]
    assert results(run(tmp_path, Own())[1]) == results(want)


def test_a_state_of_an_older_version_is_taken(tmp_path: Path) -> None:
    """Its configuration has private fields, and its files are sealed with that."""
    older = {"objective": {"class": "TRADES", "threat": {"eps": 0.1, "_rank": 0, "_fits": {"shape": [{"_rank": 3}]}}}}
    newer = {"objective": {"class": "TRADES", "threat": {"eps": 0.1}}}
    model = nn.Linear(3, 2)
    optimiser, average = torch.optim.Adam(model.parameters()), Average(SETTINGS)
    files.RunFolder(tmp_path, older).store(model, optimiser, average, files.Ledger(step=4))
    ledger = files.RunFolder(tmp_path, newer).restore(model, optimiser, average)
    assert ledger is not None
    assert ledger.step == 4
    with pytest.raises(ValueError, match=r"eps was 0\.1 there and is 0\.2 now"):
        files.RunFolder(tmp_path, {"objective": {"class": "TRADES", "threat": {"eps": 0.2}}})
