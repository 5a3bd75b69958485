"""Exported files, read by programs that are not ours: torch.export's loader and onnxruntime."""

from __future__ import annotations

import importlib.util
import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import resolvent as rv
from helpers import assert_close
from resolvent import cli
from resolvent.data.preparation.preprocess import Preprocess
from resolvent.models import config as c
from resolvent.models import layer_config as lc
from resolvent.usage.error import UsageError

LENGTHS = (1, 12, 57)
BLOCKS: dict[str, Any] = {
    "s4d": c.ResidualConfig(lc.S4DConfig(8)), "s5": c.ResidualConfig(lc.S5Config(8)), "mamba": c.MambaConfig(4),
    "lru": c.ResidualConfig(lc.LRUConfig(5)), "rglru": c.HawkConfig(), "h3": c.H3Config(6, head_dim=2),
    "certified": c.LipschitzConfig(lc.L2RUConfig(4, 0.5)),
}  # fmt: skip
GAPS = Preprocess(
    inputs=2, classes=3, class_names=("a", "b", "c"), missing="ffill", scale="standard", centre=(3.0, -1.0),
    width=(2.0, 0.5), fill=(0.3, -0.2), low=(-3.0, -3.0), high=(3.0, 3.0),
)  # fmt: skip


def small(block: Any) -> Any:
    torch.manual_seed(0)
    config = c.ModelConfig(c.ChannelsConfig(2), block, c.ClassifierConfig(3), d_model=6, layers=1)
    if isinstance(block, c.LipschitzConfig):
        head = c.ClassifierConfig(3, "state", 5)
        config = replace(config, head=head, norm="none", certified=c.CertifiedConfig(2.0, memory=4))
    return rv.build_model(config).eval()


def onnx(path: Path, **inputs: Any) -> list[np.ndarray]:
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is in the export extra")
    session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(None, {name: np.asarray(value) for name, value in inputs.items()})


@pytest.mark.slow
@pytest.mark.parametrize("name", BLOCKS)
def test_one_file_serves_every_batch_and_length(name: str, tmp_path: Path) -> None:
    model = small(BLOCKS[name])
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "No complete tensor")  # torch's own of a tensor that is turned around
        at = {to: rv.export(model, tmp_path / to, to) for to in ("pt2", "onnx")}
    loaded = torch.export.load(at["pt2"].sequence).module()
    for batch, length in zip((3, 1, 2), LENGTHS, strict=True):
        x, lengths = torch.randn(batch, length, 2), torch.randint(1, length + 1, (batch,))
        with torch.no_grad():
            want = model(x, lengths)
            assert_close(loaded(x, lengths), want)
        assert_close(torch.from_numpy(onnx(at["onnx"].sequence, x=x, lengths=lengths)[0]), want)
    card = json.loads(at["onnx"].card.read_text())
    state = {s["name"]: np.zeros((2, *s["shape"][1:]), np.float32) for s in card["step"]["state"]}
    for t in range(5):
        answer, *after = onnx(at["onnx"].step, x=x[:, t], **state)
        state = dict(zip(state, after, strict=True))
        with torch.no_grad():
            assert_close(torch.from_numpy(answer), model(x[:, : t + 1]))


@pytest.mark.slow
def test_pairs_of_documents_are_exported(tmp_path: Path) -> None:
    torch.manual_seed(0)
    block, head = BLOCKS["s4d"], c.RetrievalConfig(2)
    model = rv.build_model(c.ModelConfig(c.TokensConfig(9), block, head, d_model=6, layers=1)).eval()
    at = {to: rv.export(model, tmp_path / to, to) for to in ("pt2", "onnx")}
    assert at["onnx"].step is None
    assert "no step form" in str(at["onnx"].no_step)
    loaded = torch.export.load(at["pt2"].sequence).module()
    for batch, length in zip((3, 1, 2), LENGTHS, strict=True):
        x, lengths = torch.randint(0, 9, (batch, 2, length)), torch.randint(1, length + 1, (batch, 2))
        with torch.no_grad():
            want = model(x, lengths)
            assert_close(loaded(x, lengths), want)
        assert_close(torch.from_numpy(onnx(at["onnx"].sequence, x=x, lengths=lengths)[0]), want)
    card = json.loads(at["onnx"].card.read_text())
    assert card["sequence"]["x"]["shape"] == ["batch", 2, "length"]


