"""`resolvent analyse`: a page, numbers and figures of starts, presets and runs; mistakes are one line."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from resolvent import cli
from resolvent.analysis import frequency_response
from resolvent.commands.analyse import execute
from resolvent.commands.analyse.options import Analyse
from resolvent.experiments import run_cell
from resolvent.experiments.stages.inside import inside
from resolvent.experiments.stages.portrait import LARGEST, portrait
from resolvent.models import ChannelsConfig, ClassifierConfig, ModelConfig, ResidualConfig, S4DConfig, save_model
from resolvent.models.build import build_model
from resolvent.ssm.hippo import hippo

sys.path.insert(0, str(Path(__file__).parents[1] / "experiments"))
from small import small_cell

pytest.importorskip("matplotlib", reason="matplotlib is in the report extra")
pytest.importorskip("jinja2", reason="jinja2 is in the report extra")


def series(record: dict[str, Any], title: str) -> dict[str, Any]:
    (found,) = (c for c in record["charts"] if c["title"] == title)
    return found


def test_the_portrait_of_s4d_has_its_spikes_and_that_of_ptd_has_none() -> None:
    s4d, ptd = (portrait(name, 32, contours=False) for name in ("s4d-legs", "ptd"))
    title = "Gain read out at the first state"
    marks = series(s4d, title)["marks"]
    assert marks[0]["x"] == pytest.approx(325.426, abs=2e-3)
    assert marks[0]["text"] == "325.4"
    assert len(marks) == 5
    assert series(ptd, title)["marks"] == []
    assert s4d["facts"]["largest distance from LegS"] == pytest.approx(20.290, rel=1e-4)
    assert ptd["facts"]["largest distance from LegS"] < 0.8
    assert s4d["facts"]["log10 of the eigenvectors' condition number"] == 0
    assert series(s4d, title)["series"][1]["name"] == "LegS"


def test_the_portrait_of_legs_is_exact() -> None:
    legs = portrait("legs", 16)
    assert legs["facts"]["log10 of the eigenvectors' condition number"] == pytest.approx(10.92011, abs=1e-5)
    assert legs["facts"]["largest gain of a read-out of unit norm"] == pytest.approx(1.0, abs=1e-12)
    assert legs["spectra"][0]["re"] == [-float(k) for k in range(1, 17)]
    first = series(legs, "Impulse responses of the first states")["series"][0]
    want = torch.exp(-torch.tensor(first["x"]))  # the first state's kernel is e^-t
    assert torch.allclose(torch.tensor(first["y"]), want, rtol=2e-5, atol=1e-6)  # six digits are kept
    height = legs["pseudospectrum"]["height"]
    assert len(height) == len(legs["pseudospectrum"]["im"])
    A = hippo("legs", 16)[0].to(torch.complex128)
    z = complex(legs["pseudospectrum"]["re"][0], legs["pseudospectrum"]["im"][0])
    sigma = torch.linalg.svdvals(z * torch.eye(16, dtype=A.dtype) - A)[-1]
    assert height[0][0] == pytest.approx(float(torch.log10(sigma)), abs=1e-3)


@pytest.mark.parametrize(("name", "n"), [("legs", 1), ("s4d-real", 1), ("s4d-lin", 4), ("s4d-inv", 2)])
def test_small_and_foreign_starts(name: str, n: int) -> None:
    made = portrait(name, n)
    assert made["facts"]["states"] == n
    json.dumps(made, allow_nan=False)


def test_the_page_the_numbers_and_the_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def short(*given: Any, **how: Any) -> dict[str, Any]:
        whole = portrait(*given, **how)
        return whole | {"charts": whole["charts"][:1]}  # each figure takes a third of a second, three times

    monkeypatch.setattr(execute, "portrait", short)
    given = ["--init", "ptd", "--n", "8", "--out", str(tmp_path / "out"), "--json", str(tmp_path / "n.json")]
    assert cli.main(["analyse", *given, "--figures", str(tmp_path / "figures")]) == 0
    output = capsys.readouterr().out
    assert "perturbed then diagonalised, 8 states" in output
    record = json.loads((tmp_path / "out" / "analysis.json").read_text())
    assert record == json.loads((tmp_path / "n.json").read_text())
    text = (tmp_path / "out" / "analysis.html").read_text(encoding="utf-8")
    assert not re.findall(r'(?:src|href)="(?!#)[^"]+"', text), "the page asks for something from outside"
    assert text.count("<figure") == len(record["charts"]) + 2
    drawn = sorted(p.name for p in (tmp_path / "figures").iterdir())
    assert len(drawn) == 2 * (len(record["charts"]) + 2)
    assert "02-pseudospectrum.svg" in drawn
    svg = (tmp_path / "figures" / "02-pseudospectrum.svg").read_text()
    assert "#2f62c9" in svg
    assert "#040404" not in svg, "a stand-in colour was left"
    assert (tmp_path / "figures" / "02-pseudospectrum.pdf").read_bytes().startswith(b"%PDF")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "seed-0"
    cell = small_cell()
    cell = replace(cell, attacks=(), attribution=True, budget=replace(cell.budget, epochs=1))
    run_cell(cell, folder, tell=lambda line: None)
    return folder


def test_a_run_with_attribution(run: Path, tmp_path: Path) -> None:
    assert cli.main(["analyse", str(run), "--attribution", "--out", str(tmp_path)]) == 0
    record = json.loads((tmp_path / "analysis.json").read_text())
    (layer,) = record["layers"]
    assert layer["kind"] == "LRU"
    assert 0 < layer["largest_radius"] < 1
    assert layer["hankel"] == sorted(layer["hankel"], reverse=True)
    assert layer["time_constants"]["shortest"] <= layer["time_constants"]["longest"]
    names = {c["name"] for c in record["attribution"]["components"]}
    assert names == {"ssm", "linear"}
    assert record["attribution"] == json.loads((run / "record.json").read_text())["attribution"]
    assert "Attribution, MSE" in (tmp_path / "analysis.html").read_text(encoding="utf-8")


def test_a_layers_numbers_are_those_of_its_worst_channel(tmp_path: Path) -> None:
    model = build_model(ModelConfig(ChannelsConfig(1), ResidualConfig(S4DConfig(4)), ClassifierConfig(3), 3, 1))
    system = model.double().tower.body.blocks[0].layer.system()
    (layer,) = inside(model, "x")["layers"]
    w = torch.linspace(0, torch.pi, 4001, dtype=torch.float64)
    peaks = frequency_response(system, w).detach().abs().amax(-1).reshape(-1)
    assert layer["worst_channel"] == int(peaks.argmax())
    assert layer["gain"] == pytest.approx(float(peaks.max()), rel=1e-3)
    G0 = frequency_response(system, [0.0]).detach().abs().reshape(-1)[layer["worst_channel"]]
    D = system.D.detach().abs().reshape(-1)[layer["worst_channel"]]
    assert 2 * sum(layer["hankel"]) + D >= G0.real  # |G(1)| <= |D| + 2 sum of Hankel singular values
    save_model(model, tmp_path / "saved")
    assert cli.main(["analyse", str(tmp_path / "saved"), "--out", str(tmp_path / "out")]) == 0


def test_selective_layers_are_listed_with_the_reason() -> None:
    made = inside(build_model(execute.preset("selective_block")), "S6")
    assert made["layers"] == []
    assert made["skipped"][0]["kind"] == "ScalarS6"


def test_both_directions_are_looked_into() -> None:
    block = ResidualConfig(S4DConfig(4, bidirectional=True))
    made = inside(build_model(ModelConfig(ChannelsConfig(1), block, ClassifierConfig(2), 2, 1)), "x")
    assert [held["name"].rpartition(".")[2] for held in made["layers"]] == ["forward", "back"]


def test_a_preset_with_arguments() -> None:
    assert execute.preset("robustness:s4,mnist").layers == 2


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ([], "name one thing"),
        (["--init", "legs", "--preset", "lru_stack"], "name one thing"),
        (["--init", "s4d-leg"], "did you mean 's4d-legs'"),
        (["--init", "ptd", "--n", "1"], "at least 2"),
        (["--init", "ptd", "--n", "7"], "use 8"),
        (["--init", "legs", "--n", "0"], "at least"),
        (["--init", "legs", "--n", str(LARGEST + 2)], "--no-contours"),
        (["--init", "legs", "--n", "100000", "--no-contours"], "at most 8,192 states"),
        (["--init", "s4d-lin", "--n", "1" + "0" * 30, "--no-contours"], "at most 8,192 states"),
        (["--init", "legs", "--attribution"], "needs the folder of a run"),
        (["--preset", "robustnes"], "did you mean robustness"),
        (["--preset", "robustness"], "structure"),
        (["--preset", "robustness:s9"], "s4"),
        (["nowhere"], "no folder 'nowhere'"),
    ],
)
def test_mistakes_are_one_line(given: list[str], text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["analyse", *given, "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("resolvent analyse: ")
    assert text in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("option", ["--out", "--figures", "--json"])
def test_what_cannot_be_written_is_refused_first(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setattr(execute, "analyse", None)
    given = ["--out", str(tmp_path / "out")] if option != "--out" else []
    assert cli.main(["analyse", "--init", "legs", *given, option, str(tmp_path / "file" / "deep")]) == 2
    assert option in capsys.readouterr().err


def test_attribution_of_a_bare_checkpoint_is_refused(
    run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    bare = run / "checkpoint" / "best"
    assert cli.main(["analyse", str(bare), "--attribution", "--out", str(tmp_path)]) == 2
    assert "cell.json" in capsys.readouterr().err


def test_the_defaults_are_what_help_says() -> None:
    assert Analyse().n == 64
    assert Analyse().contours


@pytest.mark.parametrize("words", [["analyse", "--init", "legs"], ["check", "--page", "page"]])
def test_a_missing_package_is_told_in_a_line(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    assert cli.main(words) == 2
    assert "pip install 'resolvent[report]'" in capsys.readouterr().err
    assert not any(tmp_path.iterdir())
