"""`rv.load`: arrays, lists, files, streams; what does not fit is refused by name; older folders."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from weather import write_weather

import resolvent as rv
from resolvent import cli
from resolvent.data import from_arrays
from resolvent.data.preparation.like import read_like
from resolvent.models import ChannelsConfig, ClassifierConfig, RegressionConfig, TokensConfig, build_model, save_model
from resolvent.predictor.samples import samples_of
from resolvent.usage.error import UsageError

NAN = float("nan")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("weather")
    train, test = write_weather(place / "train.csv", 60, 0), write_weather(place / "test.csv", 12, 1)
    call = ["run", "train", "--data", str(train), "--test", str(test), "--label", "weather", "--missing", "ffill"]
    call += ["--scale", "standard", "--layer", "lru", "--epochs", "2", "--width", "8", "--layers", "1"]
    assert cli.main([*call, "--out", str(place / "runs"), "--no-report"]) == 0
    (place / "runs" / "train" / "train-lru-standard" / "seed-0").rename(place / "run")
    return place


def said(capsys: pytest.CaptureFixture[str], *call: str) -> str:
    capsys.readouterr()
    assert cli.main(list(call)) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1, error
    return error


def test_arrays_lists_and_files_give_the_same(place: Path) -> None:
    ready = rv.load(place / "run")
    assert ready.classes == ("calm", "gusty", "storm")
    assert ready.channels == ("wind", "pressure", "kelvin")
    assert not ready.model.training
    assert "channels wind, pressure, kelvin -> 3 classes (calm, gusty, storm)" in repr(ready)
    raw = read_like(place / "test.csv", ready.preprocess)
    assert raw.lengths is not None
    want = ready.predict_proba(place / "test.csv")
    assert np.allclose(want.sum(1), 1)
    sequences = [row[:n].numpy() for row, n in zip(raw.x, raw.lengths.tolist(), strict=True)]
    lists = [[step.tolist() for step in sequence] for sequence in sequences]
    for data, lengths in ((sequences, None), (lists, None), (raw.x, raw.lengths), (raw.x.numpy(), raw.lengths.numpy())):
        assert np.allclose(ready.predict_proba(data, lengths), want, atol=1e-6)
    for i in (0, 7):  # alone, unpadded: as good as in the batch
        assert np.allclose(ready.predict_proba(sequences[i][None])[0], want[i], atol=1e-5)
    assert ready.predict([]).tolist() == []
    assert ready.score(sequences, ready.predict(sequences)) == 1.0


def test_the_oracle_of_a_prediction(place: Path) -> None:
    """Scaled and filled by hand, one value after another."""
    ready, how = rv.load(place / "run"), rv.load(place / "run").preprocess
    row = np.array([[NAN, 101_300.0, 288.0], [8.0, NAN, 289.0], [NAN, NAN, 287.0]])
    by_hand, last = np.zeros((1, 3, 3)), [0.0, 0.0, 0.0]
    for t in range(3):
        for c in range(3):
            last[c] = last[c] if np.isnan(row[t, c]) else (row[t, c] - how.centre[c]) / how.width[c]
            by_hand[0, t, c] = last[c]
    with torch.no_grad():
        logits = ready.model(torch.tensor(by_hand).float()).double()
    assert np.allclose(ready.predict_proba([row]), logits.softmax(-1).numpy(), atol=1e-4)


def test_a_stream_answers_as_the_sequence_so_far(place: Path) -> None:
    ready = rv.load(place / "run")
    rows = np.array([[NAN, 101_300.0, 288.0], [8.0, NAN, 289.0], [7.0, 101_310.0, NAN]])
    state = None
    for t in range(3):
        found, state = ready.step(rows[t], state)
        assert np.allclose(found, ready.predict_proba([rows[: t + 1]]), atol=1e-5)
    with pytest.raises(ValueError, match="state that step returned"):
        ready.step(rows[0], {"odd": 1})
    with pytest.raises(ValueError, match=r"a step of shape \(b, 3\) \(channels wind"):
        ready.step([1.0, 2.0])


def test_a_file_without_answers_in_another_order_and_longer(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = place / "new.csv"
    rows = [f"a,{t},{288 + t % 3},{101_300 + t},{7 + t % 2}" for t in range(40)]
    path.write_text("id,time,kelvin,pressure,wind\n" + "\n".join(rows) + "\n")
    assert cli.main(["predict", str(place / "run"), str(path)]) == 0
    out = capsys.readouterr().out
    assert "1 samples: calm" in out
    assert "accuracy" not in out
    values = np.array([[7 + t % 2, 101_300 + t, 288 + t % 3] for t in range(40)], dtype=float)
    assert rv.load(place / "run").predict(path).tolist() == rv.load(place / "run").predict([values]).tolist()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("id,time,wind,pressure,weather\na,0,1,2,calm\n", "of which kelvin is missing"),
        ("id,time,wind,pressure,kelvin,weather\na,0,1,2,3,snow\n", "classes of training, calm, gusty, storm; got snow"),
        ("id,time,wind,pressure,kelvin\n", "at least one sample"),
        ("", "no rows"),
        ("id,time,wind,pressure,kelvin\na,0,1,x,3\n", "expected a number"),
        ("wind\n", "of which pressure, kelvin are missing"),
    ],
)
def test_files_that_do_not_fit(place: Path, capsys: pytest.CaptureFixture[str], text: str, message: str) -> None:
    path = place / "odd.csv"
    path.write_text(text)
    assert message in said(capsys, "predict", str(place / "run"), str(path))
    assert message in said(capsys, "attack", str(place / "run"), "--data", str(path))


def test_an_attack_needs_answers_and_gaps_a_rule(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = place / "bare.csv"
    path.write_text("id,time,wind,pressure,kelvin\na,0,1,,3\n")
    assert "expected labels (a column 'weather')" in said(capsys, "attack", str(place / "run"), "--data", str(path))
    error = said(capsys, "predict", str(place / "run"), str(path), "--missing", "refuse")
    assert "sample 0, step 0, channel pressure" in error
    assert "fixes its channels" in said(capsys, "predict", str(place / "run"), str(path), "--missing", "flag")
    assert "is for a file" in said(capsys, "attack", str(place / "run"), "--label", "weather")


def test_data_that_changed_are_seen(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = shutil.copytree(place / "run", tmp_path / "run")
    changed = write_weather(tmp_path / "train.csv", 60, 5)
    cell = (run / "cell.json").read_text()
    held = json.loads(cell) | {"task": json.loads(cell)["task"] | {"file": str(changed)}}
    held.pop("digest", None)
    (run / "cell.json").write_text(json.dumps(held))
    assert "have changed since it was trained" in said(capsys, "attack", str(run), "--preset", "fast")


def test_older_runs(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without preprocess.json: what gaps became can no longer be told; without gaps the data still tell everything."""
    run = shutil.copytree(place / "run", tmp_path / "run")
    for path in run.rglob("preprocess.json"):
        path.unlink()
    for call in (["predict", str(run), str(place / "test.csv")], ["attack", str(run)]):
        assert "filled missing values ('ffill') before it scaled" in said(capsys, *call)
    x, y = np.random.default_rng(0).normal(size=(40, 5, 2)) * 3 + 9, np.arange(40) % 2
    np.savez(tmp_path / "mine.npz", x=x, y=y)
    call = ["run", "train", "--data", str(tmp_path / "mine.npz"), "--scale", "standard", "--layer", "lru", "--epochs"]
    call += ["1", "--width", "4", "--layers", "1", "--out", str(tmp_path / "runs"), "--no-report"]
    assert cli.main(call) == 0
    run = next((tmp_path / "runs" / "train").iterdir()) / "seed-0"
    want = rv.load(run).predict_proba(x)
    for path in run.rglob("preprocess.json"):
        path.unlink()
    assert np.array_equal(rv.load(run).predict_proba(x), want)
    assert np.array_equal(rv.load(run / "checkpoint" / "best").predict_proba(x), want)
    (tmp_path / "mine.npz").unlink()
    assert "cannot be read to make it again" in said(capsys, "predict", str(run), str(place / "test.csv"))


