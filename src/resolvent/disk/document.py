"""Atomically written files, including JSON with a digest: reading returns what was written, or raises Damaged."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from contextlib import suppress
from operator import eq
from pathlib import Path
from typing import Any

from resolvent.disk.seal import Damaged, fingerprint, parse, seal, unseal


def replace(path: Path, write: Callable[[Path], Any]) -> None:
    """Let `write` create the file, atomically. System errors (a full disk) name `path` and leave it unchanged."""
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
        with suppress(OSError):  # the first error is the one to report
            part.unlink(missing_ok=True)


def _system_error(wrong: Exception) -> int | None:
    """The errno of a system error, which safetensors reports as text: 28 is a full disk."""
    code = re.search(r"\(os error (\d+)\)", str(wrong))
    return wrong.errno if isinstance(wrong, OSError) else int(code[1]) if code else None


LARGEST = 64 * 2**20  # bytes: far above any JSON file of ours


def write_text(path: Path, text: str) -> Path:
    """Write a text file atomically."""
    replace(path, lambda part: part.write_text(text, encoding="utf-8"))
    return path


def write_json(path: Path, value: dict[str, Any], of: str = "", *, indent: int = 1, finite: bool = False) -> Path:
    """Write an object with its digest. `of`: see `seal`; `finite`: non-finite numbers are an error."""
    return write_text(path, json.dumps(seal(value, of), indent=indent, allow_nan=not finite) + "\n")


def read_json(path: Path, of: str = "") -> dict[str, Any]:
    """The object without its digest."""
    held = read_sealed(path)
    try:
        return unseal(held, of)
    except Damaged as wrong:
        raise Damaged(f"{path} is damaged ({wrong})") from None


def read_sealed(path: Path) -> dict[str, Any]:
    """The object as stored, without checking its digest."""
    if not path.is_file():  # opening a pipe would block forever
        raise FileNotFoundError(2, "there is no such file", str(path))
    size = path.stat().st_size
    if size > LARGEST:
        raise Damaged(f"{path} has {size:,} bytes, which no such file has")
    try:
        return parse(path.read_bytes())
    except Damaged as wrong:
        raise Damaged(f"{path} is damaged ({wrong})") from None


def check_same(found: dict[str, Any], config: dict[str, Any], holder: str) -> None:
    """Refuse to resume from another configuration; `holder` starts the message."""
    if fingerprint(found) != fingerprint(config):
        where, then, now = first_difference(found, config) or ("config", "?", "?")
        raise ValueError(
            f"{holder} of another configuration: {where} was {then!r} there and is {now!r} now; use another folder, "
            "or resume with the old settings."
        )


def first_difference(
    a: Any, b: Any, path: str = "", same: Callable[[Any, Any], bool] = eq
) -> tuple[str, Any, Any] | None:
    """The first field in which two configurations differ: (dotted path, value in a, value in b)."""
    if isinstance(a, dict) and isinstance(b, dict):
        names = [*a, *(name for name in b if name not in a)]
        pairs = [(f"{path}.{name}" if path else name, a.get(name), b.get(name)) for name in names]
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        pairs = [(f"{path}[{i}]", *pair) for i, pair in enumerate(zip(a, b, strict=True))]
    else:
        return None if same(a, b) else (path, a, b)
    return next((found for where, x, y in pairs if (found := first_difference(x, y, where, same))), None)
