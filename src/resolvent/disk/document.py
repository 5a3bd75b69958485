"""JSON files: written whole, with a digest; what is read back is what was written, or Damaged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from resolvent.disk.seal import Damaged, parse, seal, unseal
from resolvent.disk.whole import replace

LARGEST = 64 * 2**20  # bytes: no JSON file of ours is near it


def write_text(path: Path, text: str) -> Path:
    """A file of text, whole or absent."""
    replace(path, lambda part: part.write_text(text, encoding="utf-8"))
    return path


def write_json(path: Path, value: dict[str, Any], of: str = "", *, indent: int = 1, finite: bool = False) -> Path:
    """An object with its digest. `of`: see `seal`; `finite`: numbers that JSON does not know are an error."""
    return write_text(path, json.dumps(seal(value, of), indent=indent, allow_nan=not finite) + "\n")


def read_json(path: Path, of: str = "") -> dict[str, Any]:
    """The object without its digest."""
    held = read_sealed(path)
    try:
        return unseal(held, of)
    except Damaged as wrong:
        raise Damaged(f"{path} is damaged ({wrong})") from None


def read_sealed(path: Path) -> dict[str, Any]:
    """The object as it stands, its digest not looked at."""
    if not path.is_file():  # a pipe would be waited for, for ever
        raise FileNotFoundError(2, "there is no such file", str(path))
    size = path.stat().st_size
    if size > LARGEST:
        raise Damaged(f"{path} has {size:,} bytes, which no such file has")
    try:
        return parse(path.read_bytes())
    except Damaged as wrong:
        raise Damaged(f"{path} is damaged ({wrong})") from None