def test_a_damaged_or_foreign_preprocessing_is_refused(place: Path, tmp_path: Path) -> None:
    alone = shutil.copytree(place / "run" / "checkpoint" / "best", tmp_path / "alone")
    path = alone / "preprocess.json"
    text = path.read_text()
    path.write_text(text.replace('"standard"', '"none"'))
    with pytest.raises(ValueError, match="damaged"):
        rv.load(alone)
    other = from_arrays(np.zeros((9, 3, 2)) + np.arange(9)[:, None, None], np.arange(9) % 3).preprocess
    config = rv.ModelConfig(ChannelsConfig(1), head=ClassifierConfig(3), d_model=4, layers=1)
    save_model(build_model(config), tmp_path / "foreign", other)
    with pytest.raises(ValueError, match=r"reads 1 channels and its preprocess\.json makes 2"):
        rv.load(tmp_path / "foreign")
    with pytest.raises(FileNotFoundError, match="no folder"):
        rv.load(tmp_path / "nowhere")


def saved(folder: Path, **parts: Any) -> rv.Predictor:
    save_model(build_model(rv.ModelConfig(d_model=4, layers=1, **parts)), folder)
    return rv.load(folder)


def test_models_that_were_saved_without(tmp_path: Path) -> None:
    """Their data come as the model reads them."""
    plain = saved(tmp_path / "a", input=ChannelsConfig(2), head=ClassifierConfig(3))
    x = torch.randn(5, 7, 2)
    with torch.no_grad():
        want = plain.model(x)
    assert plain.predict(x).tolist() == want.argmax(-1).tolist()
    assert plain.classes == (0, 1, 2)
    tokens = saved(tmp_path / "b", input=TokensConfig(9), head=ClassifierConfig(2))
    assert tokens.predict([[1, 2, 3], [8]]).shape == (2,)
    with pytest.raises(ValueError, match="tokens from 0 to 8, got 1 to 9"):
        tokens.predict([[1, 9]])
    share, _ = tokens.step([3])
    assert np.allclose(share, tokens.predict_proba([[3]]), atol=1e-6)
    real = saved(tmp_path / "c", input=ChannelsConfig(1), head=RegressionConfig(1, "mean"))
    assert real.predict(x[..., 0]).shape == (5,)
    assert real.score(x[..., 0], real.predict(x[..., 0])) == pytest.approx(0, abs=1e-10)
    with pytest.raises(ValueError, match="no probabilities"):
        real.predict_proba(x[..., 0])


