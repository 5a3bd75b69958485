"""Tables that cannot mislead: what was measured, on how many samples and how surely, in every form of a table."""

from __future__ import annotations

import csv
import io
import math
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from test_run_page import run

from resolvent.report.average import TASKS
from resolvent.report.figures.sample import example_svg
from resolvent.report.run_page import NAMES, write_report
from resolvent.report.tables.arena import arena_averages
from resolvent.report.tables.column import Column, columns_of, standard_error
from resolvent.report.tables.table import Row, Table, Value, row, tables
from resolvent.report.tables.terminal import show
from resolvent.report.tables.tile import tiles

pytest.importorskip("matplotlib", reason="matplotlib is in the report extra")
pytest.importorskip("jinja2", reason="jinja2 is in the report extra")


def attack(accuracy: float, place: str = "best", **more: Any) -> dict[str, Any]:
    own = {"checkpoint": place, "accuracy": accuracy, "clean_accuracy": 0.9, "samples": 128, "eps": 8 / 255,
           "norm": "linf", "preset": "standard", "flags": [], "examples": []}  # fmt: skip
    return own | more


def record(tags: tuple[str, ...] = ("s4", "digits"), **extra: Any) -> dict[str, Any]:
    measured = {"epoch": 2, "test_clean": 0.95, "test_robust": 0.7}
    task = {"name": tags[1], "length": 4, "channels": 1, "vocabulary": None, "licence": "free", "source": "here",
            "samples": {"train": 9, "validation": 9, "test": 400}, "classes": 2,
            "class_names": ["cat", "<dog>"]}  # fmt: skip
    return {
        "format": 1,
        "cell": {"recipe": "mine", "tags": list(tags), "seed": 0, "goal": {"norm": "linf", "eps": 8 / 255}},
        "versions": {"resolvent": "0", "torch": "2", "python": "3", "device": "cpu: x"}, "task": task,
        "training": {"parameters": 1234, "rows": [{"epoch": 2}], "summary": {"best": measured, "last": measured}},
        **extra,
    }  # fmt: skip


def test_pgd_and_autoattack_stand_on_the_same_samples() -> None:
    held = record(attacks={"a": attack(0.5, pgd10={"accuracy": 0.5, "missed": 2})})
    found = {column.kind: (column, share) for column, share in columns_of(held) if column.place == "best"}
    assert (found["pgd10"][0].samples, found["autoattack"][0].samples, found["clean"][0].samples) == (128, 128, 400)
    assert found["autoattack"][1] == pytest.approx(0.5 - 2 / 128)  # what PGD-10 alone broke is broken
    assert found["autoattack"][1] <= found["pgd10"][1]
    last = [column.kind for column, _ in columns_of(held) if column.place == "last"]
    assert last == ["clean"]  # no PGD-10 of other samples beside it


def test_an_older_record_says_on_what_each_number_rests() -> None:
    held = record(attacks={"a": attack(0.75, samples=64, preset="fast")})
    names = [str(column) for column, _ in columns_of(held)]
    assert "PGD-10, Linf 8/255, n 400, best" in names
    assert "attack fast, Linf 8/255, n 64, best" in names  # no AutoAttack column for a weaker list
    assert not any(name.startswith("AutoAttack") for name in names)


def test_numbers_of_other_terms_never_share_a_column() -> None:
    cells = {"a,digits": [record(attacks={"a": attack(0.5)})],
             "b,digits": [record(("b", "digits"), attacks={"a": attack(0.5, samples=64)})],
             "c,digits": [record(("c", "digits"), attacks={"a": attack(0.5, preset="fast")})]}  # fmt: skip
    (found,) = tables("mine", cells)
    assert sum(column.kind == "autoattack" for column in found.columns) == 3
    both = tables("mine", {"a,digits": [record()], "a,other": [record(("a", "other"))]})
    assert [t.title for t in both] == ["mine, digits", "mine, other"]


@pytest.mark.parametrize(("share", "n"), [(0.5, 100), (0.95, 447), (0.0, 128), (1.0, 128), (1.0, 1)])
def test_the_standard_error_is_that_of_a_share(share: float, n: int) -> None:
    found = standard_error(share, n)
    assert found is not None
    if 0 < share < 1:
        assert found == pytest.approx(math.sqrt(share * (1 - share) / n))
    else:
        assert found > 0.25 / n  # none and all of n are no certainty
    assert standard_error(share, None) is None


