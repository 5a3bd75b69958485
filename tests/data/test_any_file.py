"""Whatever a file holds, it is read or refused: tables, .ts files, archives, bytes by chance."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from resolvent.data import from_file

QUICK = settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
CELLS = st.sampled_from(["label", "id", "time", "y", "1", "2.5", "-3", "?", "", "nan", "x", '"', "1e400", "\x00", "_1"])


@QUICK
@given(st.lists(st.lists(CELLS, min_size=1, max_size=4), max_size=6), st.sampled_from([",", ";", "\t"]))
def test_any_table_is_read_or_refused(tmp_path: Path, rows: list[list[str]], divider: str) -> None:
    check_reader(written(tmp_path / "a.csv", "\n".join(divider.join(row) for row in rows)))


LINES = st.sampled_from([
    "@data", "@classLabel true a b", "@missing false", "@dimensions 2", "@seriesLength 2", "@equalLength true", "@",
    "@univariate true", "@targetLabel true", "@timeStamps", "1,2:a", "1,?:b", "1:2:a", ":", "(0,1):a", "x", "#",
    "1,2:0.5",
])  # fmt: skip


@QUICK
@given(st.lists(LINES, max_size=8))
def test_any_ts_file_is_read_or_refused(tmp_path: Path, lines: list[str]) -> None:
    check_reader(written(tmp_path / "a.ts", "\n".join(lines)))


@QUICK
@given(st.binary(max_size=60), st.sampled_from([".npz", ".safetensors", ".csv", ".ts"]))
def test_any_bytes_are_read_or_refused(tmp_path: Path, data: bytes, suffix: str) -> None:
    (tmp_path / f"a{suffix}").write_bytes(data)
    check_reader(tmp_path / f"a{suffix}")


@QUICK
@given(st.integers(0, 10_000), st.integers(0, 255), st.sampled_from([".npz", ".safetensors"]))
def test_a_flipped_byte_is_read_or_refused(tmp_path: Path, place: int, value: int, suffix: str) -> None:
    from safetensors.numpy import save

    arrays = {"x": np.zeros((6, 3), np.float32), "y": np.arange(6) % 2}
    path = tmp_path / f"a{suffix}"
    if suffix == ".npz":
        np.savez(path, **arrays)  # type: ignore[arg-type]
    else:
        path.write_bytes(save(arrays))
    data = bytearray(path.read_bytes())
    data[place % len(data)] = value
    path.write_bytes(data)
    check_reader(path)


def check_reader(path: Path) -> None:
    """A task that checks itself, or one of the two errors that a user can act on."""
    try:
        task = from_file(path, missing="ffill")
    except (ValueError, TypeError):
        return
    assert task.describe().startswith("a: ")
    assert sum(len(split) for split in task.splits().values()) > 0


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path