def test_one_logit_and_other_precision(tmp_path: Path) -> None:
    one = saved(tmp_path / "a", input=ChannelsConfig(1), head=ClassifierConfig(1))
    x = torch.randn(6, 5, 1)
    with torch.no_grad():
        logit = one.model(x)[:, 0]
    assert one.predict(x).tolist() == (logit > 0).long().tolist()
    assert np.allclose(one.predict_proba(x)[:, 1], torch.sigmoid(logit.double()).numpy())
    wide = build_model(rv.ModelConfig(ChannelsConfig(1), head=ClassifierConfig(2), d_model=4, layers=1)).double()
    save_model(wide, tmp_path / "b")
    with torch.no_grad():
        want = wide.eval()(x.double()).softmax(-1).numpy()
    assert np.allclose(rv.load(tmp_path / "b").predict_proba(x), want, atol=1e-12)


def test_text_by_the_tokeniser_that_came_with_the_task(tmp_path: Path) -> None:
    from resolvent.data.preparation.keep import preprocess_of
    from resolvent.data.readers.text import encode_bytes
    from resolvent.data.readers.tokeniser import Tokeniser

    tokens, lengths = encode_bytes([b"good", b"bad day"], 8)
    task = rv.data.Task(
        "reviews", *(rv.data.Split(torch.tensor(tokens).long(), torch.tensor([1, 0]), torch.tensor(lengths)),) * 3,
        length=8, vocabulary=257, classes=2, class_names=("poor", "fine"), tokeniser=Tokeniser("bytes"),
    )  # fmt: skip
    model = build_model(rv.ModelConfig(TokensConfig(257), head=ClassifierConfig(2), d_model=4, layers=1))
    save_model(model, tmp_path, preprocess_of(task))
    ready = rv.load(tmp_path)
    want = ready.predict_proba(tokens, lengths)
    assert np.allclose(ready.predict_proba(["good", "bad day"]), want, atol=1e-6)
    with pytest.raises(TypeError, match="saved without a tokeniser"):
        saved(tmp_path / "b", input=TokensConfig(9), head=ClassifierConfig(2)).predict(["a"])


