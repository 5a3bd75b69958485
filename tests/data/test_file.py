"""A user's own files: what is inferred, what is said about it, and what is refused with its line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from resolvent.data import Task, from_arrays, from_file

RNG = np.random.default_rng(0)


def rows_of(task: Task) -> list[tuple[list[float], int, float]]:
    """Every sample of every part as (first channel, length, answer), sorted: what went in must come out."""
    found = []
    for split in task.splits().values():
        for i in range(len(split)):
            length = task.length if split.lengths is None else int(split.lengths[i])
            found.append((split.x[i, :length, 0].tolist(), length, float(split.y[i])))
    return sorted(found)


# -- arrays ------------------------------------------------------------------------------------------------------------


def test_npz_and_safetensors(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    x, y = RNG.normal(size=(40, 6, 2)).astype(np.float32), np.arange(40) % 3
    np.savez(tmp_path / "a.npz", x=x, y=y, class_names=np.array(["red", "green", "blue"]))
    save_file({"x": x, "y": y}, tmp_path / "a.safetensors")
    task, other = from_file(tmp_path / "a.npz"), from_file(tmp_path / "a.safetensors")
    assert (task.name, task.length, task.channels, task.classes) == ("a", 6, 2, 3)
    assert task.class_names == ("red", "green", "blue")
    assert other.train.x.equal(task.train.x)
    assert task.train.x.equal(from_arrays(x, y).train.x)
    low, high = task.bounds  # type: ignore[misc]
    assert low == float(x.min())
    assert high == float(x.max())
    assert "red, green, blue" in task.describe()


def test_parts_that_the_file_already_has(tmp_path: Path) -> None:
    parts: dict[str, Any] = {f"x_{p}": RNG.normal(size=(n, 5)) for p, n in (("train", 20), ("val", 6), ("test", 8))}
    parts |= {f"y_{p}": np.arange(n) % 2 for p, n in (("train", 20), ("val", 6), ("test", 8))}
    np.savez(tmp_path / "a.npz", **parts)
    task = from_file(tmp_path / "a.npz")
    assert [len(split) for split in task.splits().values()] == [20, 6, 8]
    np.savez(tmp_path / "b.npz", **{k: v for k, v in parts.items() if "val" not in k})
    assert [len(split) for split in from_file(tmp_path / "b.npz").splits().values()] == [18, 2, 8]


def test_classes_that_are_words_share_one_numbering(tmp_path: Path) -> None:
    """A part may miss a class."""
    answers = {"y_train": np.array(["b", "c", "a", "b"] * 5), "y_test": np.array(["c", "b"] * 4)}
    np.savez(tmp_path / "a.npz", x_train=np.zeros((20, 3)), x_test=np.zeros((8, 3)), **answers)
    task = from_file(tmp_path / "a.npz")
    assert (task.class_names, task.test.y.tolist()) == (("a", "b", "c"), [2, 1] * 4)
    np.savez(tmp_path / "b.npz", x_train=np.zeros((20, 3)), x_test=np.zeros((8, 3)), **answers | {"y_test": np.ones(8)})
    with pytest.raises(ValueError, match="either words or numbers in y"):
        from_file(tmp_path / "b.npz")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"a": np.zeros(3)}, "expected arrays x and y, or x_train"),
        ({"x": np.zeros((3, 2))}, "expected an array y"),
        ({"x": np.zeros((3, 2)), "y": np.zeros(2)}, "3 inputs, 2 labels"),
        ({"x_train": np.zeros((3, 2)), "y_train": np.zeros(3)}, "x_train, y_train, x_test"),
        ({"x": np.array([{}], dtype=object), "y": np.zeros(1)}, "not to be read"),
        ({"x": np.array([["a"]]), "y": np.zeros(1)}, "expected numbers in x"),
        ({"x": np.zeros((3, 2)), "y": np.zeros(3), "lengths": np.array([1.0, 2.0, 2.0])}, "whole numbers as lengths"),
        ({"x": np.full((3, 2), np.inf), "y": np.zeros(3)}, "6 infinite values"),
        ({"x": np.zeros((3, 2)), "y": np.full(3, np.nan)}, "y holds missing"),
    ],
)
def test_wrong_arrays_are_refused(tmp_path: Path, arrays: dict[str, np.ndarray], message: str) -> None:
    np.savez(tmp_path / "a.npz", **arrays)  # type: ignore[arg-type]
    with pytest.raises((ValueError, TypeError), match=message):
        from_file(tmp_path / "a.npz")


# -- tables ------------------------------------------------------------------------------------------------------------


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_a_wide_table(tmp_path: Path) -> None:
    text = "id,label,t0,t1,t2\n" + "".join(f"{i},{'ab'[i % 2]},{i},{i + 0.5},{i + 1}\n" for i in range(20))
    task = from_file(write(tmp_path / "a.csv", text))
    assert (task.length, task.channels, task.classes, task.class_names) == (3, 1, 2, ("a", "b"))
    assert rows_of(task) == [([i, i + 0.5, i + 1], 3, i % 2) for i in range(20)]
    assert "the column id is not used" in task.describe()
    assert task.train.lengths is None


def test_rows_that_end_early_and_other_dividers(tmp_path: Path) -> None:
    text = "t0;t1;t2;Class\n" + "".join("1;2;3;7\n4;5;;10\n" for _ in range(10))
    task = from_file(write(tmp_path / "a.csv", text))
    assert task.class_names == ("7", "10")  # by value, not by letter
    assert rows_of(task) == [([1, 2, 3], 3, 0.0)] * 10 + [([4, 5], 2, 1.0)] * 10
    assert task.bounds == (1.0, 5.0)  # of what was observed; the padding is set inside
    assert float(task.train.x.min()) == 1.0
    assert "10 rows end in empty cells" in task.describe()


def test_a_table_without_header(tmp_path: Path) -> None:
    """As the UCR archive has it: class first, tabs between."""
    path = write(tmp_path / "a.tsv", "".join(f"{i % 2 * 2 - 1}\t{i}\t{i}\n" for i in range(12)))
    assert from_file(path, header=False).class_names == ("-1", "1")
    with pytest.raises(ValueError, match="line 1: expected the names of the columns, got numbers"):
        from_file(path)


def test_a_long_table(tmp_path: Path) -> None:
    lines = [f"{s},{t},{s * 10 + t},{-t},{['even', 'odd'][s % 2]}" for s in range(12) for t in range(s % 3 + 2)]
    RNG.shuffle(lines)
    task = from_file(write(tmp_path / "a.csv", "id,time,u,v,target\n" + "\n".join(lines) + "\n"))
    assert (task.length, task.channels, task.class_names) == (4, 2, ("even", "odd"))
    want = sorted(([s * 10.0 + t for t in range(s % 3 + 2)], s % 3 + 2, float(s % 2)) for s in range(12))
    assert rows_of(task) == want
    assert "channels u, v" in task.notes


def test_uneven_times_are_told(tmp_path: Path) -> None:
    lines = [f"{s},{t},1,{s % 2}" for s in range(8) for t in (0, 1, 5)]
    task = from_file(write(tmp_path / "a.csv", "id,time,u,y\n" + "\n".join(lines)))
    assert any("uneven" in note for note in task.notes)


def test_real_answers(tmp_path: Path) -> None:
    text = "target,a,b\n" + "".join(f"{i / 3},{i},{i}\n" for i in range(12))
    task = from_file(write(tmp_path / "a.csv", text))
    assert task.classes is None
    assert task.train.y.dtype == torch.float32
    whole = from_file(write(tmp_path / "b.csv", "target,a,b\n" + "".join(f"{i * 7},{i},{i}\n" for i in range(12))))
    assert whole.classes is None  # no answer comes twice


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no rows"),
        ("a,label\n", "at least one sample"),
        ("a,b\n1,2\n", "expected one column called label, class"),
        ("label,y,a\n1,2,3\n", "expected one column called"),
        ("a,a,label\n1,2,3\n", "'a' again"),
        ("a,label\n1,x\n1,2,3\n", "line 3: expected 2 cells, got 3"),
        ("a,label\nx,1\n", "line 2, column 'a': expected a number.* got 'x'"),
        ("a,label\n1,\n", "line 2: expected a label"),
        ("a,label\n1e99,1\n", "line 2: expected finite"),
        ("a,label\ninf,1\n", "line 2: expected finite"),
        ('a,label\n"1,1\n', "line 2"),
        ("a,label\n,1\n", "line 2: expected at least one value"),
        ("id,time,label\n1,1,1\n", "a column besides id, time"),
        ("id,time,u,label\n1,0,1,a\n1,0,2,a\n", "line 3: the time '0' comes twice"),
        ("id,time,u,label\n1,0,1,a\n1,1,2,b\n", "line 3: expected the label 'a' as in line 2"),
        ("a,label\n1,0.5\n2,NaN\n", "line 3: expected a label, got 'NaN'; drop"),
        ("a,label\n1,0.5\n2,none\n", "a label in every row, got 'none' among numbers"),
        ("a|label\n1|x\n2|y\n", "got a.label; name it.*divided by commas, semicolons or tabs"),
        ("# a logger\na,label\n1,x\n", "line 2: expected 1 cells, got 2; names of columns stand in line 1"),
        ("a;label\n1,5;x\n2,5;y\n", "column 'a'.*got '1,5'. Write numbers with a point"),
        ("time,a,label\n1,1,x\n2,2,y\n", "a column of ids beside that of times, got time, a, label; --id names"),
        ("id,time,u,label\n1,0,1,a\n,1,2,a\n", "line 3: expected the id of a sample, got ''"),
        ("id,time,u,label\n1,0,1,a\n1,,2,a\n", "line 3: expected a time as a number.*got ''"),
        # sorted as text, as a spreadsheet does: February comes between two days of January
        (
            "id,time,u,label\n1,01.01.26,1,a\n1,01.02.26,2,a\n1,02.01.26,3,a\n",
            "line 2: expected a time.*got '01.01.26'",
        ),
    ],
)
def test_wrong_tables_name_their_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_file(write(tmp_path / "a.csv", text))


@pytest.mark.parametrize("name", ["", "Unnamed: 0", "__index_level_0__"])
def test_a_column_that_numbers_the_rows_is_no_step(tmp_path: Path, name: str) -> None:
    text = f"{name},a,b,label\n" + "".join(f"{i},{i % 5},0.5,{i % 2}\n" for i in range(20))
    task = from_file(write(tmp_path / "a.csv", text))
    assert task.length == 2
    assert f"not used: the column {name!r}, which numbers the rows" in task.notes
    repeated = from_file(write(tmp_path / "b.csv", text.replace("\n19,", "\n18,")))  # values of a step
    assert repeated.length == 3


def test_what_a_newcomer_should_know_is_noted(tmp_path: Path) -> None:
    text = "a,label\n" + "".join(f"{i},{('1', '01', '2')[i % 3]}\n" for i in range(30))
    task = from_file(write(tmp_path / "a.csv", text), test=write(tmp_path / "b.csv", text))
    assert "labels that are one number are one class: 01" in task.notes
    seen = {row.item() for row in task.train.x}
    both = sum(row.item() in seen for row in task.test.x)
    assert f"{both} of 30 test samples are in the training part, too" in task.notes
    assert not any("training part, too" in note for note in from_file(tmp_path / "a.csv").notes)


@pytest.mark.parametrize("kind", ["csv", "npz", "folder"])
def test_whole_numbers_are_classes_when_told(tmp_path: Path, kind: str) -> None:
    answers = np.array([3.0, 7.0, 11.0, 30.0] * 5 if kind != "csv" else [*range(5, 20), *range(5, 10)], dtype=float)
    x, file = np.arange(20.0)[:, None].repeat(2, 1), tmp_path / f"a.{kind}"
    if kind == "csv":
        write(file, "a,b,label\n" + "".join(f"{u},{v},{y:g}\n" for (u, v), y in zip(x, answers, strict=True)))
    elif kind == "npz":
        np.savez(file, x=x, y=answers)
    else:
        file.mkdir()
        np.save(file / "x.npy", x), np.save(file / "y.npy", answers)
    assert from_file(file).classes is None
    task = from_file(file, task="classification")
    assert task.class_names == tuple(f"{value:g}" for value in np.unique(answers))
    for split in task.splits().values():
        for row, y in zip(split.unpack().x, split.y, strict=True):
            assert float(task.class_names[int(y)]) == answers[int(row[0])]


def test_another_column_can_answer(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "kind,b\n" + "x,1\ny,2\n" * 8)
    assert from_file(path, label="kind").class_names == ("x", "y")
    with pytest.raises(ValueError, match="expected a column 'what', got kind, b"):
        from_file(path, label="what")


def test_parquet(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="Parquet is read by pyarrow")
    import pyarrow

    columns = {"label": ["a", "b"] * 8, "t0": [None, *range(15)], "t1": list(range(16))}
    parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match="1 missing"):
        from_file(tmp_path / "a.parquet")
    task = from_file(tmp_path / "a.parquet", missing="zero")
    assert task.class_names == ("a", "b")
    assert task.length == 2
    (tmp_path / "b.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(ValueError, match="expected a Parquet table"):
        from_file(tmp_path / "b.parquet")


def test_parquet_without_its_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    with pytest.raises(ImportError, match=r"pip install .resolvent\[data\]., or save the table as CSV"):
        from_file(tmp_path / "a.parquet")


# -- .ts ---------------------------------------------------------------------------------------------------------------

TS = """# a comment
@problemName Gestures
@timeStamps false
@missing true
@univariate false
@dimensions 2
@equalLength false
@classLabel true left right
@data
"""


def test_ts(tmp_path: Path) -> None:
    body = "1,2,3:4,5,6:left\n7,8:9,?:right\n" * 6
    path = write(tmp_path / "a.ts", TS + body)
    with pytest.raises(ValueError, match="6 missing"):
        from_file(path)
    task = from_file(path, missing="ffill")
    assert (task.length, task.channels, task.class_names) == (3, 2, ("left", "right"))
    assert rows_of(task) == [([1, 2, 3], 3, 0.0)] * 6 + [([7, 8], 2, 1.0)] * 6
    right = task.train.x[task.train.y == 1]
    assert (right[:, 1, 1] == 9).all()  # the value before the gap
    assert right[:, 2].unique(dim=0).tolist() == [[1.0, 4.0]]  # padding: what is nearest to 0 in each channel's range


def test_ts_with_a_test_file(tmp_path: Path) -> None:
    head = "@problemName A\n@univariate true\n@classLabel true 1 2\n@data\n"
    train = write(tmp_path / "A_TRAIN.ts", head + "1,2,3:1\n4,5,6:2\n" * 10)
    test = write(tmp_path / "A_TEST.ts", head + "1,2,3,4:1\n" * 3)
    task = from_file(train, test=test)
    assert [len(split) for split in task.splits().values()] == [18, 2, 3]
    assert task.length == 4
    assert task.train.lengths is not None
    assert task.train.lengths.unique().tolist() == [3]


def test_ts_with_targets(tmp_path: Path) -> None:
    path = write(tmp_path / "a.ts", "@targetLabel true\n@data\n" + "1,2:0.5\n2,3:1.5\n" * 6)
    assert from_file(path).classes is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1,2:a\n", "line 1: expected a tag"),
        ("@classLabel true a b\n", "expected a line @data"),
        ("@univariate true\n@data\n1,2:a\n", "expected labels"),
        ("@classLabel true\n@data\n", "names of the classes"),
        ("@classLabel true a\n@data\n1,2:b\n", "line 3: expected one of the classes"),
        ("@classLabel true a\n@data\n1,x:a\n", "line 3: expected a number"),
        ("@classLabel true a\n@data\n1,2\n", "line 3: expected dimensions and a label"),
        ("@classLabel true a\n@data\n1,2:a\n1:2:a\n", "line 4: expected 1 dimensions as before, got 2"),
        ("@classLabel true a\n@dimensions 2\n@data\n1,2:a\n", "line 4: expected 2 dimensions"),
        ("@classLabel true a\n@equalLength true\n@seriesLength 3\n@data\n1,2:a\n", "line 5: expected 3 steps"),
        ("@classLabel true a\n@missing false\n@data\n1,?:a\n", "line 4: expected no missing"),
        ("@timeStamps true\n@classLabel true a\n@data\n(0,1):a\n", "time stamps"),
        ("@classLabel true a\n@data\n", "at least one sample"),
    ],
)
def test_wrong_ts_files_name_their_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_file(write(tmp_path / "a.ts", text))


# -- rules -------------------------------------------------------------------------------------------------------------


def test_missing_values() -> None:
    nan = float("nan")
    x = torch.tensor([[nan, 1, nan, 2], [3, nan, nan, 4]]).repeat(10, 1)
    y = torch.arange(20) % 2
    with pytest.raises(ValueError, match=r"40 missing or infinite values \(50.0%\)"):
        from_arrays(x, y)
    wanted = {
        "zero": [[0, 1, 0, 2], [3, 0, 0, 4]],
        "mean": [[2.5, 1, 2.5, 2], [3, 2.5, 2.5, 4]],
        "ffill": [[2.5, 1, 1, 2], [3, 3, 3, 4]],  # the mean before the first value
    }
    for rule, rows in wanted.items():
        task = from_arrays(x, y, missing=rule)
        for split in task.splits().values():
            assert split.x[..., 0].tolist() == [rows[label] for label in split.y.tolist()]
        assert f"40 missing values filled by '{rule}'" in task.notes
    flagged = from_arrays(torch.stack([x, torch.ones_like(x)], -1), y, missing="flag")
    assert flagged.channels == 3  # two, and the gaps of the first
    for split in flagged.splits().values():
        assert split.x[..., 0].tolist() == [wanted["ffill"][label] for label in split.y.tolist()]
        gaps = [[[1, 0, 1, 0], [0, 1, 1, 0]][label] for label in split.y.tolist()]
        assert split.x[..., 2].tolist() == gaps


def test_scales_come_from_the_training_part() -> None:
    x = torch.randn(200, 6, 2, generator=torch.Generator().manual_seed(0)) * torch.tensor([3.0, 0.0]) + 7
    lengths = torch.arange(200) % 6 + 1
    task = from_arrays(x, torch.arange(200) % 2, lengths, scale="standard")
    inside = torch.arange(6) < task.train.lengths[:, None]  # type: ignore[index]
    values = task.train.x[inside]
    assert float(values.mean(0).abs().max()) < 1e-5
    assert abs(float(values[:, 0].std(correction=0)) - 1) < 1e-5
    assert float(values[:, 1].abs().max()) == 0  # a channel that never changes
    assert float(task.train.x[~inside].abs().max()) == 0
    small = from_arrays(x, torch.arange(200) % 2, lengths, scale="minmax")
    values = small.train.x[inside]
    assert float(values[:, 0].min()) == 0
    assert float(values[:, 0].max()) == 1


def test_bounds_are_those_of_the_training_part() -> None:
    x = torch.rand(100, 3)
    y = torch.zeros(100, dtype=torch.long)
    task = from_arrays(x, y, bounds="infer")
    assert task.bounds is not None
    assert task.bounds[0] == float(x.min())  # widened where another part goes beyond, and said so
    own = (float(task.train.x.min()), float(task.train.x.max()))
    assert any("widened" in note for note in task.notes) == (own != task.bounds)
    assert from_arrays(x, y).bounds is None


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"missing": "guess"}, ValueError, "missing must be one of 'refuse'"),
        ({"scale": "log"}, ValueError, "scale must be one of"),
        ({"bounds": "auto"}, ValueError, "bounds must be a pair"),
        ({"sed": 1}, TypeError, "unknown option 'sed'"),
    ],
)
def test_wrong_rules_are_refused(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        from_arrays(torch.zeros(4, 3), torch.arange(4) % 2, **options)


def test_wrong_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"ends in \.npz"):
        from_file("a.xlsx")
    with pytest.raises(FileNotFoundError, match=r"a\.csv' is not there"):
        from_file(tmp_path / "a.csv")
    (tmp_path / "a.csv").write_bytes(b"a,label\n\xff\xfe,1\n")
    with pytest.raises(ValueError, match="UTF-8"):
        from_file(tmp_path / "a.csv")
    with pytest.raises(ValueError, match="two files of one kind"):
        from_file(tmp_path / "a.csv", test=write(tmp_path / "a.ts", ""))
