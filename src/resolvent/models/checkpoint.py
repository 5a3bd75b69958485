"""Models on disk: one safetensors file that also carries the settings (no pickle), and a copy of these as JSON.

        folder/model.safetensors    the weights; the header holds the settings, so that the two stay together, and a
                                    digest over both, so that damage is detected
        folder/config.json          the same settings for people and other programs
        folder/preprocess.json      how raw values become the model's input, if given

Files are written under a temporary name and moved into place: a killed writer leaves the old file or the new one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor, nn

from resolvent.disk import DIGEST, Damaged, first_difference, read_json, read_sealed, seal, write_json
from resolvent.disk.tensors import read_tensors, write_tensors
from resolvent.models.build import build_model
from resolvent.models.certified import require_precision, verify_certified
from resolvent.models.config import ModelConfig
from resolvent.models.model import Model, TwoTower
from resolvent.models.settings import Settings, from_dict, to_dict

WEIGHTS = "model.safetensors"
SETTINGS = "config.json"
PREPROCESS = "preprocess.json"


def save_model(model: Model | TwoTower, folder: str | Path, preprocess: Settings | None = None) -> Path:
    """Write weights and settings; returns the folder. With `task.preprocess`, `rv.load` predicts from raw data.

    Examples:
        >>> import tempfile
        >>> folder = rv.save_model(rv.build_model(rv.ModelConfig(d_model=8, layers=1)), tempfile.mkdtemp() + "/saved")
        >>> rv.load_model(folder)(torch.rand(2, 20, 1)).shape
        torch.Size([2, 10])
    """
    if model.config.certified is not None:
        require_precision("save_model", model)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    settings = to_dict(model.config)
    weights = {name: tensor.detach().contiguous() for name, tensor in model.state_dict().items()}
    copy = folder / SETTINGS
    if copy.is_file() and not _same(copy, settings):
        copy.unlink()  # of another model: after a kill at the next line it would contradict the weights
    if preprocess is not None:
        write_json(folder / PREPROCESS, to_dict(preprocess), finite=True)
    write_tensors(folder / WEIGHTS, weights, "config", settings, indent=2)
    write_json(copy, settings, indent=2)
    return folder


def restore_settings(folder: str | Path) -> None:
    """Rewrite the copy of the settings if it differs from those in the weights file."""
    copy = Path(folder) / SETTINGS
    try:
        read_json(copy)
    except (OSError, Damaged):
        write_json(copy, _sealed_settings(Path(folder))[0], indent=2)


def sound(folder: str | Path) -> bool:
    """Whether the weights are those that were saved, by their own digest."""
    try:
        _sealed_settings(Path(folder))
    except (OSError, ValueError):
        return False
    return True


def _same(copy: Path, settings: dict[str, Any]) -> bool:
    try:
        return read_sealed(copy) == seal(settings)
    except (OSError, Damaged):
        return False


def load_model(folder: str | Path) -> Model | TwoTower:
    """Build the saved model and fill it, in the dtype in which it was saved.

    Examples:
        >>> rv.load_model(rv.models.folder_of("digits-l2ru-certified"))(torch.rand(1, 64, 1)).shape
        torch.Size([1, 10])
    """
    settings, weights = _read(Path(folder))
    model = build_model(from_dict(settings, ModelConfig))
    for name, held in (*model.named_parameters(), *model.named_buffers()):
        if name in weights and weights[name].is_floating_point():
            held.data = held.data.to(weights[name].dtype)  # one by one: some stay in float32 in a bfloat16 model
    _fill(model, weights)
    return model


def load_into(model: Model | TwoTower, folder: str | Path) -> None:
    """Fill an existing model; a checkpoint with other settings is refused and nothing is changed.

    Examples:
        >>> folder = rv.models.folder_of("digits-l2ru-certified")
        >>> model = rv.build_model(rv.models.load_config(folder))
        >>> rv.models.load_into(model, folder)
    """
    settings, weights = _read(Path(folder))
    found = first_difference(to_dict(model.config), to_dict(from_dict(settings, ModelConfig)))
    if found:
        path, mine, saved = found
        raise ValueError(
            f"load_into: the checkpoint is of another configuration: {path} is {_short(saved)} there and "
            f"{_short(mine)} here; use load_model(folder), or build the model with the saved settings."
        )
    _fill(model, weights)


def load_config(folder: str | Path) -> ModelConfig:
    """The settings of a saved model.

    Examples:
        >>> rv.models.load_config(rv.models.folder_of("digits-l2ru-certified")).layers
        2
    """
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
    """A certified gain must hold for the weights just read, too; otherwise the model is left unchanged."""
    try:
        verify_certified(model)
    except ValueError:
        model.load_state_dict(before)
        raise


def _read(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    settings, weights = _sealed_settings(folder)
    _check_agreement(folder / SETTINGS, settings)
    _require_sizes(folder / WEIGHTS, settings, weights)
    return settings, weights


def _sealed_settings(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    path = folder / WEIGHTS
    if not path.is_file():
        raise FileNotFoundError(f"checkpoint: expected {path}; save one with save_model(model, {str(folder)!r}).")
    try:
        weights, settings = read_tensors(path, "config")
    except Damaged as wrong:
        raise ValueError(f"checkpoint: {wrong}; take a copy of it, or train again.") from wrong
    if settings is None:
        raise ValueError(f"checkpoint: {path} carries no settings; it was not written by save_model.")
    return settings, weights


def _require_sizes(path: Path, settings: dict[str, Any], weights: dict[str, Tensor]) -> None:
    """Refuse settings that describe a far larger model than the weights, before it is built."""
    dims = {n for tensor in weights.values() for n in tensor.shape}
    layers, width = settings.get("layers", 1), settings.get("d_model")
    if isinstance(layers, int) and layers > max(1, len(weights)):
        message = f"layers is {layers:,} for {len(weights):,} tensors"
    elif isinstance(width, int) and dims and width > max(dims):
        message = f"d_model is {width:,}, and no tensor is longer than {max(dims):,}"
    else:
        return
    raise ValueError(f"checkpoint: the settings in {path} are not those of its weights: {message}; it is forged.")


def _check_agreement(copy: Path, settings: dict[str, Any]) -> None:
    """Refuse a config.json that was edited to differ from the weights' settings; an unreadable one is ignored."""
    try:
        record = {name: value for name, value in read_sealed(copy).items() if name != DIGEST}
    except (OSError, Damaged):
        return
    found = first_difference(record, settings)
    if found:
        path, said, saved = found
        raise ValueError(
            f"checkpoint: {copy} contradicts the weights beside it: {path} is {_short(said)} there and was "
            f"{_short(saved)} when they were saved; set it back, or remove that file."
        )


def _short(value: Any) -> str:
    return repr(value.get("class", value)) if isinstance(value, dict) else repr(value)
