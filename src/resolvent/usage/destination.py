"""Check that a result can be written, before computing it."""

from __future__ import annotations

import tempfile
from pathlib import Path

from resolvent.usage.error import UsageError


def require_writable(path: Path, option: str) -> None:
    """A UsageError if the file `path` cannot be created; leaves nothing behind.

    Tries a temporary file in the nearest existing folder, since mode bits do not show read-only disks.
    """
    try:
        if path.is_dir():
            raise IsADirectoryError(None, "there is a folder of that name")
        nearest = next(each for each in path.absolute().parents if each.exists())
        tempfile.TemporaryFile(dir=nearest).close()
    except OSError as wrong:
        raise UsageError(f"cannot write {str(path)!r} ({wrong.strerror or wrong}); choose another {option}.") from None