def test_every_form_tells_terms_epochs_and_parameters(tmp_path: Path) -> None:
    import json

    folder = tmp_path / "runs" / "s4"
    held = record(attacks={"a": attack(0.5, pgd10={"accuracy": 0.6, "missed": 0})})
    folder.mkdir(parents=True)
    (folder / "cell.json").write_text("{}")
    (folder / "record.json").write_text(json.dumps(held))
    page = write_report([tmp_path], tmp_path / "out").read_text(encoding="utf-8")
    markdown = (tmp_path / "out" / NAMES["markdown"]).read_text(encoding="utf-8")
    console = Console(width=200, file=io.StringIO(), color_system=None)
    show([held], console)
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    for text in (page, markdown, printed):
        for word in ("AutoAttack standard", "Linf 8/255, n 128", "1,234", "epochs", "standard error"):
            assert word in text, word
    (line,) = [each for each in csv.DictReader(io.StringIO((tmp_path / "out" / NAMES["csv"]).read_text()))
               if each["what"] == "autoattack_best"]  # fmt: skip
    assert (line["preset"], line["norm"], float(line["eps"]), line["n"]) == ("standard", "linf", 8 / 255, "128")
    assert (line["epochs"], line["parameters"], line["standard_error"]) == ("2", "1234", "4.4194")


def test_a_tile_is_about_one_checkpoint() -> None:
    held = record(attacks={"a": attack(0.9, "last"), "b": attack(0.4, "best")})
    row = {tile["name"]: (tile["value"], tile["error"]) for tile in tiles([held])}
    (name,) = [name for name in row if "AutoAttack" in name]
    assert row[name] == ("40.0 %", "± 4.3")
    assert "s4 digits (Linf 8/255, n 128)" in name


def test_certified_shares_are_columns() -> None:
    held = {"gain": 3.0, "samples": 128, "curve": [{"radius": 0.25, "certified": 0.5, "attacked": 0.6}]}
    made = row("mine", "l2ru", [record(certificate=held)])
    value = made.value("certified", "best")
    assert value is not None
    assert str(value) == "50.0 ± 4.4"
    bare = row("mine", "s4", [record(certificate=held | {"gain": None})])
    assert bare.value("certified", "best") is None


def test_class_by_class_with_names(tmp_path: Path) -> None:
    answers = {"of": [4, 2], "right": [3, 0], "confusion": [[3, 1], [2, 0]], "checkpoint": "best"}
    place = run(tmp_path, ("s4", "cifar10", "pgd-at"), 0, answers=answers)
    import json

    held = json.loads((place / "record.json").read_text())
    held["task"] |= {"classes": 2, "class_names": ["cat", "<dog>"]}
    (place / "record.json").write_text(json.dumps(held))
    page = write_report([tmp_path], tmp_path / "out").read_text(encoding="utf-8")
    assert "3 of 6 right" in page
    assert "&lt;dog&gt;" in page
    assert "75.0 ± 21.7" in page
    assert re.search(r'class="wrong"[^>]*>2<', page)


def test_a_size_for_each_channel_has_a_column_of_its_own() -> None:
    attack = {"checkpoint": "best", "norm": "linf", "eps": 0.5, "samples": 8, "accuracy": 0.5, "preset": "fast"}
    record = {"training": {"summary": {}}, "attacks": {"a": attack | {"threat": {"eps": [0.5, 0.25]}}}}
    ((found, _),) = columns_of(record)
    assert found.terms == "Linf 0.5 0.25, n 8"
    ((even, _),) = columns_of(record | {"attacks": {"a": attack | {"threat": {"eps": 0.5}}}})
    assert even != found


@pytest.mark.parametrize("channels", [1, 3, 20])
def test_all_channels_of_a_sample_are_drawn(channels: int) -> None:
    clean = [[0.1 * k + t for k in range(channels)] for t in range(5)]
    example = {"index": 0, "prediction": 1, "clean": clean, "attacked": [[v + 0.5 for v in r] for r in clean]}
    drawn = example_svg(example)
    if channels == 20:
        assert drawn.count("<image") == 2  # before, and what was added
    else:
        assert drawn.count("stroke: var(--s2)") - 1 == channels  # a curve each, and the legend


def test_the_arenas_average_stands_beside_the_published_one() -> None:
    def of(task: str, *means: float) -> Table:
        column = Column("clean", "best", 100)
        held = zip(("s5", "s6"), means, strict=False)
        rows = [Row(f"{name},{task}", 2, 0, {column: Value(mean, 1.0, None)}, "") for name, mean in held]
        return Table("lra", [column], rows, task=task)

    made = [of(task, 80.0 + i, 60.0) for i, task in enumerate(TASKS[:-1])]
    assert arena_averages(made) == []
    (table,) = arena_averages([*made, of(TASKS[-1], 85.0)])  # S6 has no number on Path-X
    (only,) = table.rows
    assert (only.name, only.seeds) == ("s5,average", 2)
    (value,) = only.values.values()
    assert (value.mean, value.published) == (82.5, 87.46)
    assert "82.5 (published 87.46, -5.0)" in table.markdown()
    assert arena_averages([Table("smnist", table.columns, table.rows)]) == []