@pytest.mark.slow
@pytest.mark.parametrize(("width", "layers"), [(16, 1), (24, 3)])
def test_a_newcomer_imports_a_mamba_attacks_it_and_exports_it(
    tmp_path: Path, width: int, layers: int, capfd: pytest.CaptureFixture[str]
) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is in the parity extra")
    pytest.importorskip("onnxruntime", reason="onnxruntime is in the export extra")
    torch.manual_seed(0)
    settings = transformers.MambaConfig(vocab_size=40, hidden_size=width, state_size=4, num_hidden_layers=layers)
    theirs = transformers.MambaForCausalLM(settings).eval()
    theirs.save_pretrained(tmp_path / "theirs")

    model = rv.models.import_weights("transformers", tmp_path / "theirs")
    tokens = torch.randint(0, 40, (3, 14))
    with torch.no_grad():
        logits = theirs(tokens).logits
        assert_close(model(tokens), logits, tolerance=1e-6)

    e = model.embed(tokens).detach()
    found = rv.attacks.pgd(
        lambda e: model.from_embedding(e)[:, -1], e, logits[:, -1].argmax(-1), rv.Threat("linf", 2.0)
    )
    assert float((model.from_embedding(found.x_adv)[:, -1].argmax(-1) == logits[:, -1].argmax(-1)).double().mean()) < 1

    made = {to: rv.export(model, tmp_path / to, to, step=False).sequence for to in ("onnx", "pt2")}
    loaded = torch.export.load(made["pt2"]).module()
    for length in (14, 1, 6):
        lengths = torch.full((3,), length)
        got = onnx(made["onnx"], x=tokens[:, :length], lengths=lengths)[0]
        assert_close(torch.from_numpy(got), logits[:, :length])
        assert_close(loaded(tokens[:, :length], lengths), logits[:, :length])
    assert "[W:onnxruntime" not in capfd.readouterr().err  # it tells of constants that nothing reads


def test_the_command_exports_preprocessing_and_says_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = small(BLOCKS["lru"])
    rv.Predictor(model, GAPS).save(tmp_path / "saved")
    assert cli.main(["export", str(tmp_path / "saved"), "--to", "pt2", "--out", str(tmp_path / "out")]) == 0
    output = capsys.readouterr().out
    assert "model.pt2" in output
    assert "step.pt2" in output
    card = json.loads((tmp_path / "out" / "export.json").read_text())
    assert card["classes"] == ["a", "b", "c"]
    assert card["missing"] == "ffill"
    x, lengths = torch.randn(4, 9, 2) * 2, torch.tensor([9, 4, 1, 7])
    x[torch.rand(x.shape) < 0.3] = torch.nan
    loaded = torch.export.load(tmp_path / "out" / "model.pt2").module()
    want = rv.load(tmp_path / "saved").predict_proba(x.numpy(), lengths=lengths.numpy())
    assert_close(loaded(x, lengths).double().softmax(-1), torch.from_numpy(want), dtype=torch.float32)


def test_bad_input_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = small(BLOCKS["lru"])
    with pytest.raises(UsageError, match="opset from 18 to 23, got 9"):
        rv.export(model, tmp_path, "onnx", opset=9)
    with pytest.raises(UsageError, match="leave it out for pt2"):
        rv.export(model, tmp_path, "pt2", opset=18)
    with pytest.raises(UsageError, match="pt2 or onnx, got 'tflite'"):
        rv.export(model, tmp_path, "tflite")
    with pytest.raises(TypeError, match="Model or a Predictor"):
        rv.export(torch.nn.Linear(2, 2), tmp_path)
    with pytest.raises(UsageError, match=r"float32 or float64, got bfloat16; export model\.float"):
        rv.export(small(BLOCKS["lru"]).bfloat16(), tmp_path, "pt2")
    assert cli.main(["export", str(tmp_path / "absent")]) == 2
    assert "absent" in capsys.readouterr().err
    ready = str(rv.models.folder_of("digits-l2ru-certified"))
    assert cli.main(["export", ready, "--to", "onnx", "--opset", "9", "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err == "resolvent export: expected an opset from 18 to 23, got 9.\n"
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "onnxruntime" else find(name, *a))
    with pytest.raises(UsageError, match=r"needs onnxruntime; install with pip install 'resolvent\[export\]'"):
        rv.export(model, tmp_path, "onnx")
    assert not list(tmp_path.iterdir())
