"""Where data sets are stored: the folder named by RESOLVENT_DATA, by default ~/.cache/resolvent."""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "RESOLVENT_DATA"


def data_folder() -> Path:
    """The folder as currently set; it need not exist.

    Examples:
        >>> rv.data.data_folder().is_absolute()
        True
    """
    named = os.environ.get(VARIABLE)
    return Path(named).expanduser() if named else Path.home() / ".cache" / "resolvent"


def make_folder(folder: Path) -> Path:
    """The folder, created if missing; if it cannot be written, the error says how to choose another."""
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
