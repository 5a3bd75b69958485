"""Checkpoints: there and back to the bit, refusal of what does not fit, atomic writes."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from resolvent.models import (
    AdSConfig,
    LRUConfig,
    MambaConfig,
    ModelConfig,
    ResidualConfig,
    RetrievalConfig,
    S5Config,
    TokensConfig,
    build_model,
    checkpoint,
    load_config,
    load_into,
    load_model,
    save_model,
)

CONFIG = ModelConfig(block=ResidualConfig(S5Config(4)), d_model=6, layers=2, norm="batch")
OTHERS = {
    "mamba": replace(CONFIG, block=MambaConfig(4), ads=AdSConfig("tanh", True)),
    "retrieval": replace(CONFIG, input=TokensConfig(5), head=RetrievalConfig()),
}


@pytest.mark.parametrize("config", [CONFIG, *OTHERS.values()], ids=["residual", *OTHERS])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_there_and_back(config: ModelConfig, dtype: torch.dtype, tmp_path: Path) -> None:
    model = build_model(config).to(dtype).eval()
    x = torch.randint(0, 5, (2, 2, 7)) if config.input == TokensConfig(5) else torch.randn(2, 7, 1, dtype=dtype)
    again = load_model(save_model(model, tmp_path / "deep" / "folder")).eval()
    assert again.config == config == load_config(tmp_path / "deep" / "folder")
    assert torch.equal(again(x), model(x))
    assert json.loads((tmp_path / "deep" / "folder" / "config.json").read_text())["d_model"] == 6


def test_another_configuration_is_refused_by_field(tmp_path: Path) -> None:
    save_model(build_model(CONFIG), tmp_path)
    other = build_model(replace(CONFIG, block=ResidualConfig(S5Config(8))))
    before = {name: t.clone() for name, t in other.state_dict().items()}
    with pytest.raises(ValueError, match=r"block\.layer\.d_state is 4 there and 8 here"):
        load_into(other, tmp_path)
    with pytest.raises(ValueError, match=r"block\.layer\.class is 'S5Config' there and 'LRUConfig' here"):
        load_into(build_model(replace(CONFIG, block=ResidualConfig(LRUConfig(4)))), tmp_path)
    assert all(torch.equal(t, before[name]) for name, t in other.state_dict().items())
    load_into(build_model(CONFIG), tmp_path)


def test_a_changed_copy_of_the_settings_is_refused_and_an_illegible_one_is_not_needed(tmp_path: Path) -> None:
    copy = save_model(build_model(CONFIG), tmp_path) / checkpoint.SETTINGS
    good = copy.read_text()
    copy.write_text(good.replace('"d_model": 6', '"d_model": 12'))
    for load in (load_model, load_config):
        with pytest.raises(ValueError, match=r"config\.json contradicts .* d_model is 12 there and was 6"):
            load(tmp_path)
    for text in (good[:20], "[]", "\xff"):
        copy.write_bytes(text.encode("latin-1"))
        assert load_config(tmp_path) == CONFIG
    copy.unlink()
    assert load_config(tmp_path) == CONFIG


def test_a_save_that_is_killed_between_its_files_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_model(build_model(CONFIG), tmp_path)

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint, "write_json", killed)
    other = replace(CONFIG, block=ResidualConfig(S5Config(8)))
    with pytest.raises(KeyboardInterrupt):
        save_model(build_model(other), tmp_path)
    assert load_config(tmp_path) == other


def test_a_wrong_tensor_is_refused_by_name_and_shapes(tmp_path: Path) -> None:
    model = build_model(CONFIG)
    path = save_model(model, tmp_path) / checkpoint.WEIGHTS
    metadata = {"config": (tmp_path / checkpoint.SETTINGS).read_text()}
    good = load_file(path)
    save_file(good | {"head.out.weight": torch.zeros(10, 7)}, path, metadata)
    with pytest.raises(ValueError, match=r"head\.out\.weight has shape \(10, 7\), the model needs \(10, 6\)"):
        load_into(model, tmp_path)
    save_file({name: t for name, t in good.items() if name != "head.out.bias"}, path, metadata)
    with pytest.raises(ValueError, match=r"head\.out\.bias \(10,\) is missing"):
        load_model(tmp_path)
    save_file(good | {"extra": torch.zeros(1)}, path, metadata)
    with pytest.raises(ValueError, match="extra is not part"):
        load_model(tmp_path)
    save_file(good, path)
    with pytest.raises(ValueError, match="carries no settings"):
        load_model(tmp_path)


def test_nothing_there_is_explained(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="save_model"):
        load_model(tmp_path)


def test_a_killed_writer_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build_model(CONFIG)
    save_model(model, tmp_path)
    want = (tmp_path / checkpoint.WEIGHTS).read_bytes()
    with torch.no_grad():
        model.head.out.weight.add_(1)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        save_model(model, tmp_path)
    assert (tmp_path / checkpoint.WEIGHTS).read_bytes() == want
    assert sorted(p.name for p in tmp_path.iterdir()) == [checkpoint.SETTINGS, checkpoint.WEIGHTS]
