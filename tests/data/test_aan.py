"""The reader of document pairs, on a small set of the same form."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from resolvent.data import load_task
from resolvent.models import build_model

ROWS = ["1.0\ta1\ta2\tfirst paper\tsecond paper, longer", "0.0\tb1\tb2\tunrelated\té"]


def fill(folder: Path, rows: list[str]) -> None:
    place = folder / "lra_release" / "lra_release" / "tsv_data"
    place.mkdir(parents=True)
    for name in ("train", "eval", "test"):
        (place / f"new_aan_pairs.{name}.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")


def test_pairs(own_folder: Path) -> None:
    fill(own_folder, ROWS)
    task = load_task("aan", length=12)
    assert task.pair
    assert task.train.x.shape == (2, 2, 12)
    assert task.train.y.tolist() == [1, 0]
    assert task.train.lengths is not None
    assert task.train.lengths.tolist() == [[11, 12], [9, 2]]
    assert bytes((task.train.x[0, 0, :11] - 1).tolist()) == b"first paper"
    assert bytes((task.train.x[1, 1, :2] - 1).tolist()) == "é".encode()
    assert "pairs of sequences" in task.describe()
    packed = load_task("aan", length=12, packed=True)
    assert packed.train.select(torch.tensor([1])).x.equal(task.train.x[1:].long())


def test_a_model_reads_them(own_folder: Path) -> None:
    from resolvent.models.config import ModelConfig, ResidualConfig, RetrievalConfig, TokensConfig
    from resolvent.models.layer_config import LRUConfig

    fill(own_folder, ROWS)
    task = load_task("aan", length=12)
    assert task.vocabulary is not None
    entry, block = TokensConfig(task.vocabulary), ResidualConfig(LRUConfig(4))
    model = build_model(ModelConfig(entry, block, RetrievalConfig(2, "mean", 8), d_model=8, layers=1)).eval()
    assert model(task.test.x, task.test.lengths).shape == (2, 2)


def test_without_the_files(own_folder: Path) -> None:
    with pytest.raises(FileNotFoundError) as raised:
        load_task("aan")
    for part in (
        str(own_folder),
        "new_aan_pairs.train.tsv",
        "lra_release.gz",
        "RESOLVENT_DATA",
        "not be redistributed",
    ):
        assert part in str(raised.value)


@pytest.mark.parametrize("row", ["1.0\ta\tb\ttext", "2\ta\tb\tc\td", "1.0\ta\tb\tc\td\te"])
def test_a_wrong_line_is_named(own_folder: Path, row: str) -> None:
    fill(own_folder, [ROWS[0], row])
    with pytest.raises(ValueError, match=r"train\.tsv, line 2"):
        load_task("aan")
