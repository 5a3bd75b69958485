"""What a disk or a hand can do to a file. Each takes the file, the files of the run, and a source of chance."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Damage = Callable[[Path, Sequence[Path], random.Random], None]


def flip(path: Path, files: Sequence[Path], chance: random.Random) -> None:
    held = bytearray(path.read_bytes())
    if held:
        held[chance.randrange(len(held))] ^= 1 << chance.randrange(8)
    path.write_bytes(held)


def digit(path: Path, files: Sequence[Path], chance: random.Random) -> None:
    """One digit becomes another: JSON stays JSON."""
    held = bytearray(path.read_bytes())
    places = [i for i, byte in enumerate(held) if 48 <= byte <= 57]
    if places:
        held[chance.choice(places)] ^= 1
    path.write_bytes(held)


def several(path: Path, files: Sequence[Path], chance: random.Random) -> None:
    for _ in range(chance.randint(2, 40)):
        flip(path, files, chance)


def cut(path: Path, files: Sequence[Path], chance: random.Random) -> None:
    held = path.read_bytes()
    path.write_bytes(held[: chance.randrange(max(1, len(held)))])


def block(path: Path, files: Sequence[Path], chance: random.Random) -> None:
    """A sector of zeros."""
    held = bytearray(path.read_bytes())
    at = chance.randrange(max(1, len(held)))
    held[at : at + 512] = bytes(len(held[at : at + 512]))
    path.write_bytes(held)


def longer(path: Path, files: Sequence[Path], chance: random.Random) -> None:
    path.write_bytes(path.read_bytes() + chance.randbytes(chance.randint(1, 99)))


def noise(path: Path, files: Sequence[Path], chance: random.Random) -> None:
    path.write_bytes(chance.randbytes(chance.randint(0, 999)))


def gone(path: Path, files: Sequence[Path], chance: random.Random) -> None:
    path.unlink()


def folder(path: Path, files: Sequence[Path], chance: random.Random) -> None:
    path.unlink()
    path.mkdir()


def swapped(path: Path, files: Sequence[Path], chance: random.Random) -> None:
    """In the place of another of the same kind."""
    alike = [other for other in files if other.suffix == path.suffix and other != path]
    if alike:
        shutil.copy(chance.choice(alike), path)


def deep(path: Path, files: Sequence[Path], chance: random.Random) -> None:
    depth = chance.choice((150, 1_000, 100_000))
    path.write_text(chance.choice(('{"a":', "[")) * depth)


def value(path: Path, files: Sequence[Path], chance: random.Random) -> None:
    """Another value somewhere in good JSON; the digest stays, or goes with it as an older version would have it."""
    try:
        held = json.loads(path.read_text())
    except ValueError:
        return noise(path, files, chance)
    _change(held, chance)
    path.write_text(json.dumps(held))


ODD: tuple[Any, ...] = (None, True, -1, 0, 10**30, 1e308, float("nan"), float("inf"), "", "x" * 5000, "<script>",
                        "=1+1", "../../x", [], {}, [[[]]], {"class": "os"})  # fmt: skip


def _change(held: Any, chance: random.Random) -> None:
    while True:
        keys = list(held) if isinstance(held, dict) else list(range(len(held)))
        if not keys:
            return
        key = chance.choice(keys)
        if isinstance(held[key], dict | list) and held[key] and chance.random() < 0.8:
            held = held[key]
            continue
        held[key] = chance.choice(ODD)
        return


DAMAGES: tuple[Damage, ...] = (flip, digit, several, cut, block, longer, noise, gone, folder, swapped, deep, value)
