"""Finished pieces of an evaluation on disk, so that a killed one resumes to the same result.

    folder/config.json                     what is evaluated; a different one is refused by field
    folder/01-apgd-ce-0003.safetensors     batch 3 of attack 1: one tensor per field, notes in the file's header

A file is written under a temporary name, flushed and moved into place: it is complete or absent. No pickle. The digest
of a piece covers its position and the configuration: pieces of another batch or evaluation are rejected.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from resolvent.disk import Damaged, check_same, fingerprint, read_json, write_json
from resolvent.disk.tensors import read_tensors, sealed_tensors, write_tensors

FORMAT = 1
CONFIG = "config.json"
CHUNK = 1 << 22  # numbers hashed at once
PIECE = "piece"  # key in a piece's header


class Store:
    """The folder of one evaluation. `config` is plain JSON values; see `jsonable` and `digest` to make them."""

    def __init__(self, folder: str | Path, config: dict[str, Any]) -> None:
        self.folder = Path(folder)
        if self.folder.exists() and not self.folder.is_dir():
            raise ValueError(f"store: {str(self.folder)!r} is a file; give a folder, which need not exist yet.")
        self.folder.mkdir(parents=True, exist_ok=True)
        held = {"format": FORMAT, **config}
        self.of = fingerprint(held)
        self._admit(held)

    def load(self, attack: int, name: str, batch: int) -> tuple[dict[str, Tensor], list[str]] | None:
        """The tensors and notes of a finished piece; None if it is not done."""
        path = self._path(attack, name, batch)
        if not path.is_file():
            return None
        try:
            held, marks = read_tensors(path, PIECE, f"{self.of} {path.name}")
        except Damaged:
            return None  # the end of the file was lost: redone
        if marks is None:
            return None
        notes = marks.get("notes", [])
        return (held, notes) if marks.get("sum", known := _sum(held, notes)) == known else None

    def save(self, attack: int, name: str, batch: int, tensors: dict[str, Tensor], notes: list[str]) -> None:
        held = {key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()}
        path = self._path(attack, name, batch)
        write_tensors(path, held, PIECE, {"notes": notes}, f"{self.of} {path.name}")

    def write_json(self, name: str, values: dict[str, Any]) -> Path:
        return write_json(self.folder / name, values)

    def _path(self, attack: int, name: str, batch: int) -> Path:
        return self.folder / f"{attack:02d}-{name}-{batch:04d}.safetensors"

    def _admit(self, config: dict[str, Any]) -> None:
        for part in self.folder.glob(".*.part"):  # left by a killed writer
            part.unlink(missing_ok=True)
        path = self.folder / CONFIG
        if not path.is_file():
            self._write_config(config)
            return
        try:
            found = read_json(path).get("config")
        except Damaged as wrong:
            self._readmit(config, wrong)
            return
        if not isinstance(found, dict):
            raise ValueError(f"store: {path} is no configuration of an evaluation; use an empty folder.")
        check_same(found, config, f"store: {str(self.folder)!r} holds an evaluation")

    def _readmit(self, config: dict[str, Any], wrong: Damaged) -> None:
        """Set aside a damaged configuration and rewrite it. Pieces identify their evaluation, except those of older
        versions, which are redone."""
        aside = self.folder / f"{CONFIG}.damaged"
        os.replace(self.folder / CONFIG, aside)
        for piece in self.folder.glob("[0-9][0-9]-*-[0-9][0-9][0-9][0-9].safetensors"):
            if not _has_digest(piece):
                piece.unlink()
        warnings.warn(f"store: {wrong}; it is written again, the old one is {aside}.", stacklevel=6)
        self._write_config(config)

    def _write_config(self, config: dict[str, Any]) -> None:
        self.write_json(CONFIG, {"hash": fingerprint(config), "config": config})


def digest(tensor: Tensor) -> str:
    """Shape, type and content of a tensor in 16 hexadecimal digits."""
    held = tensor.detach().cpu().contiguous()
    found = hashlib.sha256(f"{held.dtype}{tuple(held.shape)}".encode())
    for piece in held.reshape(-1).split(CHUNK) if held.numel() else ():  # a mapped one may be larger than memory
        found.update(piece.clone().view(torch.uint8).numpy().data)  # a single expanded number has no stride
    return found.hexdigest()[:16]


def _sum(tensors: dict[str, Tensor], notes: list[str]) -> str:
    """The checksum of older versions' pieces, over the whole content."""
    return fingerprint({"notes": notes, **{key: digest(tensor) for key, tensor in tensors.items()}})


def jsonable(value: Any) -> Any:
    """Settings as JSON values: dataclasses carry their class's name, functions their own, tensors their digest.

    Private fields are no settings but what came of using them, such as the batches that a threat was fitted to.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        given = [f.name for f in dataclasses.fields(value) if not f.name.startswith("_")]
        return {"class": type(value).__name__, **{name: jsonable(getattr(value, name)) for name in given}}
    if isinstance(value, Tensor):
        return value.item() if value.dim() == 0 else f"tensor {tuple(value.shape)} {digest(value)}"
    if isinstance(value, dict):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [jsonable(item) for item in value]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return getattr(value, "__name__", re.sub(" at 0x[0-9a-f]+", "", repr(value)))  # an address is new in each process


def _has_digest(piece: Path) -> bool:
    """Whether a piece carries the digest of its evaluation."""
    try:
        return sealed_tensors(piece, PIECE)
    except Damaged:
        return False
