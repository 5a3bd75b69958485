"""Tasks by name."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any

from resolvent.data.digits import digits
from resolvent.data.task import Task

_TASKS: dict[str, Callable[..., Task]] = {"digits": digits}


def task_names() -> tuple[str, ...]:
    return tuple(_TASKS)


def load_task(name: str, **options: Any) -> Task:
    """The task of that name; `options` go to the function of the same name (a `seed` for the split, ...)."""
    if not isinstance(name, str):
        raise TypeError(f"load_task: expected a name, got {type(name).__name__}; known: {', '.join(_TASKS)}.")
    if name not in _TASKS:
        close = difflib.get_close_matches(name, _TASKS, n=3, cutoff=0.4)
        hint = f"; did you mean {' or '.join(map(repr, close))}?" if close else "."
        raise ValueError(f"load_task: expected one of {', '.join(map(repr, _TASKS))}, got {name!r}{hint}")
    return _TASKS[name](**options)
