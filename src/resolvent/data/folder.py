"""Where data sets live: the folder named by RESOLVENT_DATA, by default ~/.cache/resolvent."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

VARIABLE = "RESOLVENT_DATA"


def data_folder() -> Path:
    """The folder as it is set now; it need not exist."""
    named = os.environ.get(VARIABLE)
    return Path(named).expanduser() if named else Path.home() / ".cache" / "resolvent"


def make_folder(folder: Path) -> Path:
    """The folder, made where it is missing; an error that names the way out where it cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".probe.{os.getpid()}"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as wrong:
        raise PermissionError(
            f"data: cannot write to {str(folder)!r} ({wrong.strerror or wrong}); set the environment variable "
            f"{VARIABLE} to a folder that can be written."
        ) from wrong
    return folder


def replace(path: Path, write: Callable[[Path], Any]) -> None:
    """Write a file beside its place, flush it and move it there: a kill leaves the old one or the new one."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        write(part)
        with part.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as wrong:
        if wrong.errno is None or wrong.filename is not None:
            raise
        raise OSError(wrong.errno, wrong.strerror, str(path)) from wrong  # a full disk does not tell where
    finally:
        part.unlink(missing_ok=True)
