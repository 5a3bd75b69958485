"""A command as its arguments, for a process that repeats it."""

from __future__ import annotations

from dataclasses import MISSING, fields, is_dataclass
from typing import Any


def arguments(options: Any) -> list[str]:
    """Every option that differs from its default, including groups: `--batch-size=32 --no-header`."""
    made: list[str] = []
    for each in fields(options):
        value = getattr(options, each.name)
        if is_dataclass(value):
            made += arguments(value)
            continue
        usual = each.default if each.default_factory is MISSING else each.default_factory()
        if usual is MISSING:  # a positional
            made.append(str(value))
        elif value != usual:
            made += _words(each.name.replace("_", "-"), value)
    return made


def list_given(options: Any) -> list[str]:
    """The options that differ from their defaults, as typed by a user: `--batch-size`, `--no-header`."""
    return [word.partition("=")[0] for word in arguments(options) if word.startswith("--")]


def _words(name: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    return [f"--{name}", *map(str, value)] if isinstance(value, tuple) else [f"--{name}={value}"]
