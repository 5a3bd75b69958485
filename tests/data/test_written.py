"""However numbers, times and classes are written, nothing is lost or mixed up without a word."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from resolvent.data import from_arrays, from_file
from resolvent.data.preparation.like import arrays_like, read_like
from resolvent.models import (
    ChannelsConfig,
    ClassifierConfig,
    LRUConfig,
    Model,
    ModelConfig,
    ResidualConfig,
    build_model,
)
from resolvent.predictor import Predictor

ALL = {"fractions": (0.0, 0.0)}


def long_table(path: Path, times: list[str], values: list[str] | None = None) -> Path:
    """Four samples whose steps are numbered in the order of the lines."""
    values = [str(k) for k in range(len(times))] if values is None else values
    rows = [f"{i},{t},{v},{'ab'[i % 2]}" for i in range(4) for t, v in zip(times, values, strict=True)]
    path.write_text("\n".join(["id,time,v,label", *rows]) + "\n")
    return path


@pytest.mark.parametrize(
    "times",
    [
        ["1", "2", "10"],
        ["2024-01-09", "2024-01-10", "2024-02-01"],
        ["2024-01-01 09:30", "2024-01-01 10:00", "2024-01-01T11:00"],
        ["1700000000000000000", "1700000000000000100", "1700000000000000200"],
        ["a", "b", "c"],
    ],
)
def test_steps_come_in_the_order_of_their_times(times: list[str], tmp_path: Path) -> None:
    found = from_file(long_table(tmp_path / "t.csv", times), **ALL).train.x  # type: ignore[arg-type]
    assert found[0, :, 0].tolist() == [0.0, 1.0, 2.0]
    if times != ["a", "b", "c"]:
        back = from_file(long_table(tmp_path / "b.csv", times[::-1]), **ALL).train.x  # type: ignore[arg-type]
        assert back[0, :, 0].tolist() == [2.0, 1.0, 0.0]


@pytest.mark.parametrize("times", [["t1", "t2", "t10"], ["9:30", "10:00", "10:30"], ["1", "2", "x", "a"]])
def test_words_for_times_that_would_be_shuffled_are_refused(times: list[str], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected a time as a number, or as a date"):
        from_file(long_table(tmp_path / "t.csv", times), **ALL)  # type: ignore[arg-type]


@pytest.mark.parametrize("ending", ["csv", "ts", "npz"])
def test_a_large_offset_is_scaled_before_float32_rounds_it(ending: str, tmp_path: Path) -> None:
    """A time stamp varies by seconds around 1.7e9, where float32 has steps of 128."""
    values = 1.7e9 + np.arange(24.0).reshape(4, 6)
    path = tmp_path / f"stamps.{ending}"
    if ending == "csv":
        rows = [f"{i},{k},{values[i, k]:.1f},{'ab'[i % 2]}" for i in range(4) for k in range(6)]
        path.write_text("\n".join(["id,time,stamp,label", *rows]) + "\n")
    elif ending == "ts":
        lines = [",".join(f"{v:.1f}" for v in row) + f":{'ab'[i % 2]}" for i, row in enumerate(values)]
        path.write_text("@problemName x\n@classLabel true a b\n@data\n" + "\n".join(lines) + "\n")
    else:
        np.savez(path, x=values[..., None], y=np.arange(4) % 2)
    task = from_file(path, scale="standard", **ALL)  # type: ignore[arg-type]
    how = task.preprocess
    assert how is not None
    want = torch.from_numpy((values - values.mean()) / values.std()).float()
    raw = read_like(path, how)
    assert raw.x.dtype == torch.float64
    for ready in (how(raw.x, raw.lengths), how(arrays_like(list(values[..., None]), how).x)):
        assert ready.dtype == torch.float32
        assert torch.allclose(ready[..., 0], want, atol=1e-5)
    assert sorted(task.train.x.flatten().tolist()) == sorted(how(raw.x).flatten().tolist())
    step, _ = how.step(torch.tensor([[values[1, 2]]], dtype=torch.float64), None)
    assert float(step) == pytest.approx(float(want[1, 2]), abs=1e-5)


def test_numbers_beyond_what_a_model_reads_are_refused() -> None:
    x = np.zeros((4, 3, 1))
    x[2, 1] = 1e300
    with pytest.raises(ValueError, match="1 infinite"):
        from_arrays(x, np.arange(4) % 2)


def test_a_class_that_is_written_in_two_ways_is_one_class(tmp_path: Path) -> None:
    path = tmp_path / "c.csv"
    path.write_text("a,b,label\n1,2,1\n3,4,0\n5,6,1.0\n7,8,0\n1,1,1\n2,2,2\n4,4,02\n")
    task = from_file(path, **ALL)  # type: ignore[arg-type]
    assert task.class_names == ("0", "1", "2")
    assert task.classes == 3
    by_first = dict(zip(task.train.x[:, 0, 0].tolist(), task.train.y.tolist(), strict=False))
    assert (by_first[5.0], by_first[3.0], by_first[4.0]) == (1, 0, 2)


def test_thousands_with_an_underscore_are_no_number(tmp_path: Path) -> None:
    path = tmp_path / "u.csv"
    path.write_text("a,b,label\n1_000,2,x\n3,4,y\n")
    with pytest.raises(ValueError, match="expected a number"):
        from_file(path, **ALL)  # type: ignore[arg-type]


def test_classes_that_are_numbers_are_answered_by_those_numbers(tmp_path: Path) -> None:
    """Names 2, 3, 5: an answer 2 is the first class, not the third."""
    path = tmp_path / "n.csv"
    path.write_text("a,b,label\n" + "".join(f"{i},{i + 1},{(2, 3, 5)[i % 3]}\n" for i in range(30)))
    how = from_file(path).preprocess
    block = ResidualConfig(LRUConfig(4), mixer="linear")
    model = build_model(ModelConfig(ChannelsConfig(1), block, ClassifierConfig(3), 4, 1))
    assert isinstance(model, Model)
    ready, x = Predictor(model, how), torch.randn(20, 2, 1)
    said = ready.predict(x)
    for answers in (said, said.astype(int), said.astype(float), torch.from_numpy(said.astype(int))):
        assert ready.score(x, answers) == 1.0
    with pytest.raises(ValueError, match="2, 3, 5; got 0"):
        ready.score(x, np.zeros(20, dtype=int))
