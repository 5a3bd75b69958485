"""Foreign weights as tensors by name: from a mapping, a module, a file or a folder. Nothing is unpickled."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

TORCH = (".pt", ".pth", ".bin", ".ckpt")
WHOLE = ("model.safetensors", "pytorch_model.bin")  # files of a transformers folder, preferred first
INDEX = "model.safetensors.index.json"
WRAPPED = ("module.", "_orig_mod.")  # prefixes of DistributedDataParallel and torch.compile
INSIDE = ("state_dict", "model_state_dict", "model", "params")  # keys under which training scripts store them


def read_weights(weights: Any) -> dict[str, Tensor]:
    """Tensors by dotted name, on the CPU.

    weights   a state dict, nested dicts of arrays (flax), a module, a file .safetensors, .npz or of torch (.pt, .pth,
              .bin, .ckpt, read with weights_only), or a folder of `save_pretrained`
    """
    if isinstance(weights, nn.Module):
        weights = weights.state_dict()
    if isinstance(weights, Mapping):
        return _strip(_flat(_unwrap(weights)))
    if not isinstance(weights, str | Path):
        raise TypeError(
            f"import_weights: expected a state dict, a file or a folder, got {type(weights).__name__}; "
            "pass model.state_dict()."
        )
    path = Path(weights).expanduser()
    if path.is_dir():
        return _of_folder(path)
    if not path.is_file():
        raise FileNotFoundError(f"import_weights: there is no file {str(weights)!r}.")
    return _strip(_of_file(path))


def read_settings(weights: Any) -> dict[str, Any]:
    """transformers' settings beside the weights: a module's config, or the config.json of a folder of
    `save_pretrained`; empty if there are none."""
    if isinstance(weights, nn.Module):
        config: Any = getattr(weights, "config", None)
        return dict(config.to_dict()) if hasattr(config, "to_dict") else {}
    path = Path(weights).expanduser() / "config.json" if isinstance(weights, str | Path) else None
    if path is None or not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as wrong:
        raise ValueError(f"import_weights: {path} is no JSON ({wrong}); take a copy of it, or remove it.") from wrong
    return found if isinstance(found, dict) else {}


def require_settings(settings: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Refuse a model whose weights have the same names and shapes but another meaning."""
    known = settings | (settings.get("rope_parameters") or {})
    other = {name: value for name, value in wanted.items() if known.get(name, value) != value}
    if other:
        message = ", ".join(f"{name} {known[name]!r}, expected {value!r}" for name, value in other.items())
        raise ValueError(f"import_weights: the model's config has {message}; it would give other outputs here.")


def _of_folder(folder: Path) -> dict[str, Tensor]:
    for name in WHOLE:
        if (folder / name).is_file():
            return _of_file(folder / name)
    if not (folder / INDEX).is_file():
        raise FileNotFoundError(f"import_weights: expected {' or '.join(WHOLE)} in {str(folder)!r}, found neither.")
    shards = json.loads((folder / INDEX).read_text(encoding="utf-8")).get("weight_map", {}).values()
    found: dict[str, Tensor] = {}
    for shard in sorted(set(shards)):
        if Path(shard).name != shard:
            raise ValueError(f"import_weights: {INDEX} names {shard!r}, which is not in {str(folder)!r}; it is forged.")
        found |= _of_file(folder / shard)
    return found


def _of_file(path: Path) -> dict[str, Tensor]:
    suffix = path.suffix.lower()
    if suffix == ".safetensors":
        return _safetensors(path)
    if suffix == ".npz":
        return _archive(path)
    if suffix not in TORCH:
        known = ", ".join((".safetensors", ".npz", *TORCH))
        raise ValueError(f"import_weights: expected a file {known}, got {path.name!r}.")
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as wrong:  # any error of torch's unpickler means: not plain tensors
        raise ValueError(
            f"import_weights: {path} holds more than tensors, or is damaged, and nothing is unpickled here; save it "
            "again with torch.save(model.state_dict(), file) or as safetensors."
        ) from wrong
    if not isinstance(loaded, Mapping):
        raise ValueError(f"import_weights: expected a state dict in {path}, got {type(loaded).__name__}.")
    return _flat(_unwrap(loaded))


def _safetensors(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        found: dict[str, Tensor] = load_file(path)
    except SafetensorError as wrong:
        raise ValueError(f"import_weights: {path} is no safetensors file ({wrong}); fetch it again.") from wrong
    return found


def _archive(path: Path) -> dict[str, Tensor]:
    try:
        with np.load(path, allow_pickle=False) as held:
            return {name.replace("/", "."): torch.from_numpy(held[name]) for name in held.files}
    except (ValueError, OSError, TypeError) as wrong:
        raise ValueError(f"import_weights: {path} is no archive of plain arrays ({wrong}).") from wrong


def _unwrap(weights: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """The state dict inside a training script's file."""
    inside = next((weights[name] for name in INSIDE if isinstance(weights.get(name), Mapping)), None)
    if inside is None:
        return weights
    averages = weights.get("batch_stats")  # flax stores them separately, under the same names
    return _merge(inside, averages) if isinstance(averages, Mapping) else _unwrap(inside)


def _strip(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    for before in WRAPPED:
        if tensors and all(name.startswith(before) for name in tensors):
            return _strip({name.removeprefix(before): tensor for name, tensor in tensors.items()})
    return tensors


def _merge(a: Mapping[Any, Any], b: Mapping[Any, Any]) -> dict[Any, Any]:
    both = {name: _merge(a[name], b[name]) for name in a if isinstance(b.get(name), Mapping)}
    return dict(a) | dict(b) | both


def _flat(weights: Mapping[Any, Any], before: str = "") -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for name, value in weights.items():
        whole = f"{before}{name}".replace("/", ".")
        if isinstance(value, Mapping):
            found |= _flat(value, f"{whole}.")
        elif isinstance(value, Tensor):
            if value.is_meta:
                raise ValueError(f"import_weights: {whole} is on the device meta and holds nothing; load it first.")
            found[whole] = value.detach().cpu()
        elif hasattr(value, "__array__"):
            found[whole] = torch.from_numpy(np.array(value))
        else:
            raise TypeError(f"import_weights: expected a tensor under {whole!r}, got {type(value).__name__}.")
    return found
