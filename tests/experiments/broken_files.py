"""Files as a bad disk leaves them."""

from __future__ import annotations

from pathlib import Path


def flip(path: Path) -> None:
    held = bytearray(path.read_bytes())
    held[-5] ^= 0x40
    path.write_bytes(held)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