def test_preprocess_takes_what_predict_takes(place: Path) -> None:
    """`model(preprocess(x), lengths)` is what `predict_proba` computes, from arrays and lists alike."""
    ready = rv.load(place / "run")
    x = np.random.default_rng(0).normal(size=(3, 6, 3)) * [2.0, 40.0, 0.5] + [7.0, 101_300.0, 288.0]
    x[0, 0, 1] = NAN
    lengths = [6, 2, 4]
    want = ready.predict_proba(x, lengths)
    with_none = [[[None if np.isnan(v) else float(v) for v in step] for step in row] for row in x]
    for data in (x, x.tolist(), with_none, torch.tensor(x).float()):
        read = ready.preprocess(data, lengths)
        assert read.dtype == torch.float32
        with torch.no_grad():
            found = ready.model(read, torch.tensor(lengths)).double().softmax(-1)
        assert np.allclose(found, want, atol=1e-5)
    assert np.allclose(ready.predict_proba(with_none, lengths), want)
    with pytest.raises(ValueError, match="3 lengths from 1 to 6"):
        ready.preprocess(x, [6, 2])
    with pytest.raises(ValueError, match="sequences of one length"):
        ready.preprocess([x[0], x[1][:2]])


def test_a_step_may_come_from_json(place: Path) -> None:
    ready = rv.load(place / "run")
    assert np.array_equal(ready.step([7.0, None, 288.0])[0], ready.step([7.0, NAN, 288.0])[0])
    with pytest.raises(TypeError, match="expected numbers in a step"):
        ready.step(["a", "b", "c"])


