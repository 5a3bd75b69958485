"""Models on disk: one safetensors file that also carries the settings (no pickle), and a copy of these as JSON.

    folder/model.safetensors    the weights; their header holds the settings, so that the two cannot come apart, and a
                                checksum, so that damage is seen
    folder/config.json          the same settings for people and other programs

Both are written beside their place and moved there, so a killed writer leaves the old file or the new one.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from resolvent.disk import replace
from resolvent.models.build import build_model
from resolvent.models.certified import verify_certified
from resolvent.models.config import ModelConfig
from resolvent.models.model import Model, TwoTower
from resolvent.models.settings import first_difference, from_dict, to_dict

WEIGHTS = "model.safetensors"
SETTINGS = "config.json"


def save_model(model: Model | TwoTower, folder: str | Path) -> Path:
    """Write weights and settings; returns the folder."""
    from safetensors.torch import save_file

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    settings = to_dict(model.config)
    weights = {name: tensor.detach().contiguous() for name, tensor in model.state_dict().items()}
    header = {"config": json.dumps(settings | {"sha256": _sum(weights)}, indent=2)}  # one entry: several have no order
    copy, text = folder / SETTINGS, json.dumps(settings, indent=2) + "\n"
    if copy.is_file() and copy.read_bytes() != text.encode():
        copy.unlink()  # of another model: killed after the next line, it would contradict the weights
    replace(folder / WEIGHTS, lambda path: save_file(weights, path, metadata=header))
    replace(copy, lambda path: path.write_text(text))
    return folder


def load_model(folder: str | Path) -> Model | TwoTower:
    """Build the saved model and fill it; in the dtype that it was saved in."""
    settings, weights = _read(Path(folder))
    model = build_model(from_dict(settings, ModelConfig))
    wide = {t.dtype for t in weights.values() if t.is_floating_point()}
    if wide == {torch.float64}:
        model.double()
    _fill(model, weights)
    return model


def load_into(model: Model | TwoTower, folder: str | Path) -> None:
    """Fill an existing model; a checkpoint of another configuration is refused and nothing is changed."""
    settings, weights = _read(Path(folder))
    found = first_difference(to_dict(model.config), settings)
    if found:
        path, mine, saved = found
        raise ValueError(
            f"load_into: the checkpoint is of another configuration: {path} is {_short(saved)} there and "
            f"{_short(mine)} here; use load_model(folder), or build the model with the saved settings."
        )
    _fill(model, weights)


def load_config(folder: str | Path) -> ModelConfig:
    """The settings of a saved model."""
    config: ModelConfig = from_dict(_read(Path(folder))[0], ModelConfig)
    return config


def _fill(model: nn.Module, weights: dict[str, Tensor]) -> None:
    own = model.state_dict()
    for name, tensor in own.items():
        if name not in weights:
            raise ValueError(f"checkpoint: {name} {tuple(tensor.shape)} is missing; it belongs to another model.")
        if weights[name].shape != tensor.shape:
            raise ValueError(
                f"checkpoint: {name} has shape {tuple(weights[name].shape)}, the model needs {tuple(tensor.shape)}; "
                "load it into a model of its own configuration."
            )
    extra = [name for name in weights if name not in own]
    if extra:
        raise ValueError(f"checkpoint: {extra[0]} is not part of this model; it belongs to another configuration.")
    before = {name: tensor.clone() for name, tensor in own.items()}
    model.load_state_dict(weights)
    if isinstance(model, Model) and model.config.certified is not None:
        _verify(model, before)


def _verify(model: Model, before: dict[str, Tensor]) -> None:
    """A gain that was true when it was saved must be true of what was read; otherwise the model stays as it was."""
    try:
        verify_certified(model)
    except ValueError:
        model.load_state_dict(before)
        raise


def _read(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    from safetensors import SafetensorError, safe_open

    path = folder / WEIGHTS
    if not path.is_file():
        raise FileNotFoundError(f"checkpoint: expected {path}; save one with save_model(model, {str(folder)!r}).")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as wrong:
        raise ValueError(f"checkpoint: {path} cannot be read ({wrong}); it is damaged, or no such file.") from wrong
    if "config" not in metadata:
        raise ValueError(f"checkpoint: {path} carries no settings; it was not written by save_model.")
    settings = _settings(path, metadata["config"])
    if settings.pop("sha256", found := _sum(weights)) != found:
        raise ValueError(f"checkpoint: {path} is damaged: its weights are not those that were saved.")
    _agreed(folder / SETTINGS, settings)
    return settings, weights


def _agreed(copy: Path, settings: dict[str, Any]) -> None:
    """Whoever changed the copy expects another model than the weights are of; without a legible one nothing is lost."""
    try:
        told = json.loads(copy.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return
    found = first_difference(told, settings) if isinstance(told, dict) else None
    if found:
        path, said, saved = found
        raise ValueError(
            f"checkpoint: {copy} contradicts the weights beside it: {path} is {_short(said)} there and was "
            f"{_short(saved)} when they were saved; set it back, or remove that file."
        )


def _settings(path: Path, text: str) -> dict[str, Any]:
    try:
        held = json.loads(text)
    except ValueError as wrong:
        raise ValueError(f"checkpoint: the settings in {path} are damaged ({wrong}).") from wrong
    if not isinstance(held, dict):
        raise ValueError(f"checkpoint: the settings in {path} should be a JSON object, got {type(held).__name__}.")
    return held


def _sum(weights: dict[str, Tensor]) -> str:
    """Over names, types, shapes and values; `training.state` computes the same."""
    found = hashlib.sha256()
    for name in sorted(weights):
        tensor = weights[name].detach().cpu()
        found.update(f"{name}{tensor.dtype}{tuple(tensor.shape)}".encode())
        if tensor.numel():
            found.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def _short(value: Any) -> str:
    return repr(value.get("class", value)) if isinstance(value, dict) else repr(value)
