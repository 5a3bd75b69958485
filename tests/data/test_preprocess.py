"""Raw values as a model reads them: learned from what training observed, and the same for a file that comes later."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from resolvent.data import from_arrays, from_file
from resolvent.data.load import load_task
from resolvent.data.preparation.keep import load_preprocess, preprocess_of, save_preprocess
from resolvent.data.preparation.like import arrays_like, read_like
from resolvent.data.preparation.preprocess import Preprocess

NAN = float("nan")


def gappy(n: int = 60) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Two channels far from 0, uneven lengths, gaps also at the first step, rubbish in the padding."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 7, 2)) * [2.0, 0.1] + [170.0, -5.0]
    x[rng.random(x.shape) < 0.2] = NAN
    x[:, 3] = np.where(np.isnan(x[:, 3]), [171.0, -5.1], x[:, 3])  # something is seen of every channel
    lengths = 4 + np.arange(n) % 4
    for row, length in zip(x, lengths, strict=True):
        row[length:] = [NAN, 1e6]
    return x, np.arange(n) % 2, lengths


def oracle(x: np.ndarray, lengths: np.ndarray, mean: np.ndarray, deviation: np.ndarray, rule: str) -> np.ndarray:
    """One value after another, in plain Python."""
    out = np.zeros_like(x)
    for i, length in enumerate(lengths):
        for c in range(x.shape[2]):
            last = 0.0  # the mean, scaled
            for t in range(length):
                value = (x[i, t, c] - mean[c]) / deviation[c]
                if np.isnan(value):
                    value = last if rule == "ffill" else 0.0
                out[i, t, c] = last = value
    return out


@pytest.mark.parametrize("rule", ["zero", "mean", "ffill", "flag"])
def test_gaps_are_filled_after_scaling_by_what_training_observed(rule: str) -> None:
    x, y, lengths = gappy()
    task = from_arrays(x, y, lengths, missing=rule, scale="standard", bounds="infer")
    learned = task.preprocess
    assert learned is not None
    found = learned(torch.tensor(x).float(), torch.tensor(lengths))
    inside = np.arange(7) < lengths[:, None]
    train = _training_rows(y)
    seen = [x[train][inside[train]][:, c] for c in range(2)]
    mean = np.array([np.nanmean(v) for v in seen])
    deviation = np.array([np.nanstd(v) for v in seen])
    assert np.allclose(learned.centre, mean, atol=1e-5)
    assert np.allclose(learned.width, deviation, rtol=1e-4)
    want = oracle(x, lengths, mean, deviation, "ffill" if rule in ("ffill", "flag") else "zero")
    assert np.allclose(found[..., :2].numpy()[inside], want[inside], atol=2e-3)  # float32 of values near 170
    assert float(found[..., :2].abs().max()) < 6  # -17 deviations once stood for a missing first value
    observed = (x - mean) / deviation
    observed[~inside] = NAN
    low, high = task.bounds  # type: ignore[misc]
    if rule != "flag":  # a flag is 0 or 1
        assert abs(low - np.nanmin(observed)) < 2e-3
        assert abs(high - np.nanmax(observed)) < 2e-3
    if rule == "flag":
        assert found[..., 2:].numpy()[inside].tolist() == np.isnan(x)[inside].astype(float).tolist()
        assert task.channels == 4


def _training_rows(y: np.ndarray) -> np.ndarray:
    from resolvent.data.preparation.prepare import split_indices

    return split_indices(torch.tensor(y), (0.1, 0.2), 0)[0].numpy()


def test_minmax_and_bounds_see_neither_padding_nor_gaps() -> None:
    x, y, lengths = gappy()
    task = from_arrays(x, y, lengths, missing="ffill", scale="minmax", bounds="infer")
    train = task.train
    inside = torch.arange(7) < train.lengths[:, None]  # type: ignore[index]
    assert train.x[inside].amin(0).tolist() == [0.0, 0.0]
    assert train.x[inside].amax(0).tolist() == [1.0, 1.0]
    raw = from_arrays(x, y, lengths, missing="ffill", bounds="infer")
    assert raw.bounds is not None
    assert raw.bounds[1] < 200  # the padding holds 1e6
    assert raw.bounds[0] > -6
    assert raw.notes[0].startswith(f"{int(np.isnan(x)[np.arange(7) < lengths[:, None]].sum())} missing")


def test_a_zero_outside_of_the_data_is_told_where_nothing_is_scaled() -> None:
    x = np.full((20, 3, 1), 100.0)
    x[:, 1] = NAN
    task = from_arrays(x, np.arange(20) % 2, missing="zero", bounds="infer")
    assert task.bounds == (0.0, 100.0)
    assert any("stands for missing values" in note for note in task.notes)


def test_padding_that_is_nan_is_not_missing(tmp_path: Path) -> None:
    x = np.ones((20, 4, 1))
    x[:, 2:] = NAN
    np.savez(tmp_path / "a.npz", x=x, y=np.arange(20) % 2, lengths=np.full(20, 2))
    task = from_file(tmp_path / "a.npz")  # missing="refuse"
    assert bool(task.train.x.isfinite().all())
    assert task.bounds == (1.0, 1.0)


def test_a_channel_that_training_never_saw() -> None:
    x = np.ones((20, 3, 2))
    x[..., 1] = NAN
    task = from_arrays(x, np.arange(20) % 2, missing="ffill", scale="standard", bounds="infer")
    assert task.train.x.abs().max() == 0
    assert task.preprocess is not None
    assert task.preprocess(torch.tensor([[[1.0, 3.0]]])).tolist() == [[[0.0, 3.0]]]


def test_a_stream_is_filled_as_the_whole_sequence_is() -> None:
    x, y, lengths = gappy()
    for rule in ("zero", "mean", "ffill", "flag"):
        learned = from_arrays(x, y, lengths, missing=rule, scale="standard").preprocess
        assert learned is not None
        rows = torch.tensor(x[:5, :4]).float()
        whole, last = learned(rows), None
        for t in range(4):
            step, last = learned.step(rows[:, t], last)
            assert step.equal(whole[:, t])


def test_saved_and_read_again(tmp_path: Path) -> None:
    x, y, lengths = gappy()
    for learned in (
        from_arrays(x, y, lengths, missing="flag", scale="standard", bounds="infer", class_names=["a", "b"]).preprocess,
        preprocess_of(load_task("digits")),
        from_arrays(np.arange(60).reshape(20, 3) % 5, np.arange(20) % 2).preprocess,
    ):
        assert learned is not None
        save_preprocess(learned, tmp_path)
        assert load_preprocess(tmp_path) == learned
    path = tmp_path / "preprocess.json"
    text = path.read_text()
    path.write_text(text.replace('"length": 3', '"length": 4'))
    with pytest.raises(ValueError, match="is damaged"):
        load_preprocess(tmp_path)
    for hostile in ("", "[" * 100_000, "[]", '{"sha256": 1}', "null"):
        path.write_text(hostile)
        with pytest.raises(ValueError, match="is damaged"):
            load_preprocess(tmp_path)
    assert load_preprocess(tmp_path / "nowhere") is None


@pytest.mark.parametrize(
    ("wrong", "message"),
    [({"width": (0.0, 1.0)}, "widths above 0"), ({"fill": (NAN, 0.0)}, "fill must hold 2 finite"),
     ({"flagged": (7,)}, "low must hold 3"), ({"inputs": -1}, "inputs must be"),
     ({"vocabulary": 3}, "either inputs"), ({"low": (9.0, 9.0)}, "low <= high")],
)  # fmt: skip
def test_values_that_no_training_writes(wrong: dict[str, Any], message: str) -> None:
    x, y, lengths = gappy()
    learned = from_arrays(x, y, lengths, missing="ffill").preprocess
    assert learned is not None
    with pytest.raises(ValueError, match=message):
        replace(learned, **wrong)


# -- a new file --------------------------------------------------------------------------------------------------------


def table(rows: list[str], head: str = "id,time,hr,temp,state") -> str:
    return "\n".join([head, *rows]) + "\n"


def trained(tmp_path: Path, **options: Any) -> Preprocess:
    rows = [f"{s},{t},{70 + s + t},{36 + t / 10},{['well', 'ill'][s % 2]}" for s in range(20) for t in range(3 + s % 2)]
    (tmp_path / "train.csv").write_text(table(rows))
    learned = from_file(tmp_path / "train.csv", label="state", scale="standard", **options).preprocess
    assert learned is not None
    assert learned.channels == ("hr", "temp")
    return learned


def test_channels_by_name_in_any_order_with_more_columns_and_no_answers(tmp_path: Path) -> None:
    learned = trained(tmp_path)
    (tmp_path / "a.csv").write_text(table(["p,0,36,71,x,ill", "p,1,37,72,x,ill"], "id,time,temp,hr,nurse,state"))
    raw = read_like(tmp_path / "a.csv", learned)
    assert raw.x[0, :2].tolist() == [[71.0, 36.0], [72.0, 37.0]]
    assert raw.x.shape == (1, 4, 2)  # as many steps as in training
    assert raw.lengths is not None
    assert raw.lengths.tolist() == [2]
    assert raw.y is not None
    assert raw.y.tolist() == [0]
    assert raw.ids == ("p",)
    assert "not used: nurse" in raw.notes
    (tmp_path / "b.csv").write_text(table(["71,36", "72,37"], "hr,temp"))  # one sample, neither id nor time
    alone = read_like(tmp_path / "b.csv", learned)
    assert alone.y is None
    assert alone.x.equal(raw.x)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (table(["p,0,36,ill"], "id,time,temp,state"), "channels hr, temp, of which hr is missing"),
        (table(["p,0,71,36,dead"]), "expected the classes of training, ill, well; got dead"),
        (table([]), "at least one sample"),
        ("", "no rows"),
        (table(["1,2,3"], "a,b,c"), "expected the columns id, time and hr, temp"),
        (table(["p,0,,36,ill"]), "sample 0, step 0, channel hr"),
    ],
)
def test_a_file_that_does_not_fit(tmp_path: Path, text: str, message: str) -> None:
    learned = trained(tmp_path)
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(ValueError, match=message):
        learned((raw := read_like(tmp_path / "a.csv", learned)).x, raw.lengths)


def test_wide_tables_by_the_names_of_their_steps(tmp_path: Path) -> None:
    rows = [f"{i % 2},{i},{i + 1},{i + 2}" for i in range(20)]
    (tmp_path / "a.csv").write_text("label,t0,t1,t2\n" + "\n".join(rows))
    learned = from_file(tmp_path / "a.csv").preprocess
    assert learned is not None

    def read(text: str) -> list[list[float]]:
        (tmp_path / "b.csv").write_text(text)
        values: list[list[float]] = read_like(tmp_path / "b.csv", learned).x[..., 0].tolist()
        return values

    assert read("t2,label,t0,t1\n3,0,1,2\n") == [[1, 2, 3]]
    assert read("t0,t1,t2,t3\n1,2,3,4\n") == [[1, 2, 3, 4]]  # longer than training
    assert read("t0,t1\n1,2\n") == [[1, 2]]
    assert read("a,b,c\n1,2,3\n") == [[1, 2, 3]]
    with pytest.raises(ValueError, match="of which t1 is missing"):
        read("t0,t2\n1,2\n")
    assert read_like(tmp_path / "a.csv", learned).y is not None
    (tmp_path / "c.csv").write_text("label,t0,t1,t2\n1.0,1,2,3\n")
    y = read_like(tmp_path / "c.csv", learned).y
    assert y is not None
    assert y.tolist() == [1]  # 1.0 is the class 1


def test_tables_without_header(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("".join(f"{i % 2 * 2 - 1}\t{i}\t{i}\t{i}\n" for i in range(20)))
    learned = from_file(tmp_path / "a.tsv", header=False).preprocess
    assert learned is not None
    (tmp_path / "b.tsv").write_text("1\t2\t3\n")  # three values, no answer
    raw = read_like(tmp_path / "b.tsv", learned)
    assert (raw.y, raw.x[..., 0].tolist()) == (None, [[1, 2, 3]])
    (tmp_path / "c.tsv").write_text("-1\t1\t2\t3\n")
    raw = read_like(tmp_path / "c.tsv", learned)
    assert raw.y is not None
    assert (raw.y.tolist(), raw.x[..., 0].tolist()) == ([0], [[1, 2, 3]])


def test_a_test_file_with_its_columns_in_another_order(tmp_path: Path) -> None:
    trained(tmp_path)
    (tmp_path / "test.csv").write_text(table(["p,0,36,71,ill"], "id,time,temp,hr,state"))
    task = from_file(tmp_path / "train.csv", test=tmp_path / "test.csv", label="state")
    assert task.test.x[0, 0].tolist() == [71.0, 36.0]


def test_archives_by_the_names_they_carry(tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).normal(size=(20, 3, 2)), np.arange(20) % 2
    names: dict[str, Any] = {"channel_names": np.array(["u", "v"]), "class_names": np.array(["no", "yes"])}
    np.savez(tmp_path / "a.npz", x=x, y=y, **names)
    learned = from_file(tmp_path / "a.npz").preprocess
    assert learned is not None
    other: dict[str, Any] = {"channel_names": np.array(["v", "u"]), "class_names": np.array(["yes", "no"])}
    np.savez(tmp_path / "b.npz", x=x[..., ::-1], y=1 - y, **other)
    raw = read_like(tmp_path / "b.npz", learned)
    assert raw.y is not None
    assert raw.x.equal(torch.tensor(x))
    assert raw.y.tolist() == y.tolist()
    np.savez(tmp_path / "c.npz", x_train=x, x_test=x[:2])
    assert len(read_like(tmp_path / "c.npz", learned)) == 2
    np.savez(tmp_path / "d.npz", x=x[..., :1], channel_names=np.array(["u"]))
    with pytest.raises(ValueError, match="of which v missing"):
        read_like(tmp_path / "d.npz", learned)
    np.savez(tmp_path / "e.npz", x=x, y=np.array(["no"] * 19 + ["perhaps"]))
    with pytest.raises(ValueError, match=r"classes of training, no, yes; got perhaps"):
        read_like(tmp_path / "e.npz", learned)


def test_ts_without_answers(tmp_path: Path) -> None:
    head = "@problemName A\n@univariate true\n"
    (tmp_path / "a.ts").write_text(head + "@classLabel true b a\n@data\n" + "1,2,3:a\n4,5,6:b\n" * 10)
    learned = from_file(tmp_path / "a.ts").preprocess
    assert learned is not None
    (tmp_path / "b.ts").write_text(head + "@classLabel false\n@data\n1,2,3\n")
    raw = read_like(tmp_path / "b.ts", learned)
    assert (raw.y, raw.x[..., 0].tolist()) == (None, [[1, 2, 3]])
    (tmp_path / "c.ts").write_text(head + "@classLabel true a b\n@data\n1,2,3:a\n")  # listed in another order
    y = read_like(tmp_path / "c.ts", learned).y
    assert y is not None
    assert y.tolist() == [1]


def test_arrays_lists_and_tokens(tmp_path: Path) -> None:
    learned = trained(tmp_path)
    raw = arrays_like([np.ones((2, 2)), [[1.0, 1.0]] * 4, torch.ones(5, 2)], learned)
    assert raw.lengths is not None
    assert (raw.x.shape, raw.lengths.tolist()) == ((3, 5, 2), [2, 4, 5])  # one longer than any of training
    assert len(arrays_like(np.zeros((0, 4, 2)), learned)) == 0
    assert len(arrays_like([], learned)) == 0
    for wrong in (np.ones((2, 4, 3)), np.ones((4, 2)), [np.ones((2, 3))], "some.csv", [np.ones((0, 2))]):
        with pytest.raises((ValueError, TypeError), match="expected"):
            arrays_like(wrong, learned)
    with pytest.raises(ValueError, match="2 lengths from 1 to 4"):
        arrays_like(np.ones((2, 4, 2)), learned, lengths=[1, 9])
    tokens = from_arrays(np.arange(60).reshape(20, 3) % 5, np.arange(20) % 2).preprocess
    assert tokens is not None
    assert tokens(arrays_like([[1, 2], [3]], tokens).x).tolist() == [[1, 2], [3, 0]]
    with pytest.raises(ValueError, match="tokens from 0 to 4, got 1 to 7"):
        tokens(arrays_like([[1, 7]], tokens).x)
    with pytest.raises(ValueError, match="had no names in training"):
        arrays_like([[1, 2]], tokens, ["a"])


def test_another_rule_for_gaps(tmp_path: Path) -> None:
    learned = trained(tmp_path)
    assert learned.by("ffill")(torch.tensor([[[NAN, 36.0]]]))[0, 0, 0] == 0  # the mean
    with pytest.raises(ValueError, match="fixes its channels"):
        learned.by("flag")
