"""An unfinished run as one file, made while the run continues: an object store writes an object whole or not at all.

Files are read in the reverse of the order in which a run writes them. Whatever a file relies on was written before it,
so it is in the bundle at least as new: a summary never comes with an older state, nor a state without the weights it
calls best. Weights newer than the state are harmless, since the run reproduces the same ones.
"""

from __future__ import annotations

import hashlib
import tarfile
from pathlib import Path

from resolvent.experiments.store.folder import RECORD, SUMS

LATEST = ("stage/", "attack/", f"checkpoint/{SUMS}", "summary.json", "checkpoint/state.safetensors")
DIGITS = 64  # of the checksum before the archive
_BLOCK = 1 << 20


class DamagedBundle(ValueError):
    """A bundle whose content is not what was packed."""


def run_files(folder: Path) -> list[str]:
    """Names of all files of a run, latest first; except the record, locks and partial files."""
    found = [p.relative_to(folder) for p in folder.rglob("*") if p.is_file()]
    kept = [p.as_posix() for p in found if not p.name.startswith(".") and p.parts[0] != "damaged"]
    return sorted((name for name in kept if name != RECORD), key=lambda name: (_rank(name), name))


def _rank(name: str) -> int:
    return next((i for i, start in enumerate(LATEST) if name.startswith(start)), len(LATEST))


def pack(folder: Path, target: Path) -> Path:
    """Pack the present state of the run in `folder` into one file."""
    with target.open("wb") as file:
        file.write(b"0" * DIGITS)
        with tarfile.open(fileobj=file, mode="w") as archive:
            for name in run_files(folder):
                _add(archive, folder / name, name)
    with target.open("r+b") as file:
        file.seek(DIGITS)
        digest = _digest(file)
        file.seek(0)
        file.write(digest.encode())
    return target


def _add(archive: tarfile.TarFile, path: Path, name: str) -> None:
    """A file replaced meanwhile is harmless: the opened one is read to its end."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        archive.addfile(archive.gettarinfo(arcname=name, fileobj=file), file)


def unpack(source: Path, folder: Path) -> None:
    """Unpack everything; nothing is written unless the whole bundle is intact."""
    with source.open("rb") as file:
        held = file.read(DIGITS)
        if held != _digest(file).encode():
            raise DamagedBundle(f"{source.name} does not hold what was packed")
        file.seek(DIGITS)
        try:
            with tarfile.open(fileobj=file, mode="r:") as archive:
                archive.extractall(folder, filter="data")  # no links out, no devices, nothing above the folder
        except tarfile.TarError as wrong:
            raise DamagedBundle(f"{source.name} is no bundle of a run ({wrong})") from wrong


def _digest(file: object) -> str:
    found = hashlib.sha256()
    while block := file.read(_BLOCK):  # type: ignore[attr-defined]
        found.update(block)
    return found.hexdigest()
