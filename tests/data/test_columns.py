"""Columns of a table by the names they have there: samples, times, what is left out, and cells that are no numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from resolvent.data import from_file
from resolvent.data.preparation.like import read_like

HEAD = "Pump,Taken at,g,volt,State,Remark,Site"


def table(path: Path, rows: list[str], head: str = HEAD) -> Path:
    path.write_text("\n".join([head, *rows]) + "\n", encoding="utf-8")
    return path


def pumps(times: bool = True) -> list[str]:
    """Twelve pumps of three to five steps; the first column of numbers counts up with time."""
    rows = []
    for i in range(12):
        for t in range(3 + i % 3):
            state = "worn" if i % 2 else "good"
            whole = f"P{i},2026-03-01 10:{t:02d},{t},{i + t / 8},{state},,north"
            rows.append(whole if times else f"P{i},{t},{i},{state}")
    return rows


NAMES = {"label": "State", "id": "Pump", "time": "Taken at", "ignore": "Site"}


def test_columns_by_their_own_names(tmp_path: Path) -> None:
    rows = pumps()
    file = table(tmp_path / "a.csv", rows[::-1])  # times put them back in order
    task = from_file(file, **NAMES)  # type: ignore[arg-type]
    assert (task.length, task.channels, task.class_names) == (5, 2, ("good", "worn"))
    assert task.preprocess is not None
    assert task.preprocess.channels == ("g", "volt")
    assert any("Remark, where every cell is empty" in note for note in task.notes)
    for split in task.splits().values():
        assert split.lengths is not None
        for x, n in zip(split.x, split.lengths, strict=True):
            assert x[: int(n), 0].tolist() == list(range(int(n)))


def test_a_column_of_missing_values_is_left_out(tmp_path: Path) -> None:
    rows = [row.replace(",,", ",N/A,") for row in pumps()]
    task = from_file(table(tmp_path / "a.csv", rows), **NAMES)  # type: ignore[arg-type]
    assert any("Remark, where every cell is empty" in note for note in task.notes)


def test_a_new_file_is_read_by_the_same_names(tmp_path: Path) -> None:
    task = from_file(table(tmp_path / "a.csv", pumps()), **NAMES)  # type: ignore[arg-type]
    assert task.preprocess is not None
    new = table(tmp_path / "b.csv", ["Q1,2026-03-01 10:01,1,5", "Q1,2026-03-01 10:00,0,4"], "Pump,Taken at,g,volt")
    raw = read_like(new, task.preprocess)
    assert raw.ids == ("Q1",)
    assert raw.y is None
    assert raw.x[0, :2].tolist() == [[0.0, 4.0], [1.0, 5.0]]


def test_rows_without_times_are_in_the_order_of_the_file(tmp_path: Path) -> None:
    file = table(tmp_path / "a.csv", pumps(times=False), "Pump,g,volt,State")
    task = from_file(file, label="State", id="Pump")
    assert (task.length, task.channels) == (5, 2)
    assert all(x[:3, 0].tolist() == [0.0, 1.0, 2.0] for split in task.splits().values() for x in split.x)


def test_the_sample_may_be_the_group(tmp_path: Path) -> None:
    task = from_file(table(tmp_path / "a.csv", pumps()), group="Pump", **NAMES)  # type: ignore[arg-type]
    assert sum(len(split) for split in task.splits().values()) == 12


def test_uneven_dates_are_noted(tmp_path: Path) -> None:
    rows = [row.replace("10:02", "10:09") for row in pumps()]
    task = from_file(table(tmp_path / "a.csv", rows), **NAMES)  # type: ignore[arg-type]
    assert any("uneven" in note for note in task.notes)


@pytest.mark.parametrize("cell", ["N/A", "-", "#VALUE!", "#DIV/0!", "NaN", "<NA>", "--"])
def test_what_people_write_for_a_missing_value(tmp_path: Path, cell: str) -> None:
    rows = pumps()
    rows[0] = rows[0].replace("10:00,0,", f"10:00,{cell},")
    file = table(tmp_path / "a.csv", rows)
    with pytest.raises(ValueError, match="1 missing or infinite"):
        from_file(file, **NAMES)  # type: ignore[arg-type]
    assert from_file(file, missing="zero", **NAMES).channels == 2  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"id": "Pump", "time": "Taken at"}, r"line 2, column 'Site'.*or leave it out with --ignore Site"),
        ({"ignore": "Site"}, r"line 2, column 'Pump'.*--id the sample"),
        ({"id": "Pmp"}, "expected a column 'Pmp', got Pump"),
        ({"ignore": ["Sit"]}, "expected a column 'Sit'"),
    ],
)
def test_refusals_name_the_column(tmp_path: Path, options: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_file(table(tmp_path / "a.csv", pumps()), label="State", **options)  # type: ignore[arg-type]


def test_bad_cells_are_counted(tmp_path: Path) -> None:
    rows = [row.replace(",2,", ",ERR,") for row in pumps()]
    with pytest.raises(ValueError, match=r"line 4, column 'g'.*got 'ERR'; 12 of its 48 cells.*--missing"):
        from_file(table(tmp_path / "a.csv", rows), **NAMES)  # type: ignore[arg-type]


def test_two_columns_for_one_thing_are_refused(tmp_path: Path) -> None:
    file = table(tmp_path / "a.csv", ["1,A,1,2,x", "2,A,2,3,x"], "id,Pump,time,g,label")
    with pytest.raises(ValueError, match="one column for id, got 'Pump' and 'id'"):
        from_file(file, id="Pump")


def test_ids_that_repeat_in_a_table_of_samples_are_noted(tmp_path: Path) -> None:
    rows = [f"A{i % 3},{i},{i + 1},{i % 2}" for i in range(20)]
    task = from_file(table(tmp_path / "a.csv", rows, "id,g,volt,label"))
    assert any("--id id" in note for note in task.notes)
