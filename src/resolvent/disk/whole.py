"""A file is written beside its place, flushed and moved there: a kill at any instant leaves the old one or the new."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any


def replace(path: Path, write: Callable[[Path], Any]) -> None:
    """Let `write` make the file. An error of the system (a full disk) names `path`, whoever told it, and leaves it."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(part)
        with part.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(part, path)
    except Exception as wrong:
        number = _system_error(wrong)
        if number is None:
            raise
        raise OSError(number, os.strerror(number), str(path)) from wrong
    finally:
        with suppress(OSError):  # the first trouble is the one to tell
            part.unlink(missing_ok=True)


def _system_error(wrong: Exception) -> int | None:
    """The number of an error of the system, which safetensors tells in words: 28 is a full disk."""
    code = re.search(r"\(os error (\d+)\)", str(wrong))
    return wrong.errno if isinstance(wrong, OSError) else int(code[1]) if code else None
