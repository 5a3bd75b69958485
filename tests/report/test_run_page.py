"""The report of runs: means over seeds beside the published values, doubts first, nothing from outside."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

from resolvent.cli import main
from resolvent.report.run_page import NAMES, write_report
from resolvent.report.runs import read_runs
from resolvent.report.tables.table import table

pytest.importorskip("matplotlib", reason="matplotlib is in the report extra")
pytest.importorskip("jinja2", reason="jinja2 is in the report extra")


def run(folder: Path, tags: tuple[str, ...], seed: int, clean: float = 0.65, **extra: Any) -> Path:
    """A record as `resolvent run` leaves it."""
    rows = [
        {"epoch": k, "train_score": 0.5, "validation_clean": clean, "validation_robust": 0.3 - 0.02 * abs(k - 2)}
        for k in range(1, 5)
    ]
    measured = {"epoch": 2, "test_clean": clean, "test_robust": 0.36}
    attack = {
        "checkpoint": "best", "accuracy": 0.3, "clean_accuracy": clean, "samples": 8, "eps": 0.031, "norm": "linf",
        "flags": [], "examples": [{"index": 3, "label": 1, "clean_prediction": 1, "prediction": 2,
        "broken_by": "apgd-ce", "clean": [[0.1]] * 16, "attacked": [[0.2]] * 16}],
    }  # fmt: skip
    record: dict[str, Any] = {
        "format": 1,
        "cell": {"recipe": "qi2024-table1", "tags": list(tags), "seed": seed},
        "versions": {"resolvent": "0", "torch": "2", "python": "3", "device": "cpu: x"},
        "task": {"name": "cifar10", "length": 16, "channels": 1, "vocabulary": None, "licence": "free",
                 "source": "here", "samples": {"train": 1, "validation": 1, "test": 1}},
        "training": {"parameters": 1234, "rows": rows, "summary": {"best": measured, "last": measured}},
        "attacks": {"standard-linf-0.031-best": attack},
    }  # fmt: skip
    place = folder / "-".join(tags) / f"seed-{seed}"
    place.mkdir(parents=True)
    (place / "cell.json").write_text("{}")
    (place / "record.json").write_text(json.dumps(record | extra))
    return place


def test_means_deviations_and_published_values(tmp_path: Path) -> None:
    for seed, clean in enumerate((0.64, 0.66)):
        run(tmp_path, ("s4", "cifar10", "pgd-at"), seed, clean)
    cells = read_runs([tmp_path]).recipes()["qi2024-table1"]
    (row,) = table("qi2024-table1", cells).rows
    value, attacked = row.value("clean", "best"), row.value("autoattack", "best")
    assert value is not None
    assert attacked is not None
    assert value.mean == pytest.approx(65.0)
    assert value.deviation == pytest.approx(2**0.5)
    assert (value.published, attacked.published) == (64.67, 30.90)
    assert value.gap == pytest.approx(0.33)
    assert row.value("autoattack", "last") is None


def test_the_page_is_whole_and_says_what_the_files_say(tmp_path: Path) -> None:
    run(tmp_path, ("s4", "cifar10", "pgd-at"), 0)
    page = write_report([tmp_path], tmp_path / "out", "A <title>")
    text = page.read_text(encoding="utf-8")
    assert "A &lt;title&gt;" in text
    assert "64.67" in text
    assert "No flag, no failure" in text
    assert re.findall(r"<h2>(.*?)</h2>", text)[0] == "What the papers claim"  # verdicts come first
    assert not re.findall(r'(?:src|href)="(?!#)[^"]+"', text), "the page asks for something from outside"
    assert "<script" not in text
    markdown = (tmp_path / "out" / NAMES["markdown"]).read_text()
    assert "65.0 ± 50.0 (published 64.67, +0.3)" in markdown  # of the one test sample
    lines = list(csv.DictReader(io.StringIO((tmp_path / "out" / NAMES["csv"]).read_text())))
    wanted = {"clean_best", "clean_last", "pgd10_best", "pgd10_last", "autoattack_best"}
    assert {line["what"] for line in lines} == wanted
    assert all(line["source"] == "Qi et al. 2024, Table 1" for line in lines)


def test_doubts_and_failures_come_first(tmp_path: Path) -> None:
    run(tmp_path, ("s4", "cifar10", "pgd-at"), 0)
    run(tmp_path, ("s4", "cifar10", "pgd-at"), 1, failed="loss is not finite at step 3")
    broken = run(tmp_path, ("dss", "cifar10", "pgd-at"), 0)
    (broken / "record.json").write_text('{"cell": ')
    (run(tmp_path, ("s5", "cifar10", "pgd-at"), 0) / "record.json").unlink()
    text = write_report([tmp_path], tmp_path / "out").read_text(encoding="utf-8")
    assert "3 things to look at first" in text
    assert text.index("loss is not finite at step 3") < text.index("<h2>Accuracy</h2>")
    assert "1 diverged" in text
    assert "cannot be read" in text
    assert "not complete" in text


def test_a_flag_tells_its_reason(tmp_path: Path) -> None:
    place = run(tmp_path, ("s4", "cifar10", "pgd-at"), 0)
    record = json.loads((place / "record.json").read_text())
    flag = {"kind": "square_wins", "explanation": "Square broke what gradients did not", "value": 0.03, "samples": 3}
    normal = {"kind": "replaced_loss", "explanation": "Targeted DLR needs at least 4 classes"}  # of an older record
    record["attacks"]["standard-linf-0.031-best"]["flags"] = [flag, normal]
    (place / "record.json").write_text(json.dumps(record))
    text = write_report([tmp_path], tmp_path / "out").read_text(encoding="utf-8")
    assert "square_wins: Square broke what gradients did not" in text
    assert "replaced_loss" not in text
    assert "1 thing to look at first" in text


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no folder"):
        write_report([tmp_path / "nowhere"], tmp_path)
    with pytest.raises(ValueError, match="no run in"):
        write_report([tmp_path], tmp_path)
    assert not (tmp_path / NAMES["html"]).exists()


def test_a_hostile_record_is_text_not_code(tmp_path: Path) -> None:
    run(tmp_path, ("<script>alert(1)</script>", "x"), 0, failed="<img src=x onerror=alert(1)>")
    text = write_report([tmp_path], tmp_path / "out").read_text(encoding="utf-8")
    assert "<script" not in text
    assert "<img" not in text


def study(folder: Path, text: str = "kappa fell") -> None:
    chart = {"title": "κ <over> N", "caption": "", "xlabel": "N", "ylabel": "κ", "log": "xy",
             "series": [{"name": "a", "x": [1.0, 2.0, 3.0], "y": [0.0, None, 3.0], "style": "line"},
                        {"name": "b", "x": [1.0, 2.0, 3.0], "y": [1.0, 1.0, 1.0], "style": "dash"}],
             "marks": [{"x": 3.0, "y": 3.0, "text": "here"}]}  # fmt: skip
    found = {"text": text, "table": {"columns": ["N", "κ"], "rows": [[4, 86.11239], [8, None]]}, "charts": [chart]}
    record = {
        "format": 1, "cell": {"recipe": "ptd-kappa", "tags": ["n=8"], "seed": 0}, "study": found,
        "versions": {"resolvent": "0", "torch": "2", "python": "3", "device": "cpu: x"},
    }  # fmt: skip
    folder.mkdir(parents=True)
    (folder / "cell.json").write_text("{}")
    (folder / "record.json").write_text(json.dumps(record))


def test_studies_stand_beside_runs_and_alone(tmp_path: Path) -> None:
    study(tmp_path / "ptd")
    alone = write_report([tmp_path], tmp_path / "out").read_text(encoding="utf-8")
    assert "kappa fell" in alone
    assert "86.11" in alone
    assert "κ &lt;over&gt; N" in alone
    assert "<h2>Accuracy</h2>" not in alone
    assert "kappa fell" in (tmp_path / "out" / NAMES["markdown"]).read_text()
    run(tmp_path, ("s4", "cifar10", "pgd-at"), 0)
    both = write_report([tmp_path], tmp_path / "out").read_text(encoding="utf-8")
    assert "kappa fell" in both
    assert "<h2>Accuracy</h2>" in both


def test_fourier_noise_is_shown_run_beside_run(tmp_path: Path) -> None:
    for name, hurt in (("s4d", 0.1), ("s4-ptd", 0.6)):
        points = [
            {"amplitude": 0.3, "frequency": 81.0, "score": hurt},
            {"amplitude": 0.3, "frequency": 1.5, "score": 0.2},
        ]
        noise = {"clean": 0.65, "points": points, "samples": 8, "regression": False, "where": "layers", "sites": ["a"],
                 "own": {"frequency": 1.5, "gain": 3.0}}  # fmt: skip
        run(tmp_path, (name, "cifar10"), 0, fourier=noise)
    text = write_report([tmp_path], tmp_path / "out").read_text(encoding="utf-8")
    assert "cifar10, tone at 81" in text
    assert "own worst frequency" in text
    assert "the input of every state-space layer" in text


def test_a_damaged_study_is_a_problem_not_a_crash(tmp_path: Path) -> None:
    study(tmp_path / "good")
    study(tmp_path / "bad")
    held = json.loads((tmp_path / "bad" / "record.json").read_text())
    del held["study"]["charts"]
    (tmp_path / "bad" / "record.json").write_text(json.dumps(held))
    text = write_report([tmp_path], tmp_path / "out").read_text(encoding="utf-8")
    assert "1 thing to look at first" in text


def test_one_odd_record_does_not_end_the_report(tmp_path: Path) -> None:
    """It has what every page relies on, and lacks what a table asks for."""
    run(tmp_path, ("s4", "cifar10", "pgd-at"), 0)
    odd = run(tmp_path, ("s5", "cifar10", "pgd-at"), 0)
    held = json.loads((odd / "record.json").read_text())
    del held["task"]
    (odd / "record.json").write_text(json.dumps(held))
    text = write_report([tmp_path], tmp_path / "out").read_text(encoding="utf-8")
    assert "1 thing to look at first" in text
    assert "record.json: cannot be shown (KeyError" in text
    assert "s4 cifar10 pgd-at" in text


def test_a_record_whose_digest_fails_is_left_out_and_named(tmp_path: Path) -> None:
    from resolvent.disk import seal

    run(tmp_path, ("s4", "cifar10", "pgd-at"), 0)
    bad = run(tmp_path, ("s5", "cifar10", "pgd-at"), 0)
    text = json.dumps(seal(json.loads((bad / "record.json").read_text())))
    (bad / "record.json").write_text(text.replace('"epoch": 1', '"epoch": 3'))
    assert (bad / "record.json").read_text() != text
    output = write_report([tmp_path], tmp_path / "out").read_text(encoding="utf-8")
    assert "its digest is not that of its content" in output
    assert "s5 cifar10 pgd-at" not in output.split("<h2>Accuracy</h2>")[1]


def test_the_command_names_what_the_page_leaves_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path, ("s4", "cifar10", "pgd-at"), 0)
    (run(tmp_path, ("s5", "cifar10", "pgd-at"), 0) / "record.json").write_text('{"cell": {"recipe": 3}}')
    assert main(["report", str(tmp_path)]) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("resolvent report: ")
    assert "s5-cifar10-pgd-at/seed-0/record.json: cannot be read" in line
    assert "left out" in line


def test_a_record_beside_the_settings_of_another_run_is_left_out(tmp_path: Path) -> None:
    run(tmp_path, ("s4", "cifar10", "pgd-at"), 0)
    bad = run(tmp_path, ("s5", "cifar10", "pgd-at"), 0)
    (bad / "cell.json").write_text(json.dumps({"recipe": "qi2024-table1", "tags": ["dss", "cifar10", "pgd-at"]}))
    text = write_report([tmp_path], tmp_path / "out").read_text(encoding="utf-8")
    assert "it is the record of another run: tags is not that of cell.json" in text


def test_forged_names_are_neither_html_nor_formulas(tmp_path: Path) -> None:
    names = ('=HYPERLINK("http://x")', "@SUM(1)", "<img src=x>", "[a](javascript:b)", "a|b")
    for name in names:
        run(tmp_path, (name, "cifar10", "pgd-at"), 0, failed="<b>bold</b>")
        run(tmp_path, (name, "cifar10", "pgd-at"), 1)
    study(tmp_path / "study", "<script>alert(1)</script>")
    write_report([tmp_path], tmp_path / "out")
    page = (tmp_path / "out" / NAMES["markdown"]).read_text(encoding="utf-8")
    assert not re.search(r"<(img|b|script)", page)
    assert "](javascript" not in page
    rows = [line for line in page.splitlines() if line.startswith("|")]
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in rows}) == 1
    with (tmp_path / "out" / NAMES["csv"]).open(encoding="utf-8") as file:
        cells = [cell for line in csv.reader(file) for cell in line]
    assert not [cell for cell in cells if cell.startswith(("=", "@", "+"))]
    assert '\'=HYPERLINK("http://x"),cifar10,pgd-at' in cells
