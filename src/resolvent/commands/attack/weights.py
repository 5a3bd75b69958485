"""Weights for a user's class: a .safetensors file, or one that torch reads without running code."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from resolvent.usage.error import UsageError
from resolvent.usage.numbers import list_some

INNER = ("state_dict", "model_state_dict", "model")  # keys of weights in training scripts' files
PARALLEL = "module."  # prefix written by DataParallel
SHOWN = 4  # names in a message


def load_weights(model: nn.Module, path: Path) -> None:
    """Fill the model; names and shapes must match."""
    if not path.is_file():
        raise UsageError(f"--weights: there is no file {str(path)!r}; give a .safetensors file, or a .pt of tensors.")
    held = _state(_read(path), path)
    if held and all(name.startswith(PARALLEL) for name in held):
        held = {name.removeprefix(PARALLEL): value for name, value in held.items()}
    _require_fitting(model, held, path)
    model.load_state_dict(held)


def _read(path: Path) -> Any:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except (SafetensorError, pickle.UnpicklingError, RuntimeError, ValueError, OSError, EOFError, KeyError) as wrong:
        kind = "as .safetensors" if path.suffix == ".safetensors" else "as tensors alone, without running code"
        advice = "save it anew with safetensors.torch.save_file(model.state_dict(), ...)"
        more = "it holds more than tensors, perhaps a whole pickled model"
        why = more if isinstance(wrong, pickle.UnpicklingError) else _first_line(wrong)
        raise UsageError(f"--weights: {path} cannot be read {kind} ({why}); {advice}.") from wrong


def _state(read: Any, path: Path) -> dict[str, Tensor]:
    """The dictionary of tensors, at the top level or under a usual key."""
    inner = next((read[key] for key in INNER if key in read), read) if isinstance(read, dict) else read
    if not isinstance(inner, dict) or not all(isinstance(v, Tensor) for v in inner.values()):
        raise UsageError(
            f"--weights: {path} must hold the tensors of model.state_dict() by name, at the top or under "
            f"{', '.join(INNER)}; it holds {type(inner).__name__}."
        )
    return {str(name): value for name, value in inner.items()}


def _require_fitting(model: nn.Module, held: dict[str, Tensor], path: Path) -> None:
    own = model.state_dict()
    wrong = {
        "lacks": [name for name in own if name not in held],
        "has, and the class has not,": [name for name in held if name not in own],
        "has in another shape:": [
            f"{name} {tuple(held[name].shape)} for {tuple(own[name].shape)}"
            for name in own
            if name in held and held[name].shape != own[name].shape
        ],
    }
    lines = [f"it {what} {list_some(names, SHOWN)}" for what, names in wrong.items() if names]
    if lines:
        raise UsageError(f"--weights: {path} is not of {type(model).__name__}: {'; '.join(lines)}; see --kwargs.")


def _first_line(wrong: BaseException) -> str:
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(wrong)).strip()  # torch prints in bold
    return text.splitlines()[0][:160] if text else type(wrong).__name__
