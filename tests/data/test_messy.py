"""Tables as people have them: true and false, quoted separators, no rows, no times, another unit, no ids."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from resolvent import cli
from resolvent.data import from_arrays, from_file
from resolvent.data.preparation.like import read_like


def write(path: Path, head: str, rows: list[str]) -> Path:
    path.write_text("\n".join([head, *rows]) + "\n", encoding="utf-8")
    return path


def sensors(offset: float = 0.0, label: bool = True, ids: bool = True) -> list[str]:
    """Twenty samples of four steps: a temperature between 20 and 23 and a pressure."""
    rows = []
    for i in range(20):
        for t in range(4):
            name = f"s{i},{t}" if ids else str(t)
            rows.append(f"{name},{20 + offset + (i + t) % 4},{1000 + i}" + (f",{'ab'[i % 2]}" if label else ""))
    return rows


def test_true_and_false_are_one_and_zero(tmp_path: Path) -> None:
    words = ("True", "false", "TRUE", "False")
    rows = [f"s{i},{t},{words[(i + t) % 4]},{i % 2}" for i in range(12) for t in range(3)]
    task = from_file(write(tmp_path / "a.csv", "id,time,open,label", rows))
    for split in task.splits().values():
        assert set(split.x.unique().tolist()) <= {0.0, 1.0}
    assert task.train.x.mean() == pytest.approx(0.5, abs=0.2)
    named = [f"{i},{i + 1},{i % 2 == 0}" for i in range(12)]
    assert from_file(write(tmp_path / "b.csv", "u,v,label", named)).class_names == ("False", "True")


def test_a_separator_inside_of_quotes_divides_nothing(tmp_path: Path) -> None:
    rows = [f"{i};{i + 1};{i % 2}" for i in range(12)]
    task = from_file(write(tmp_path / "a.csv", '"load, MW, net";"hour";label', rows))
    assert (task.length, task.classes) == (2, 2)


@pytest.mark.parametrize(
    ("head", "rows", "options", "message"),
    [
        ("id,time,u,label", [], {}, "expected at least one sample, found none below the names"),
        ("id,time,u,label", ["a,0,1,x", "a,0,2,x"], {}, "first in line 2; take one of the rows out"),
        ("id,time,u,label", ["a,0,1,x", "a,1,2"], {}, "expected 4 cells, got 3; complete that line"),
        ("sep=;", ["id;time;u;label", "a;0;1;x"], {}, "names of columns stand in line 1"),
        ("id,time,u,label", ["a,0,inf,x"], {}, "empty that cell, or clip it"),
        ("a,0,x,1", ["a,1,y,2"], {"header": False}, "write the names of its columns into line 1"),
    ],
)
def test_messages_say_what_to_do(
    tmp_path: Path, head: str, rows: list[str], options: dict[str, bool], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        from_file(write(tmp_path / "a.csv", head, rows), **options)  # type: ignore[arg-type]


def test_a_column_without_a_name_is_called_so(tmp_path: Path) -> None:
    rows = [f"{row}," for row in sensors()]
    task = from_file(write(tmp_path / "a.csv", "id,time,temp,pres,label,", rows))
    assert any(note.startswith("not used: a column without a name") for note in task.notes)


@pytest.mark.parametrize("scale", ["none", "standard", "minmax"])
def test_values_in_another_unit_are_noted(tmp_path: Path, scale: str) -> None:
    head = "id,time,temp,pres,label"
    task = from_file(write(tmp_path / "a.csv", head, sensors()), scale=scale)
    assert task.preprocess is not None
    assert not read_like(tmp_path / "a.csv", task.preprocess).notes
    kelvin = read_like(write(tmp_path / "b.csv", head, sensors(273.15)), task.preprocess)
    (note,) = kelvin.notes
    middle = np.quantile([float(row.split(",")[2]) for row in sensors(273.15)], 0.5, method="lower")
    assert note.startswith(f"channel temp: most values (median {middle:g})")
    np.savez(tmp_path / "b.npz", x=kelvin.x.numpy())
    assert read_like(tmp_path / "b.npz", task.preprocess).notes == kelvin.notes


def test_a_new_file_without_ids_is_one_sample_and_says_so(tmp_path: Path) -> None:
    task = from_file(write(tmp_path / "a.csv", "id,time,temp,pres,label", sensors()))
    assert task.preprocess is not None
    rows = [row.partition(",")[2].partition(",")[2] for row in sensors(label=False)]
    raw = read_like(write(tmp_path / "b.csv", "temp,pres", rows), task.preprocess)
    assert len(raw) == 1
    assert "no column id: all rows are read as one sample" in raw.notes
    with pytest.raises(ValueError, match="give the column id"):
        read_like(write(tmp_path / "c.csv", "time,temp,pres", sensors(label=False, ids=False)), task.preprocess)


@pytest.mark.parametrize("kind", ["int8", "int16", "int64", "uint8"])
def test_whole_numbers_with_channels_are_values(tmp_path: Path, kind: str) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 100, (20, 5, 2)).astype(kind), np.arange(20) % 2
    np.savez(tmp_path / "a.npz", x=x, y=y)
    task = from_file(tmp_path / "a.npz", scale="standard")
    known = from_arrays(x.astype(float), y, scale="standard")
    assert task.channels == 2
    assert (task.train.x == known.train.x).all()
    (tmp_path / "folder").mkdir()
    np.save(tmp_path / "folder" / "x.npy", x)
    np.save(tmp_path / "folder" / "y.npy", y)
    mapped = from_file(tmp_path / "folder", scale="standard")
    assert np.allclose(mapped.train.x, known.train.x, atol=1e-6)
    np.savez(tmp_path / "b.npz", x=x[..., 0].astype("int64") - 50, y=y)
    with pytest.raises(ValueError, match="as real numbers if they are measurements"):
        from_file(tmp_path / "b.npz")


def test_too_few_samples_are_refused_before_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path / "a.csv", "u,v,label", [f"{i},{i + 1},{i % 2}" for i in range(4)])
    words = ["--data", str(file), "--epochs", "1", "--width", "4", "--layers", "1", "--out", str(tmp_path / "runs")]
    assert cli.main(["run", "train", *words]) == 2
    refusal = capsys.readouterr().err
    assert "4 samples are too few to hold some out: 2 for train, 2 for validation, 0 for test" in refusal
    assert not (tmp_path / "runs").exists()


def test_a_packed_file_is_refused_with_advice(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"got 'a\.csv\.gz'; unpack it"):
        from_file(tmp_path / "a.csv.gz")
