"""`resolvent check`: choose what to check, show progress, print the table, return the exit status."""

from __future__ import annotations

from collections import Counter

import torch
from rich.console import Console

from resolvent.commands.check.options import Check
from resolvent.conformance.cases import check_layers, plan, select
from resolvent.conformance.progress import follow
from resolvent.conformance.properties import PROPERTIES
from resolvent.conformance.result import Report
from resolvent.conformance.runner import Settings, check
from resolvent.conformance.table import show
from resolvent.usage.destination import require_writable
from resolvent.usage.device import require_device
from resolvent.usage.error import UsageError
from resolvent.usage.load import build, load_class, parse_kwargs


def run(request: Check) -> int:
    """0 when every property holds, 1 when one fails; a UsageError when the request makes no sense."""
    if request.layer is not None and request.module is not None:
        raise UsageError("give --layer or --module, not both.")
    if request.json is not None:
        require_writable(request.json, "--json")
    settings = Settings(getattr(torch, request.dtype), request.seed, request.full, str(require_device(request.device)))
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
    """Check the library's own layers, showing progress."""
    totals = Counter(case.layer for case, _ in plan(select(layer), settings.full))
    progress, listener = follow(console, totals)
    with progress:
        return check_layers(layer, settings, listener)


def _check_module(target: str, kwargs: str, settings: Settings, console: Console) -> Report:
    given = parse_kwargs(kwargs)
    cls = load_class(target)
    width = _width(build(cls, given), given)  # once here: arguments may be wrong
    progress, listener = follow(console, {cls.__name__: len(PROPERTIES)})
    with progress:
        return check(lambda: cls(**given), name=cls.__name__, d_model=width, settings=settings, listener=listener)


def _width(layer: object, given: dict[str, object]) -> int:
    """The number of input channels."""
    width = given.get("d_model", getattr(layer, "d_model", None))
    if isinstance(width, int) and not isinstance(width, bool):
        return width
    name = type(layer).__name__
    found = "has no attribute d_model" if width is None else f"has d_model {width!r}, no integer"
    advice = """set it in the class, or name it in --kwargs, e.g. '{"d_model": 8}'"""
    raise UsageError(f"{name} {found}; {advice}.")
