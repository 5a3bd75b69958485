"""What `resolvent run train` takes, through the command line on a tiny file: what reaches the cell, and what trains."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from resolvent import cli
from resolvent.commands.run import cells as run_cells
from resolvent.disk import read_json, write_json
from resolvent.experiments.cell import Cell
from resolvent.models import build_model
from resolvent.models import config as c
from resolvent.models import layer_config as lc

Words = Callable[..., Cell]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """48 rows of five steps: three in four are slow."""
    draw = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("tiny") / "tiny.csv"
    rows = []
    for k in range(48):
        kind = "quick" if k % 4 == 0 else "slow"
        wave = np.sin((2.0 if kind == "quick" else 0.3) * np.arange(5) + draw.uniform(0, 6))
        rows.append(",".join([kind, *(f"{v:.4f}" for v in wave)]))
    path.write_text("kind,a,b,c,d,e\n" + "\n".join(rows))
    return path


def call(table: Path, out: Path, *words: str) -> list[str]:
    small = ["--epochs", "1", "--width", "8", "--layers", "1", "--no-report"]
    given = [w for i in range(0, 6, 2) if small[i] not in words for w in small[i : i + 2]]
    return ["run", "train", "--data", str(table), "--label", "kind", *given, "--no-report", "--out", str(out), *words]


@pytest.fixture
def asked(table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Words:
    """The cell that a command line comes to, as its cell.json tells it again; nothing is trained."""

    def cell(*words: str) -> Cell:
        found: list[Any] = []
        monkeypatch.setattr(run_cells, "_records", lambda request, cells, *rest: found.extend(cells) or [])
        assert cli.main(call(table, tmp_path / "runs", *words)) == 0
        again = Cell.from_dict(json.loads(json.dumps(found[0].to_dict())))
        assert again == found[0]
        build_model(again.model)
        return again

    return cell


def layer(cell: Cell) -> Any:
    assert isinstance(cell.model.block, c.ResidualConfig)
    return cell.model.block.layer


def test_left_out_all_is_as_the_help_says(asked: Words) -> None:
    cell = asked("--epochs", "20", "--width", "64", "--layers", "4")
    assert (cell.budget.epochs, cell.budget.batch_size, cell.budget.lr) == (20, 64, 0.004)
    assert cell.tags == ("tiny", "s4d", "standard")
    assert cell.model.block == c.ResidualConfig(lc.S4DConfig(dt_min=0.01, dt_max=0.5))
    assert (cell.model.ads, cell.goal.weights, cell.goal.beta, cell.goal.steps) == (None, (), 6.0, 10)


@pytest.mark.parametrize(
    ("name", "inits"),
    [("s4d", ["legs", "lin", "inv", "real", "ptd"]), ("s4", ["legs", "lagt", "fout"]), ("dss", ["legs", "ptd"]),
     ("s5", ["legs", "ptd"])],
)  # fmt: skip
def test_every_initialisation_of_a_layer(name: str, inits: list[str], asked: Words) -> None:
    for init in inits:
        assert layer(asked("--layer", name, "--init", init)).init == init


@pytest.mark.parametrize("mixer", ["glu", "mlp", "linear", "half_glu1", "half_glu2", "none"])
def test_residual_blocks(mixer: str, asked: Words) -> None:
    block = asked("--layer", "lru", "--block", mixer).model.block
    assert isinstance(block, c.ResidualConfig)
    assert (block.mixer, block.layer) == (mixer, lc.LRUConfig())


@pytest.mark.parametrize("name", ["mamba", "hawk", "griffin", "h3", "mega", "attention"])
@pytest.mark.parametrize("width", ["6", "16"])
def test_whole_blocks(name: str, width: str, asked: Words) -> None:
    cell = asked("--block", name, "--width", width, "--layers", "3")
    assert type(cell.model.block).__name__.removesuffix("Config").lower() == name
    assert cell.tags[1] == name
    assert cell.model == asked("--layer", name, "--width", width, "--layers", "3").model


def test_attention_sees_what_it_says() -> None:
    """A causal block's answers do not depend on later steps; a bidirectional one's do."""
    x = torch.randn(1, 9, 1, generator=torch.Generator().manual_seed(0))
    moved = x.clone()
    moved[:, 5:] += 1
    for both in (False, True):
        torch.manual_seed(0)
        block, head = c.AttentionConfig(2, bidirectional=both), c.RegressionConfig(1, "none")
        model = build_model(c.ModelConfig(block=block, head=head, d_model=8, layers=2)).eval()
        same = torch.allclose(model(x)[:, :5], model(moved)[:, :5], atol=1e-6)
        assert same is not both


def test_scaling_directions_and_gain(asked: Words) -> None:
    cell = asked("--layer", "s5", "--ads", "tanh", "--bidirectional")
    assert cell.model.ads == c.AdSConfig("tanh")
    assert layer(cell).bidirectional
    assert cell.tags[1] == "s5+tanh"
    assert asked("--block", "mega", "--bidirectional").model.block == c.MegaConfig(bidirectional=True)
    assert layer(asked("--layer", "l2ru", "--gamma", "0.5")).gamma == 0.5


def test_a_published_model_for_ones_own_data(asked: Words) -> None:
    from resolvent.models.presets import robustness

    paper = robustness("mega", "mnist", activation="gelu")
    cell = asked("--preset", "robustness-mega-mnist", "--width", "16", "--layers", "1", "--ads", "relu")
    assert cell.model.block == paper.block
    assert (cell.model.input, cell.model.head) == (c.ChannelsConfig(1), c.ClassifierConfig(2, "mean"))
    assert (cell.model.d_model, cell.model.layers, cell.model.ads) == (16, 1, c.AdSConfig("relu"))
    assert (cell.model.input_norm, cell.model.prenorm) == (paper.input_norm, paper.prenorm)
    assert cell.tags[1] == "robustness-mega-mnist+relu"


def test_the_objective(asked: Words) -> None:
    goal = asked("--objective", "trades", "--eps", "0.1", "--beta", "2.5", "--attack-steps", "3").goal
    assert (goal.kind, goal.beta, goal.steps) == ("trades", 2.5, 3)
    assert asked("--class-weights", "none").goal.weights == ()
    assert asked("--class-weights", "3,1/2").goal.weights == (3.0, 0.5)  # quick, slow
    quick, slow = asked("--class-weights", "balanced").goal.weights
    assert quick / slow == pytest.approx(3, rel=0.2)  # three in four samples are slow


def folders(out: Path) -> list[str]:
    return sorted(p.parent.relative_to(out / "train").as_posix() for p in out.glob("train/*/*/record.json"))


def test_everything_at_once_trains_and_a_change_has_a_name_of_its_own(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "runs"
    words = ("--init", "ptd", "--ads", "relu", "--bidirectional", "--block", "mlp", "--objective", "trades", "--eps",
             "0.05", "--beta", "2", "--attack-steps", "2", "--class-weights", "balanced")  # fmt: skip
    base = "tiny-s4d+relu-trades"
    assert cli.main(call(table, out, *words)) == 0
    assert folders(out) == [f"{base}/seed-0"]
    first = (out / "train" / base / "seed-0" / "record.json").read_bytes()
    assert cli.main(call(table, out, *words, "--lr", "0.01")) == 0
    assert f"this one is train/{base}-lr=0.01/seed-0" in capsys.readouterr().out
    assert cli.main(call(table, out, *words, "--lr", "0.01", "--seeds", "0", "1")) == 0  # the first is done
    assert folders(out) == [f"{base}-lr=0.01/seed-0", f"{base}-lr=0.01/seed-1", f"{base}/seed-0"]
    assert (out / "train" / base / "seed-0" / "record.json").read_bytes() == first
    capsys.readouterr()
    assert cli.main(call(table, out, *words)) == 0  # found done
    assert "holds a run of other settings" not in capsys.readouterr().out


def test_a_name_and_a_new_start(table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "runs"
    assert cli.main(call(table, out, "--layer", "lru", "--name", "mine", "--seeds", "0", "1")) == 0
    assert folders(out) == ["mine/seed-0", "mine/seed-1"]
    held = out / "train" / "mine" / "seed-0" / "cell.json"
    assert cli.main(call(table, out, "--layer", "lru", "--name", "mine", "--lr", "0.01", "--seeds", "2")) == 2
    assert "--name mine is the name of a run of other settings" in capsys.readouterr().err
    (held.parent / "attack").mkdir()
    assert cli.main(call(table, out, "--layer", "lru", "--name", "mine", "--lr", "0.01", "--overwrite")) == 0
    assert json.loads(held.read_text())["budget"]["lr"] == 0.01
    assert not (held.parent / "attack").exists()
    assert folders(out) == ["mine/seed-0"]  # none of other settings beside it, which a mean over seeds would mix in
    (out / "train" / "else" / "seed-0").mkdir(parents=True)
    (out / "train" / "else" / "seed-0" / "letter.txt").write_text("mine")
    assert cli.main(call(table, out, "--name", "else", "--overwrite")) == 2
    assert "removes runs only" in capsys.readouterr().err
    assert (out / "train" / "else" / "seed-0" / "letter.txt").read_text() == "mine"


def test_a_refused_or_early_stopped_call_claims_nothing(table: Path, tmp_path: Path) -> None:
    out = tmp_path / "runs"
    assert cli.main(call(table, out, "--layer", "lru", "--lr", "-1")) == 2
    assert not out.exists()
    place = out / "train" / "tiny-lru-standard" / "seed-0"
    place.mkdir(parents=True)
    (place / "cell.json").write_text(json.dumps({"class": "Cell", "recipe": "train"}))  # and nothing beside it
    assert cli.main(call(table, out, "--layer", "lru", "--lr", "0.01")) == 0
    assert folders(out) == ["tiny-lru-standard/seed-0"]


def test_a_cell_of_an_older_version_goes_on(table: Path, tmp_path: Path) -> None:
    """Without the fields that came later: it is the same run, not another."""
    out = tmp_path / "runs"
    assert cli.main(call(table, out, "--layer", "lru")) == 0
    path = out / "train" / "tiny-lru-standard" / "seed-0" / "cell.json"
    held = read_json(path)
    del held["goal"]["weights"]
    write_json(path, held)
    assert Cell.from_dict(held).goal.weights == ()
    assert cli.main(call(table, out, "--layer", "lru")) == 0
    assert folders(out) == ["tiny-lru-standard/seed-0"]


def test_groups_reach_the_split(table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    head, *rows = table.read_text().splitlines()
    path = tmp_path / "people.csv"
    path.write_text("\n".join([f"{head},who", *(f"{row},p{k // 4}" for k, row in enumerate(rows))]))
    assert cli.main(call(path, tmp_path / "runs", "--layer", "lru", "--group", "who")) == 0
    assert "12 groups, each in one part of the split" in capsys.readouterr().out
    run = tmp_path / "runs" / "train" / "people-lru-standard" / "seed-0"
    assert ["group", "who"] in json.loads((run / "cell.json").read_text())["task"]["options"]
    assert cli.main(["attack", str(run), "--preset", "fast", "--eps", "0.1"]) == 0
    own = capsys.readouterr().out
    assert cli.main(["attack", str(run), "--preset", "fast", "--eps", "0.1", "--data", str(path)]) == 0
    assert "48 samples" in capsys.readouterr().out  # the column of groups is no further step
    assert "48 samples" not in own


@pytest.mark.slow
def test_workers_find_the_same_names(table: Path, tmp_path: Path) -> None:
    out = tmp_path / "runs"
    assert cli.main(call(table, out, "--layer", "lru")) == 0
    words = ("--layer", "lru", "--lr", "0.01", "--seeds", "0", "1", "--workers", "2")
    assert cli.main(call(table, out, *words)) == 0
    assert folders(out) == [f"tiny-lru-standard{k}" for k in ("-lr=0.01/seed-0", "-lr=0.01/seed-1", "/seed-0")]
