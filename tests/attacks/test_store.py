"""Pieces on disk: whole or absent, bound to their configuration, never pickled."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from resolvent.attacks.autoattack.store import Store, digest, jsonable
from resolvent.disk import fingerprint, first_difference, replace

CONFIG = {"attacks": [{"name": "pgd", "steps": 10}], "threat": {"eps": 0.1}, "seed": 0}


def test_what_is_saved_comes_back(tmp_path: Path) -> None:
    store = Store(tmp_path / "a" / "b", CONFIG)
    tensors = {"x": torch.randn(3, 2), "ok": torch.tensor([True, False, True]), "n": torch.arange(3)}
    store.save(1, "pgd", 7, tensors, ["a note"])
    held = Store(tmp_path / "a" / "b", CONFIG).load(1, "pgd", 7)
    assert held is not None
    assert held[1] == ["a note"]
    assert all(torch.equal(held[0][name], tensors[name]) for name in tensors)
    assert store.load(1, "pgd", 8) is None
    assert store.load(2, "pgd", 7) is None


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"attacks": [{"name": "pgd", "steps": 11}]}, "attacks[0].steps"),
        ({"threat": {"eps": 0.2}}, "threat.eps"),
        ({"seed": 1}, "seed"),
        ({"more": 1}, "more"),
    ],
)
def test_another_configuration_is_refused_by_field(tmp_path: Path, changed: dict[str, object], field: str) -> None:
    Store(tmp_path, CONFIG)
    with pytest.raises(ValueError, match="another configuration") as caught:
        Store(tmp_path, {**CONFIG, **changed})
    assert f": {field} was " in str(caught.value)


def test_the_order_of_fields_does_not_matter(tmp_path: Path) -> None:
    Store(tmp_path, CONFIG)
    Store(tmp_path, dict(reversed(CONFIG.items())))


def test_a_truncated_piece_is_done_again(tmp_path: Path) -> None:
    store = Store(tmp_path, CONFIG)
    store.save(1, "pgd", 0, {"x": torch.randn(100)}, [])
    (path,) = tmp_path.glob("*.safetensors")
    path.write_bytes(path.read_bytes()[:-17])
    assert store.load(1, "pgd", 0) is None


def test_a_piece_in_the_place_of_another_is_done_again(tmp_path: Path) -> None:
    store, other = Store(tmp_path / "a", CONFIG), Store(tmp_path / "b", CONFIG | {"seed": 1})
    for batch in (0, 1):
        store.save(1, "pgd", batch, {"x": torch.full((3,), float(batch))}, [])
    other.save(1, "pgd", 2, {"x": torch.zeros(3)}, [])
    first, second = sorted((tmp_path / "a").glob("*.safetensors"))
    first.write_bytes(second.read_bytes())
    assert store.load(1, "pgd", 0) is None
    assert store.load(1, "pgd", 1) is not None
    (tmp_path / "a" / "01-pgd-0002.safetensors").write_bytes((tmp_path / "b" / "01-pgd-0002.safetensors").read_bytes())
    assert store.load(1, "pgd", 2) is None


def test_notes_that_were_changed_are_not_believed(tmp_path: Path) -> None:
    store = Store(tmp_path, CONFIG)
    store.save(1, "pgd", 0, {"x": torch.zeros(3)}, ["3 of 8"])
    (path,) = tmp_path.glob("*.safetensors")
    path.write_bytes(path.read_bytes().replace(b"3 of 8", b"2 of 8"))
    assert store.load(1, "pgd", 0) is None


def test_pieces_of_an_older_version_count_unless_their_configuration_is_lost(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    store, held = Store(tmp_path, CONFIG), {"x": torch.arange(3.0)}
    store.save(1, "pgd", 1, held, [])
    known = fingerprint({"notes": ["a"], "x": digest(held["x"])})
    old = tmp_path / "01-pgd-0000.safetensors"
    save_file(held, old, metadata={"piece": json.dumps({"notes": ["a"], "sum": known})})
    found = store.load(1, "pgd", 0)
    assert found is not None
    assert found[1] == ["a"]
    (tmp_path / "config.json").write_text('{"hash": ')
    with pytest.warns(UserWarning, match="it is written again"):
        again = Store(tmp_path, CONFIG)
    assert again.load(1, "pgd", 0) is None
    assert again.load(1, "pgd", 1) is not None
    assert (tmp_path / "config.json.damaged").read_text() == '{"hash": '


def test_leftovers_of_a_killed_writer_go(tmp_path: Path) -> None:
    Store(tmp_path, CONFIG)
    (tmp_path / ".01-pgd-0000.safetensors.77.part").write_bytes(b"half")
    Store(tmp_path, CONFIG)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["config.json"]


def test_a_failed_write_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "held.json"
    path.write_text("old")

    def fails(part: Path) -> None:
        part.write_text("new and half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        replace(path, fails)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_foreign_places_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ValueError, match="is a file"):
        Store(tmp_path / "file", CONFIG)
    (tmp_path / "config.json").write_text(json.dumps({"name": "of something else"}))
    with pytest.raises(ValueError, match="no configuration"):
        Store(tmp_path, CONFIG)


def test_digests_tell_content_shape_and_type_apart() -> None:
    x = torch.arange(6.0)
    lines = [digest(v) for v in (x, x.view(2, 3), x.double(), x + 1, x[:0], x.bool())]
    assert len(set(lines)) == len(lines)
    assert digest(x) == digest(x.clone())
    assert digest(x.view(2, 3).T) == digest(x.view(2, 3).T.contiguous())


@dataclass(frozen=True)
class Sample:
    loss: object
    eps: object = 0.1


def test_settings_become_plain_values() -> None:
    values = jsonable(Sample(torch.nn.functional.relu, torch.ones(3)))
    assert values["class"] == "Sample"
    assert values["loss"] == "relu"
    assert values["eps"].startswith("tensor (3,) ")
    json.dumps(values)
    assert fingerprint(jsonable(Sample(1))) != fingerprint(jsonable(Sample(2)))


def test_first_difference_of_lists_of_other_length() -> None:
    assert first_difference({"a": [1]}, {"a": [1, 2]}) == ("a", [1], [1, 2])
    assert first_difference({"a": [1]}, {"a": [1]}) is None
