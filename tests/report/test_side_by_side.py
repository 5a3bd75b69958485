"""Runs of a recipe in common frames: Figures 1 to 5 of Qi et al. 2024; errors named as errors; tables that fit."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from resolvent.report.figures.chart import chart_figure
from resolvent.report.figures.process import process_findings
from resolvent.report.run_page import NAMES, write_report
from resolvent.report.tables.table import tables
from resolvent.report.tables.terminal import show

pytest.importorskip("matplotlib", reason="matplotlib is in the report extra")
pytest.importorskip("jinja2", reason="jinja2 is in the report extra")

COMPONENTS = [{"name": "SSM", "train": {"mse": 40.0, "kl": 4000.0}, "test": {"mse": 50.0, "kl": 3000.0}},
              {"name": "linear", "train": {"mse": -60.0, "kl": -50.0}, "test": {"mse": -40.0, "kl": None}}]  # fmt: skip


def record(structure: str, kind: str, *, recipe: str = "qi2024-table1", classes: int | None = 10, **extra: Any) -> Any:
    robust = (0.2, 0.4, 0.3)
    sign = 1 if classes else -1
    rows = [
        {"epoch": k + 1, "train_loss": 1.0 - 0.1 * k, "train_score": 0.5, "test_clean": sign * 0.6, "test_loss": 1.1,
         "test_robust": sign * r, "test_robust_loss": 1.5 + k, "seen_robust": 0.5 + 0.1 * k}
        for k, r in enumerate(robust)
    ]  # fmt: skip
    measured = {"epoch": 2, "test_clean": sign * 0.6, "test_robust": sign * 0.4}
    return {
        "format": 1,
        "cell": {"recipe": recipe, "tags": [structure, "digits", kind], "seed": 0, "goal": {"kind": kind}},
        "versions": {"resolvent": "0", "torch": "2", "python": "3", "device": "cpu: x"},
        "task": {"name": "digits", "length": 64, "channels": 1, "vocabulary": None, "classes": classes,
                 "licence": "free", "source": "here", "samples": {"train": 1, "validation": 1, "test": 1}},
        "training": {"parameters": 1234, "rows": rows, "summary": {"best": measured, "last": measured}},
        **extra,
    }  # fmt: skip


def write(folder: Path, held: dict[str, Any]) -> None:
    place = folder / "-".join(held["cell"]["tags"])
    place.mkdir(parents=True)
    (place / "cell.json").write_text("{}")
    (place / "record.json").write_text(json.dumps(held))


@pytest.mark.parametrize(("kind", "figure"), [("pgd-at", 1), ("trades", 2), ("standard", 5)])
def test_each_way_of_training_is_the_figure_that_was_published(kind: str, figure: int) -> None:
    named = [(s, record(s, kind)) for s in ("s4", "mega")]
    (found,) = process_findings("qi2024-table1", named)
    assert f"Figure {figure} of Qi et al. 2024" in found["name"]
    charts = {chart["title"]: chart for chart in found["charts"]}
    assert "Loss under PGD-10, test" in charts
    drawn = charts["Accuracy under PGD-10, test"]["series"]
    assert [curve["name"] for curve in drawn] == ["s4", "mega"]
    assert drawn[0]["y"] == pytest.approx([20.0, 40.0, 30.0])
    assert found["table"]["rows"][0] == ["s4", 3, 2, 40.0, 30.0, 10.0]  # robust overfitting: best - last
    assert "Clean accuracy, training samples" not in charts  # nobody measured it


def test_runs_that_nothing_joins_stay_apart() -> None:
    alone = [("s4", record("s4", "pgd-at")), ("mega", record("mega", "trades"))]
    assert process_findings("qi2024-table1", alone) == []
    (found,) = process_findings("mine", [(s, record(s, "trades")) for s in ("s4", "mega")])
    assert "Figure" not in found["name"]


@pytest.mark.parametrize(("recipe", "figure"), [("qi2024-table1", 3), ("qi2024-table2", 4)])
def test_components_side_by_side(recipe: str, figure: int, tmp_path: Path) -> None:
    for structure in ("s4", "dss"):
        write(tmp_path, record(structure, "trades", recipe=recipe, attribution={"components": COMPONENTS}))
    text = write_report([tmp_path], tmp_path / "out").read_text(encoding="utf-8")
    assert f"MSE, digits, TRADES (Figure {figure} of Qi et al. 2024)" in text
    assert f"KL, digits, TRADES (Figure {figure} of Qi et al. 2024)" in text
    assert "Training side by side: digits, TRADES" in text


def test_an_attribution_is_drawn_once(tmp_path: Path) -> None:
    """In the common frame, or, where a run stands alone, in one of its own."""
    for structure, kind in (("s4", "trades"), ("dss", "trades"), ("s5", "pgd-at")):
        write(tmp_path, record(structure, kind, attribution={"components": COMPONENTS}))
    text = write_report([tmp_path], tmp_path / "out").read_text(encoding="utf-8")
    assert [name in text for name in ("Attribution of s4", "Attribution of dss", "Attribution of s5")] == [0, 0, 1]


@pytest.mark.parametrize("names", [["dss", "mamba", "mega", "s4", "s5"], [f"dss+sigmoid {i}" for i in range(6)]])
def test_names_do_not_lie_on_the_curves(names: list[str]) -> None:
    series = [{"name": name, "x": [1, 2, 3], "y": [k, -k, 10 + k]} for k, name in enumerate(names)]
    figure = chart_figure({"title": "a", "xlabel": "epoch", "ylabel": "loss", "series": series, "small": True})
    figure.draw_without_rendering()
    (legend,), (axes,) = figure.legends, figure.axes
    box, page = legend.get_window_extent(), figure.bbox
    assert box.y0 >= axes.get_window_extent().y1
    assert page.x0 <= box.x0
    assert box.x1 <= page.x1
    assert axes.get_window_extent().height > 0.4 * page.height


def test_a_regression_has_errors_not_accuracies(tmp_path: Path) -> None:
    write(tmp_path, record("s4d", "standard", classes=None))
    page = write_report([tmp_path], tmp_path / "out").read_text(encoding="utf-8")
    assert "<h2>Squared error</h2>" in page
    assert "<h2>Accuracy</h2>" not in page
    assert "best clean accuracy" not in page
    assert "squared error</text>" in page  # the axis of its training curve
    output = (tmp_path / "out" / NAMES["markdown"]).read_text()
    assert "Squared error, summed over the values of a sample (less is better)" in output
    assert "0.6" in output
    assert "-60" not in page + output
    lines = list(csv.DictReader(io.StringIO((tmp_path / "out" / NAMES["csv"]).read_text())))
    assert {(line["what"], line["unit"], line["mean"]) for line in lines} >= {("clean_best", "squared error", "0.6")}


def test_classes_and_numbers_do_not_share_a_table() -> None:
    right, wrong = record("s4", "standard"), record("s5", "standard", classes=None)
    both = tables("mine", {"s4,digits,standard": [right], "s5,digits,standard": [wrong]})
    assert [(t.errors, [row.name for row in t.rows]) for t in both] == [
        (False, ["s4,digits,standard"]),
        (True, ["s5,digits,standard"]),
    ]
    assert both[0].rows[0].value("clean", "best").mean == pytest.approx(60.0)
    assert both[1].rows[0].value("clean", "best").mean == pytest.approx(0.6)


def printed(records: list[Any], width: int, terminal: bool) -> list[str]:
    console = Console(width=width, force_terminal=terminal, file=io.StringIO(), color_system=None)
    show(records, console)
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


@pytest.mark.parametrize("width", [20, 40, 80])
def test_a_narrow_terminal_splits_the_table_and_cuts_nothing(width: int) -> None:
    attacks = {place: {"accuracy": 0.3, "clean_accuracy": 0.6, "checkpoint": place, "eps": 0.1, "flags": []}
               for place in ("best", "last")}  # fmt: skip
    held = [record("s4+relu", "trades", attacks=attacks) | {"seed": seed} for seed in (0, 1)]
    lines = printed(held, width, terminal=True)
    text = "\n".join(lines)
    assert "…" not in text
    for word in ("clean", "PGD-10", "AutoAttack"):
        assert word in text
    assert text.count("s4+relu digits trades") == (4 if width == 80 else 6)  # each head with its size and samples
    if width == 80:
        assert max(len(line.rstrip()) for line in lines[1:]) <= width


def test_a_log_has_one_line_a_run() -> None:
    lines = printed([record("s4", "trades"), record("mega", "trades")], 30, terminal=False)
    assert len(lines) == 1 + 3 + 2  # what is measured, three lines of heads, two runs
    assert "\x1b" not in "".join(lines)


def test_what_breaks_a_bound_is_told_once() -> None:
    from resolvent.report.run_page import list_unbounded, reasons

    norm, gate = "divides by the deviation: unbounded", "a product has no constant"
    text = f"a.0 (norm): {norm}; a.0.ads (gate): {gate}; a.1 (norm): {norm}; a.2 (norm): {norm}"
    lines = [f"a.0 (norm) and 2 like it: {norm}", f"a.0.ads (gate): {gate}"]
    assert reasons(text) == lines
    assert reasons("no finite bound") == ["no finite bound"]
    runs: list[tuple[str, dict[str, Any]]] = [("s4", {"gain": None, "reason": text}), ("l2ru", {"gain": 1.0}),
                                              ("dss", {"gain": None, "reason": text})]  # fmt: skip
    assert list_unbounded(runs) == [("s4, dss", lines)]


def test_figures_that_share_a_title_do_not_share_ids(tmp_path: Path) -> None:
    import re

    for kind, shift in (("standard", 0.0), ("trades", 0.1)):
        for structure in ("s4", "mega"):
            held = record(structure, kind)
            for row in held["training"]["rows"]:
                row["train_loss"] += shift
            write(tmp_path, held)
    text = write_report([tmp_path], tmp_path / "out").read_text(encoding="utf-8")
    ids = re.findall(r'<clipPath id="([^"]+)"', text)
    losses = [part for part in text.split("<h3>")[1:] if part.startswith("Training loss")]
    assert len(losses) == 2
    first, second = (set(re.findall(r'<clipPath id="([^"]+)"', part)) for part in losses)
    assert ids
    assert not first & second


def test_runs_below_a_folder_that_is_called_damaged_are_read(tmp_path: Path) -> None:
    """Only a run's own folder of that name holds files that were set aside."""
    write(tmp_path / "damaged", record("s4", "standard"))
    assert "s4 digits standard" in write_report([tmp_path / "damaged"]).read_text(encoding="utf-8")
