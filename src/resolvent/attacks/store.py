"""Finished pieces of an evaluation on disk, so that one killed at any moment goes on from there to the same result.

    folder/config.json                     what is evaluated, with its hash; another configuration is refused by field
    folder/01-apgd-ce-0003.safetensors     batch 3 of attack 1: one tensor per field, notes in the file's header

A file is written beside its place, flushed and moved there: it is whole or it is absent. No pickle.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from resolvent.disk import replace

FORMAT = 1
CONFIG = "config.json"


class Store:
    """The folder of one evaluation. `config` is plain JSON values; see `plain` and `digest` to make them."""

    def __init__(self, folder: str | Path, config: dict[str, Any]) -> None:
        self.folder = Path(folder)
        if self.folder.exists() and not self.folder.is_dir():
            raise ValueError(f"store: {str(self.folder)!r} is a file; give a folder, which need not exist yet.")
        self.folder.mkdir(parents=True, exist_ok=True)
        self._admit({"format": FORMAT, **config})

    def load(self, attack: int, name: str, batch: int) -> tuple[dict[str, Tensor], list[str]] | None:
        """The tensors and notes of a finished piece; None when it must still be done."""
        from safetensors import SafetensorError, safe_open

        path = self._path(attack, name, batch)
        if not path.is_file():
            return None
        try:
            with safe_open(path, framework="pt") as file:
                told = json.loads((file.metadata() or {}).get("piece", "{}"))
                held = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError, ValueError):
            return None  # a disk that lost the end of the file: done again
        notes = told.get("notes", [])
        return (held, notes) if told.get("sum") == _sum(held, notes) else None

    def save(self, attack: int, name: str, batch: int, tensors: dict[str, Tensor], notes: list[str]) -> None:
        from safetensors.torch import save_file

        held = {key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()}
        header = {"piece": json.dumps({"notes": notes, "sum": _sum(held, notes)})}  # one entry: several have no order
        replace(self._path(attack, name, batch), lambda part: save_file(held, part, metadata=header))

    def write_json(self, name: str, values: Any) -> Path:
        return write_json(self.folder / name, values)

    def _path(self, attack: int, name: str, batch: int) -> Path:
        return self.folder / f"{attack:02d}-{name}-{batch:04d}.safetensors"

    def _admit(self, config: dict[str, Any]) -> None:
        for part in self.folder.glob(".*.part"):  # left by a killed writer
            part.unlink(missing_ok=True)
        path = self.folder / CONFIG
        if not path.is_file():
            self.write_json(CONFIG, {"hash": fingerprint(config), "config": config})
            return
        found = _config(path)
        if fingerprint(found) != fingerprint(config):
            where, then, now = first_difference(found, config) or ("config", "?", "?")
            raise ValueError(
                f"store: {str(self.folder)!r} holds an evaluation of another configuration: {where} was {then!r} there "
                f"and is {now!r} now; use another folder, or the old settings to go on."
            )


def write_json(path: Path, values: Any) -> Path:
    replace(path, lambda part: part.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8"))
    return path


def fingerprint(config: dict[str, Any]) -> str:
    """sha256 over the configuration in one spelling."""
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()


def digest(tensor: Tensor) -> str:
    """Shape, type and content of a tensor in 16 hexadecimal digits."""
    held = tensor.detach().cpu().contiguous()
    raw = held.reshape(-1).view(torch.uint8).numpy().tobytes() if held.numel() else b""
    return hashlib.sha256(f"{held.dtype}{tuple(held.shape)}".encode() + raw).hexdigest()[:16]


def _sum(tensors: dict[str, Tensor], notes: list[str]) -> str:
    """Over everything in a piece, so that a flipped bit is seen."""
    return fingerprint({"notes": notes, **{key: digest(tensor) for key, tensor in tensors.items()}})


def plain(value: Any) -> Any:
    """Settings as JSON values: dataclasses carry their class's name, functions their own, tensors their digest."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        own = {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"class": type(value).__name__, **own}
    if isinstance(value, Tensor):
        return value.item() if value.dim() == 0 else f"tensor {tuple(value.shape)} {digest(value)}"
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return getattr(value, "__name__", repr(value))


def first_difference(a: Any, b: Any, path: str = "") -> tuple[str, Any, Any] | None:
    """The first field in which two configurations differ: (dotted path, value in a, value in b)."""
    if isinstance(a, dict) and isinstance(b, dict):
        names = [*a, *(name for name in b if name not in a)]
        pairs = [(f"{path}.{name}" if path else name, a.get(name), b.get(name)) for name in names]
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        pairs = [(f"{path}[{i}]", *pair) for i, pair in enumerate(zip(a, b, strict=True))]
    else:
        return None if a == b else (path, a, b)
    return next((found for where, x, y in pairs if (found := first_difference(x, y, where))), None)


def _config(path: Path) -> dict[str, Any]:
    try:
        held: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["config"]
    except (json.JSONDecodeError, KeyError, TypeError) as wrong:
        raise ValueError(f"store: {path} is no configuration of an evaluation; use an empty folder.") from wrong
    return held
