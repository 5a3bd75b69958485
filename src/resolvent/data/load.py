"""Tasks by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from resolvent.data.listops.task import listops
from resolvent.data.pathfinder.task import pathfinder, pathx
from resolvent.data.task import Task
from resolvent.data.tasks.aan import aan
from resolvent.data.tasks.cifar import cifar10, cifar10_grey
from resolvent.data.tasks.digits import digits
from resolvent.data.tasks.imdb import imdb, imdb_words
from resolvent.data.tasks.majority import majority
from resolvent.data.tasks.mnist import mnist, permuted_mnist
from resolvent.data.tasks.sinusoids import sinusoids
from resolvent.usage.numbers import check_choice, did_you_mean

_TASKS: dict[str, Callable[..., Task]] = {
    "digits": digits,
    "mnist": mnist,
    "permuted-mnist": permuted_mnist,
    "cifar10": cifar10,
    "cifar10-grey": cifar10_grey,
    "imdb": imdb,
    "imdb-words": imdb_words,
    "listops": listops,
    "pathfinder": pathfinder,
    "pathx": pathx,
    "aan": aan,
    "majority": majority,
    "sinusoids": sinusoids,
}


def task_names() -> tuple[str, ...]:
    """The names that `load_task` accepts.

    Examples:
        >>> "digits" in rv.data.task_names()
        True
    """

    return tuple(_TASKS)


def task_summaries() -> dict[str, str]:
    """Each name with one line about it.

    Examples:
        >>> sorted(rv.data.task_summaries()) == sorted(rv.data.task_names())
        True
    """
    return {name: inspect.getdoc(make).partition("\n")[0] for name, make in _TASKS.items()}  # type: ignore[union-attr]


def task_options(name: str) -> dict[str, Any]:
    """The options of a task with their defaults; empty for an unknown name."""
    make = _TASKS.get(name.replace("_", "-"))
    return {} if make is None else {p.name: p.default for p in inspect.signature(make).parameters.values()}


def load_task(name: str, **options: Any) -> Task:
    """The data set of that name, with its splits and metadata; `task_names()` lists the names.

    options  go to the function of the same name (a `seed` for the split, ...)

    Examples:
        >>> rv.load_task("digits").classes
        10
    """
    if not isinstance(name, str):
        raise TypeError(f"load_task: expected a name, got {type(name).__name__}; known: {', '.join(_TASKS)}.")
    check_choice("load_task", "name", name.replace("_", "-"), _TASKS)
    make = _TASKS[name.replace("_", "-")]
    known = list(inspect.signature(make).parameters)
    for option in options:
        if option not in known:
            raise TypeError(
                f"load_task: task {name!r} takes {', '.join(known)}; it has no option {option!r}"
                f"{did_you_mean(option, known)}"
            )
    return make(**options)