def test_a_folder_that_holds_runs_names_them(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    above = place / "several"
    for seed in (0, 1):
        shutil.copytree(place / "run", above / f"seed-{seed}", dirs_exist_ok=True)
    with pytest.raises(UsageError, match=r"holds runs.*seed-0' or another of its 2"):
        rv.load(above)
    file = place / "run" / "checkpoint" / "best" / "model.safetensors"
    with pytest.raises(FileNotFoundError, match="give its folder"):
        rv.load(file)
    assert "seed-0" in said(capsys, "predict", str(above), str(place / "test.csv"))


def test_a_run_is_timed_on_a_new_file(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("resolvent.commands.bench.trained.BUDGET_S", 0.01)
    call = ["bench", str(place / "run"), "--data", str(place / "test.csv"), "--json", str(place / "bench.json")]
    assert cli.main(call) == 0
    output = capsys.readouterr().out
    assert "12 samples of up to 18 steps" in output
    assert "samples a second" in output
    found = json.loads((place / "bench.json").read_text())
    assert all(found[name] > 0 for name in ("read_ms", "answer_ms", "one_ms", "step_ms", "gradient_ms"))
    assert cli.main(["bench", str(place / "run"), "--json", str(place / "own.json")]) == 0
    assert json.loads((place / "own.json").read_text())["read_ms"] is None
    assert "of which kelvin is missing" in said(capsys, "bench", str(place / "run"), "--data", str(_lacking(place)))
    assert "needs the folder of a run" in said(capsys, "bench", "--data", str(place / "test.csv"))
    assert "leave it out" in said(capsys, "bench", str(place / "run"), "--layer", "s5")


def _lacking(place: Path) -> Path:
    path = place / "lacking.csv"
    path.write_text("id,time,wind,pressure,weather\na,0,1,2,calm\n")
    return path


def test_an_analysis_attacks_the_samples_of_a_new_file(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On the run's own raw test file it is what it is on the run's own test split; gaps and names as in training."""
    call = ["run", "train", "--data", str(place / "train.csv"), "--test", str(place / "test.csv"), "--label", "weather"]
    call += ["--missing", "ffill", "--scale", "standard", "--eps", "0.1", "--layer", "s4d", "--epochs", "1"]
    call += ["--width", "4", "--layers", "1", "--out", str(place / "attacked"), "--name", "a", "--no-report"]
    assert cli.main(call) == 0
    folder, found = str(place / "attacked" / "train" / "a" / "seed-0"), []
    for more in (["--attribution"], ["--data", str(place / "test.csv")]):
        where = ["--out", str(place / "analysis"), "--json", str(place / "a.json")]
        assert cli.main(["analyse", folder, *more, *where]) == 0
        found.append(json.loads((place / "a.json").read_text())["attribution"])
    assert found[0] == found[1]
    assert "of which kelvin is missing" in said(
        capsys, "analyse", folder, "--data", str(_lacking(place)), "--out", str(place / "analysis")
    )
    assert "needs the folder of a run" in said(capsys, "analyse", "--init", "legs", "--data", str(place / "test.csv"))


def test_a_task_by_name_is_scaled_as_the_users_own_data_were(tmp_path: Path) -> None:
    """For commands that attack and certify, as for predictions."""
    own = np.random.default_rng(0).normal(50.0, 9.0, size=(40, 64, 1))
    learned = from_arrays(own, np.arange(40) % 10, scale="standard", bounds="infer").preprocess
    config = rv.ModelConfig(ChannelsConfig(1), head=ClassifierConfig(10), d_model=4, layers=1)
    folder = save_model(build_model(config), tmp_path / "own", learned)
    test = rv.load_task("digits").test.unpack()
    found = samples_of(folder, "digits")
    assert torch.equal(found.x, rv.load(folder).preprocess(test.x))
    assert found.bounds is not None
    assert found.bounds[0] <= float(found.x.min()) <= float(found.x.max()) <= found.bounds[1]
    plain = save_model(build_model(config), tmp_path / "plain")
    assert torch.equal(samples_of(plain, "digits").x, test.x)


def test_a_file_without_samples(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = rv.ModelConfig(ChannelsConfig(2), head=ClassifierConfig(3), d_model=4, layers=1)
    folder = save_model(build_model(config), tmp_path / "model")
    np.savez(tmp_path / "none.npz", x=np.zeros((0, 5, 2)), y=np.zeros(0, dtype=int))
    assert "expected at least one sample" in said(capsys, "predict", str(folder), str(tmp_path / "none.npz"))
    assert len(rv.load(folder).predict(np.zeros((0, 5, 2)))) == 0


def test_weights_of_another_epoch_are_refused(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They carry a sound digest, and would answer under the name of those that the run kept."""
    run = tmp_path / "run"
    shutil.copytree(place / "run", run)
    best, other = (run / "checkpoint" / name / "model.safetensors" for name in ("best", "last"))
    if best.read_bytes() == other.read_bytes():
        model = rv.load(run).model
        with torch.no_grad():
            next(model.parameters()).add_(1.0)
        save_model(model, tmp_path / "changed")
        other = tmp_path / "changed" / "model.safetensors"
    shutil.copy(other, best)
    with pytest.raises(UsageError, match="is not what its run kept there"):
        rv.load(run)
    for call in (["analyse", str(run), "--out", str(tmp_path / "a")], ["predict", str(run), str(place / "test.csv")]):
        assert "is not what its run kept there" in said(capsys, *call)
    shutil.copytree(run / "checkpoint" / "best", tmp_path / "alone")
    rv.load(tmp_path / "alone")


@pytest.mark.parametrize(("words", "places"), [(("0", "2"), [0, 2]), (("2", "2"), [2, 2]), (("a", "b"), [0, 1])])
def test_classes_called_by_numbers_keep_them_for_a_model_that_names_none(
    tmp_path: Path, words: tuple[str, str], places: list[int]
) -> None:
    """A file may lack a class in between, or hold one alone."""
    file = tmp_path / "a.csv"
    file.write_text("label,s0,s1\n" + "".join(f"{words[i % 2]},{i},1\n" for i in range(6)))
    found = samples_of(Path("somewhere/model.py:Model"), str(file))
    assert found.y.tolist() == places * 3
    assert found.x[:, 0, 0].tolist() == list(range(6))
