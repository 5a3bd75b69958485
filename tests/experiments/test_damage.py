"""Files of a run that were cut, flipped or forged: named, made again where they can be, and nothing good is lost."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from broken_files import cut, flip

from resolvent.experiments import AttackPlan, RunError, run_cell
from resolvent.experiments.how import How
from resolvent.models import load_model

sys.path.insert(0, str(Path(__file__).parent))
from small import small_cell

CELL = replace(small_cell(), attacks=(AttackPlan("fast", eps=0.05, samples=8, batch_size=8, probe=0),))
Damage = Callable[[Path], None]


def quiet(line: str) -> None:
    return


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "whole"
    run_cell(CELL, folder, tell=quiet, how=How(points=True))
    return folder


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    """A copy to be damaged."""
    return Path(shutil.copytree(whole, tmp_path / "run"))


def timeless(folder: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((folder / "record.json").read_text())
    return {key: value for key, value in record.items() if key not in ("times", "digest")}


def unfinished(run: Path, *names: str) -> None:
    """As if killed before these were written."""
    for name in ("record.json", *names):
        path = run / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def garble(path: Path) -> None:
    path.write_bytes(b"\xff\xfe" + path.read_bytes())  # neither JSON nor UTF-8


DAMAGES: dict[str, Damage] = {"flip": flip, "cut": cut, "garble": garble}


SLOW = pytest.mark.slow  # the same once more with other bytes


@pytest.mark.parametrize("damage", ["flip", pytest.param("cut", marks=SLOW), pytest.param("garble", marks=SLOW)])
def test_weights_damaged_in_the_midst_of_training(run: Path, whole: Path, damage: str) -> None:
    """Before the end no list of checksums is there yet: the file carries its own."""
    unfinished(run, "summary.json", "stage", "attack", "checkpoint/sums.json", "checkpoint/last")
    DAMAGES[damage](run / "checkpoint" / "best" / "model.safetensors")
    lines: list[str] = []
    run_cell(CELL, run, tell=lines.append)
    assert any("best/model.safetensors" in line for line in lines)
    assert timeless(run) == timeless(whole)
    assert (run / "damaged" / "checkpoint" / "best" / "model.safetensors").is_file()


@pytest.mark.parametrize("damage", ["cut", pytest.param("garble", marks=SLOW)])
def test_a_damaged_record_is_named_and_made_again(run: Path, whole: Path, damage: str) -> None:
    DAMAGES[damage](run / "record.json")
    lines: list[str] = []
    run_cell(CELL, run, tell=lines.append)
    assert any("record.json is damaged" in line for line in lines)
    assert timeless(run) == timeless(whole)
    assert (run / "damaged" / "record.json").is_file()


@pytest.mark.parametrize("damage", ["cut", pytest.param("garble", marks=SLOW)])
def test_a_damaged_summary_is_made_again(run: Path, whole: Path, damage: str) -> None:
    unfinished(run)
    DAMAGES[damage](run / "summary.json")
    with pytest.warns(UserWarning, match=r"summary\.json is damaged"):
        run_cell(CELL, run, tell=quiet)
    assert timeless(run) == timeless(whole)
    assert (run / "summary.json").read_bytes() == (whole / "summary.json").read_bytes()


def test_a_state_that_is_gone_is_noticed(run: Path, whole: Path) -> None:
    """Without it the finished run would have no history."""
    unfinished(run)
    (run / "checkpoint" / "state.safetensors").unlink()
    lines: list[str] = []
    run_cell(CELL, run, tell=lines.append)
    assert any("state.safetensors is gone" in line for line in lines)
    assert timeless(run) == timeless(whole)


def test_a_corrupt_line_of_metrics_is_named_kept_and_replaced(run: Path, whole: Path) -> None:
    unfinished(run)
    path = run / "metrics.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], '{"epoch": 2, "tr\x00in', *lines[2:]]) + "\n")
    with pytest.warns(UserWarning, match=r"line 2 of .*metrics\.jsonl"):
        run_cell(CELL, run, tell=quiet)
    assert path.read_text() == (whole / "metrics.jsonl").read_text()
    assert "\x00" in (run / "metrics.jsonl.damaged").read_text()
    assert timeless(run) == timeless(whole)


def test_a_line_that_a_kill_cut_short_is_no_damage(run: Path, whole: Path, recwarn: pytest.WarningsRecorder) -> None:
    unfinished(run)
    path = run / "metrics.jsonl"
    path.write_text(path.read_text()[:-20])
    run_cell(CELL, run, tell=quiet)
    assert path.read_text() == (whole / "metrics.jsonl").read_text()
    assert not [w for w in recwarn if "metrics" in str(w.message)]


@pytest.mark.parametrize("damage", ["flip", "cut"])
def test_a_damaged_piece_of_an_attack_is_done_again(run: Path, whole: Path, damage: str) -> None:
    unfinished(run, "stage")
    DAMAGES[damage](next((run / "attack").rglob("01-*.safetensors")))
    run_cell(CELL, run, tell=quiet)
    assert timeless(run) == timeless(whole)


@pytest.mark.parametrize("name", ["cell.json", "config.json"])
def test_damaged_settings_are_written_again_and_training_is_kept(run: Path, whole: Path, name: str) -> None:
    unfinished(run)
    before = (run / "checkpoint" / "state.safetensors").read_bytes()
    garble(run / name)
    with pytest.warns(UserWarning, match=rf"{name} is damaged .* it is written again"):
        run_cell(CELL, run, tell=quiet)
    assert (run / "checkpoint" / "state.safetensors").read_bytes() == before
    assert (run / name).read_bytes() == (whole / name).read_bytes()
    assert timeless(run) == timeless(whole)


@pytest.mark.parametrize("name", ["cell.json", "config.json"])
def test_damaged_settings_do_not_let_another_run_in(run: Path, name: str) -> None:
    other = replace(CELL, budget=replace(CELL.budget, lr=0.02))
    garble(run / name)
    if name == "config.json":  # and as if that cell had been written here
        unfinished(run, "cell.json")
    lines: list[str] = []
    if name == "cell.json":
        with pytest.raises(RunError, match=r"budget\.lr was 0\.01 there and is 0\.02 now"):
            run_cell(other, run, tell=lines.append)
        return
    record = run_cell(other, run, tell=lines.append)  # the state does not fit: it is set aside, and trained again
    assert any("state.safetensors is damaged" in line for line in lines)
    first = (run / "damaged" / "metrics.jsonl").read_text().splitlines()[0]
    assert record["training"]["rows"][0]["lr"] == pytest.approx(2 * json.loads(first)["lr"])


# -- one bit that leaves good JSON -------------------------------------------------------------------------------------


def nudge(path: Path, key: str) -> None:
    """Another digit in the first number after `key`: one flipped bit, and JSON still."""
    text = path.read_text()
    at = next(i for i in range(text.index(f'"{key}"') + len(key) + 2, len(text)) if text[i].isdigit())
    path.write_text(text[:at] + str(int(text[at]) ^ 1) + text[at + 1 :])


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("record.json", "accuracy"),
        ("record.json", "validation_clean"),
        ("summary.json", "test_clean"),
        ("stage/attacks.json", "accuracy"),
        ("attack/fast-linf-0.05-best/config.json", "eps"),
        ("cell.json", "lr"),
        ("config.json", "lr"),
        ("checkpoint/sums.json", "checkpoint/best/model.safetensors"),
        ("checkpoint/best/config.json", "d_model"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*damaged:UserWarning")
def test_one_flipped_bit_is_not_believed(run: Path, whole: Path, name: str, key: str) -> None:
    if name != "record.json":
        unfinished(run, *([] if name.startswith("stage") else ["stage"]))
    nudge(run / name, key)
    assert (run / name).read_bytes() != (whole / name).read_bytes()
    json.loads((run / name).read_text())
    record = run_cell(CELL, run, tell=quiet)
    assert {k: v for k, v in record.items() if k != "times"} | {"digest": 0} == timeless(whole) | {"digest": 0}
    assert timeless(run) == timeless(whole)
    assert name == "record.json" or (run / name).read_bytes() == (whole / name).read_bytes()


@pytest.mark.parametrize("name", ["preprocess.json", "checkpoint/best/preprocess.json"])
def test_what_is_known_of_the_data_is_copied_again(run: Path, whole: Path, name: str) -> None:
    """In a complete run too, which is otherwise only read."""
    nudge(run / name, "length")
    assert (run / name).read_bytes() != (whole / name).read_bytes()
    run_cell(CELL, run, tell=quiet)
    assert (run / name).read_bytes() == (whole / name).read_bytes()


def test_the_ledger_of_a_state_is_not_believed_either(run: Path, whole: Path) -> None:
    """In the header of the file, beside the tensors whose sum it carries."""
    unfinished(run, "stage", "summary.json", "checkpoint/sums.json", "checkpoint/last")
    path = run / "checkpoint" / "state.safetensors"
    raw = path.read_bytes()
    at = raw.index(b"validation_clean") + len(b'validation_clean\\": 0.')
    path.write_bytes(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :])
    lines: list[str] = []
    run_cell(CELL, run, tell=lines.append)
    assert any("state.safetensors is damaged: the notes in its header" in line for line in lines)
    assert timeless(run) == timeless(whole)


def test_a_sound_record_of_another_run_is_not_taken_for_this_one(run: Path, whole: Path, tmp_path: Path) -> None:
    run_cell(replace(CELL, seed=1), tmp_path / "other", tell=quiet)
    shutil.copy(tmp_path / "other" / "record.json", run / "record.json")
    lines: list[str] = []
    run_cell(CELL, run, tell=lines.append)
    assert any("the record of another run (seed differs)" in line for line in lines)
    assert timeless(run) == timeless(whole)


def without_digests(run: Path) -> None:
    """As an older version left it."""
    for path in run.rglob("*.json"):
        held = {key: value for key, value in json.loads(path.read_text()).items() if key != "digest"}
        if path.parent.name == "stage":
            text = json.dumps(held["result"], sort_keys=True)
            held = {"sha256": hashlib.sha256(text.encode()).hexdigest(), **held}
        path.write_text(json.dumps(held, indent=1) + "\n")


def test_files_of_an_older_version_still_count(run: Path, whole: Path) -> None:
    without_digests(run)
    assert {k: v for k, v in run_cell(CELL, run, tell=quiet).items() if k != "times"} == timeless(whole)
    unfinished(run)
    lines: list[str] = []
    run_cell(CELL, run, tell=lines.append)
    assert lines == []  # nothing was done again
    assert timeless(run) == timeless(whole)


def test_a_checkpoint_of_another_configuration_is_refused(run: Path, tmp_path: Path) -> None:
    """The folder's own config.json against the weights' settings."""
    other = replace(CELL, model=replace(CELL.model, d_model=4))
    with pytest.raises(RunError, match=r"model\.d_model was 8 there and is 4 now"):
        run_cell(other, run, tell=quiet)
    unfinished(run, "cell.json")
    with pytest.raises(ValueError, match="another configuration"):
        run_cell(other, run, tell=quiet)


# -- hostile files -----------------------------------------------------------------------------------------------------


class Bomb:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return exec, ("raise SystemExit('it was executed')",)


def pickled(path: Path) -> None:
    torch.save({"model": Bomb()}, path)


def huge_header(path: Path) -> None:
    path.write_bytes((2**62).to_bytes(8, "little") + b"{" + b" " * 64)


def header_beyond_the_file(path: Path) -> None:
    text = json.dumps({"w": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text)


@pytest.mark.parametrize(
    "forge",
    [
        pytest.param(pickled, id="pickled"),
        pytest.param(huge_header, id="huge_header", marks=SLOW),
        pytest.param(header_beyond_the_file, id="header_beyond_the_file", marks=SLOW),
    ],
)
def test_a_forged_checkpoint_is_refused_and_nothing_runs(run: Path, whole: Path, forge: Damage) -> None:
    forge(run / "checkpoint" / "best" / "model.safetensors")
    with pytest.raises(ValueError, match=r"best/model\.safetensors cannot be read"):
        load_model(run / "checkpoint" / "best")
    unfinished(run, "stage", "attack", "checkpoint/sums.json")
    forge(run / "checkpoint" / "state.safetensors")
    lines: list[str] = []
    run_cell(CELL, run, tell=lines.append)
    assert any("state.safetensors cannot be read" in line for line in lines)
    assert timeless(run) == timeless(whole)


@pytest.mark.parametrize("name", ["../../secret", "/etc/passwd", "checkpoint/../../x/model.safetensors"])
def test_a_list_of_checksums_that_points_elsewhere_is_refused(run: Path, name: str) -> None:
    (run / "checkpoint" / "sums.json").write_text(json.dumps({name: "0" * 64}))
    with pytest.raises(RunError, match="which is no checkpoint of a run"):
        run_cell(CELL, run, tell=quiet)


@pytest.mark.parametrize("tag", ["../../elsewhere", "/etc", "a/b"])
def test_a_cell_that_points_elsewhere_is_refused(run: Path, tag: str) -> None:
    from resolvent.experiments import Folder

    held = json.loads((run / "cell.json").read_text())
    del held["digest"]
    (run / "cell.json").write_text(json.dumps(held | {"tags": [tag]}))
    with pytest.raises(ValueError, match="goes into a path"):
        Folder(run).cell()
