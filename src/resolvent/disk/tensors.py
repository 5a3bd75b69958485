"""Safetensors files with notes in their header: one JSON entry that seals notes and tensors."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resolvent.disk.document import replace
from resolvent.disk.seal import Damaged, is_sealed, parse, seal, unseal

if TYPE_CHECKING:
    from torch import Tensor

SUM = "sha256"


def tensor_sum(tensors: dict[str, Tensor]) -> str:
    """A checksum of names, types, shapes and values."""
    import torch

    found = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu()
        found.update(f"{name}{tensor.dtype}{tuple(tensor.shape)}".encode())
        if tensor.numel():
            found.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def write_tensors(
    path: Path, tensors: dict[str, Tensor], entry: str, notes: dict[str, Any], of: str = "", indent: int | None = None
) -> None:
    """Write the file atomically; its header's `entry` has the notes and the tensors' checksum under a digest."""
    from safetensors.torch import save_file

    header = {entry: json.dumps(seal(notes | {SUM: tensor_sum(tensors)}, of), indent=indent)}
    replace(path, lambda part: save_file(tensors, part, metadata=header))


def read_tensors(path: Path, entry: str, of: str = "") -> tuple[dict[str, Tensor], dict[str, Any] | None]:
    """Tensors and notes as written, or Damaged. Notes are None if the header has no such entry.

    Older versions sealed less: a checksum in or next to the notes is checked; a missing one is accepted.
    """
    tensors, header = _read(path)
    try:
        notes = unseal(parse(header[entry]), of) if entry in header else None
        known = header.get(SUM) if notes is None else notes.pop(SUM, header.get(SUM))
    except Damaged as wrong:
        raise Damaged(f"{path} is damaged: the notes in its header are not those that were saved ({wrong})") from None
    if known is not None and known != tensor_sum(tensors):
        raise Damaged(f"{path} is damaged: its tensors are not those that were saved (their checksum differs)")
    return tensors, notes


def sealed_tensors(path: Path, entry: str) -> bool:
    """Whether the notes of an intact file have a digest: older versions wrote none."""
    return is_sealed(parse(_read(path)[1].get(entry, "{}")))


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, KeyError, AttributeError, MemoryError, RuntimeError) as wrong:
        raise Damaged(f"{path} cannot be read ({wrong})") from wrong
