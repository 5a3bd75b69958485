"""Groups stay whole: no name in two parts, whatever the sizes, classes and seeds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from resolvent.data import from_arrays, from_file
from resolvent.data.preparation.groups import grouped_indices


@pytest.mark.parametrize("seed", range(20))
def test_each_sample_once_each_group_in_one_part(seed: int) -> None:
    draw = np.random.default_rng(seed)
    n = int(draw.integers(20, 300))
    groups = [f"g{k}" for k in draw.zipf(1.6, n) % 40]
    y = torch.from_numpy(draw.integers(0, 3, n)) if seed % 2 else torch.randn(n)
    if len(set(groups)) < 3:
        pytest.skip("fewer groups than parts")
    parts = grouped_indices(y, groups, (0.1, 0.2), seed)
    assert sorted(torch.cat(parts).tolist()) == list(range(n))
    held = [{groups[i] for i in part.tolist()} for part in parts]
    assert sum(map(len, held)) == len(set(groups))
    assert all(held)
    again = grouped_indices(y, groups, (0.1, 0.2), seed)
    assert all(torch.equal(a, b) for a, b in zip(parts, again, strict=True))


def test_shares_and_classes_are_kept_where_groups_allow() -> None:
    groups = [f"p{k // 10}" for k in range(1000)]  # a hundred groups of ten
    y = torch.tensor([int(k // 10 % 4 == 0) for k in range(1000)])  # one group in four is of class 1
    for seed in range(5):
        train, validation, test = grouped_indices(y, groups, (0.1, 0.2), seed)
        for part, share in ((train, 700), (validation, 100), (test, 200)):
            assert abs(len(part) - share) <= 10  # one group: 25 and 75 groups of a class are not divided evenly
        for part in (train, validation, test):
            assert float(y[part].double().mean()) == pytest.approx(0.25, abs=0.06)
    assert not torch.equal(grouped_indices(y, groups, (0.1, 0.2), 0)[2], grouped_indices(y, groups, (0.1, 0.2), 1)[2])


def test_three_groups_are_enough_and_two_are_not() -> None:
    groups = ["a"] * 40 + ["b"] * 5 + ["c"] * 5
    parts = grouped_indices(torch.zeros(50, dtype=torch.long), groups, (0.1, 0.2), 0)
    assert sorted(map(len, parts)) == [5, 5, 40]
    with pytest.raises(ValueError, match=r"at least 3 groups, .* got 2"):
        grouped_indices(torch.zeros(4, dtype=torch.long), ["a", "a", "b", "b"], (0.1, 0.2), 0)


def values_of(path: Path, **options: str) -> list[set[float]]:
    task = from_file(path, **options)  # type: ignore[arg-type]
    return [set(split.x[:, 0, 0].tolist()) for split in task.splits().values()]


def test_wide_and_long_tables_and_archives(tmp_path: Path) -> None:
    """The first value of a sample is the number of its group."""
    wide = [f"{k % 2},g{k % 8},{k % 8},{k}" for k in range(64)]
    (tmp_path / "wide.csv").write_text("label,who,a,b\n" + "\n".join(wide))
    long = [f"{k},{t},{k % 8},{k},g{k % 8},{k % 2}" for k in range(64) for t in range(3)]
    (tmp_path / "long.csv").write_text("id,time,a,b,who,label\n" + "\n".join(long))
    x = np.stack([np.arange(64) % 8, np.arange(64)], -1)[:, None].astype(np.float32)
    np.savez(tmp_path / "held.npz", x=x, y=np.arange(64) % 2, who=np.array([f"g{k % 8}" for k in range(64)]))
    for name in ("wide.csv", "long.csv", "held.npz"):
        parts = values_of(tmp_path / name, group="who")
        assert sorted(value for part in parts for value in part) == list(range(8)), name
        assert all(parts), name
    task = from_file(tmp_path / "long.csv", group="who")
    assert task.channels == 2  # the column is no input
    plain = from_arrays(x, np.arange(64) % 2, groups=np.arange(64) % 8)
    assert "8 groups, each in one part of the split" in plain.notes


def test_a_test_file_must_have_groups_of_its_own(tmp_path: Path) -> None:
    def write(name: str, first: int) -> Path:
        rows = [f"{k % 2},g{first + k % 4},{k},{first}" for k in range(24)]
        (tmp_path / name).write_text("label,who,a,b\n" + "\n".join(rows))
        return tmp_path / name

    train, apart, shared = write("train.csv", 0), write("apart.csv", 4), write("shared.csv", 3)
    task = from_file(train, test=apart, group="who")
    assert (len(task.train) + len(task.validation), len(task.test)) == (24, 24)
    with pytest.raises(ValueError, match="'g3' in train and in test"):
        from_file(train, test=shared, group="who")


def test_mistakes(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("label,who,a\n" + "\n".join(f"{k % 2},{'' if k == 5 else 'g'},{k}" for k in range(9)))
    with pytest.raises(ValueError, match=r"expected a column 'whom' of groups, got label, who, a"):
        from_file(path, group="whom")
    with pytest.raises(ValueError, match=r"line 7: expected the name of a group"):
        from_file(path, group="who")
    with pytest.raises(ValueError, match="table with column names"):
        from_file(path, group="who", header=False)
    path.write_text("id,time,a,who,label\n1,0,0,g,0\n1,1,0,h,0\n")
    with pytest.raises(ValueError, match=r"line 3: expected the group 'g' of sample 1, got 'h'"):
        from_file(path, group="who")
    np.savez(tmp_path / "t.npz", x=np.zeros((4, 2)), y=np.zeros(4, int), who=np.arange(3))
    with pytest.raises(ValueError, match=r"groups of shape \(4,\)"):
        from_file(tmp_path / "t.npz", group="who")
    with pytest.raises(ValueError, match="expected an array whom of groups"):
        from_file(tmp_path / "t.npz", group="whom")
