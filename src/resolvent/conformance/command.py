"""`resolvent check`: choose what to check, show progress, print the table, tell the exit status."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Protocol

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from torch import nn

from resolvent.conformance.cases import check_layers, plan, select
from resolvent.conformance.load import UsageError, load_class, parse_kwargs
from resolvent.conformance.properties import PROPERTIES
from resolvent.conformance.result import Report, Result
from resolvent.conformance.runner import Listener, Settings, check
from resolvent.conformance.table import show


class Request(Protocol):
    """What the command line hands over."""

    @property
    def layer(self) -> str | None: ...
    @property
    def module(self) -> str | None: ...
    @property
    def kwargs(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def seed(self) -> int: ...
    @property
    def full(self) -> bool: ...
    @property
    def json(self) -> Path | None: ...


def run(request: Request) -> int:
    """0 when every property holds, 1 when one fails; a UsageError when the request makes no sense."""
    if request.layer is not None and request.module is not None:
        raise UsageError("give --layer or --module, not both.")
    settings = Settings(getattr(torch, request.dtype), request.seed, request.full)
    console = Console()
    if request.module is not None:
        report = _check_module(request.module, request.kwargs, settings, console)
    else:
        if request.kwargs != "{}":
            raise UsageError("--kwargs goes with --module; the library's own layers have a table of settings.")
        report = check_all(settings, console, request.layer)
    show(report, console)
    if request.json is not None:
        report.write(request.json)
    return 0 if report.ok else 1


def check_all(settings: Settings, console: Console, layer: str | None = None) -> Report:
    """The library's own layers, with a progress bar on a terminal."""
    total = sum(1 for _ in plan(select(layer), settings.full))
    progress, listener = progress_bar(console, total)
    with progress:
        return check_layers(layer, settings, listener)


def progress_bar(console: Console, total: int) -> tuple[AbstractContextManager[object], Listener]:
    """A bar that names what was just measured; nothing at all when the output is no terminal."""
    if not console.is_terminal:
        return nullcontext(), lambda result: None
    count, name = TextColumn("{task.completed}/{task.total}"), TextColumn("{task.description}")
    progress = Progress(BarColumn(), count, TimeElapsedColumn(), name, console=console, transient=True)
    task = progress.add_task("", total=total)

    def listener(result: Result) -> None:
        progress.update(task, advance=1, description=f"{result.layer} {result.property}")

    return progress, listener


def _check_module(target: str, kwargs: str, settings: Settings, console: Console) -> Report:
    given = parse_kwargs(kwargs)
    factory = _factory(load_class(target), given)
    width = given.get("d_model")
    progress, listener = progress_bar(console, len(PROPERTIES))
    with progress:
        try:
            return check(factory, d_model=width, settings=settings, listener=listener)
        except ValueError as wrong:
            raise UsageError(str(wrong)) from wrong


def _factory(cls: type, given: dict[str, object]) -> Callable[[], nn.Module]:
    """Build once now: a constructor that does not take these arguments is the user's to mend."""
    try:
        cls(**given)
    except Exception as wrong:
        told = f"{type(wrong).__name__}: {wrong}"
        raise UsageError(f"{cls.__name__}(**{given}) failed with {told}; see --kwargs.") from wrong
    return lambda: cls(**given)
