"""`resolvent bench`: the requested layers, a table, a record."""

from __future__ import annotations

import inspect
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from resolvent import layers
from resolvent.commands.bench.options import Bench
from resolvent.disk import write_json
from resolvent.experiments.provenance import provenance
from resolvent.report.tables.terminal import print_parts
from resolvent.timing.case import Case, Outcome, measure_case
from resolvent.usage.destination import require_writable
from resolvent.usage.device import require_device
from resolvent.usage.error import UsageError
from resolvent.usage.load import suggestion

NAMES = ("S4", "S4D", "DSS", "EMA", "S5", "LRU", "L2RU", "S6", "RGLRU")
LARGEST_ERROR = 1e-4  # float32 against float64, relative to the largest value


def run(request: Bench) -> int:
    """0 when measured; 1 when a layer's values disagree with its plain version, whose times are then omitted."""
    console = Console(highlight=False)
    new = request.new
    given = {"data": request.data, "label": new.label, "missing": new.missing, "no-header": not new.header or None}
    for name, value in given.items():
        if value is not None:
            raise UsageError(f"--{name} needs the folder of a run before it: layers are timed on random numbers.")
    if request.json is not None:
        require_writable(request.json, "--json")
    cases = cases_of(request)
    outcomes: list[Outcome] = []
    wrong: list[Outcome] = []
    for number, case in enumerate(cases, 1):
        with console.status(f"[{number}/{len(cases)}] {case.layer}"):
            found = _measure(case)
        if not console.is_terminal:
            console.print(f"[{number}/{len(cases)}] {case.layer}", markup=False)
        (outcomes if found.error <= LARGEST_ERROR else wrong).append(found)
    show(outcomes, wrong, request, console)
    if request.json is not None:
        write_json(request.json, record(outcomes, request.device))
        console.print(f"record: {request.json}", soft_wrap=True)
    return 1 if wrong else 0


def cases_of(request: Bench) -> list[Case]:
    known = {name.lower(): name for name in NAMES}
    if request.layer is not None and request.layer.lower() not in known:
        raise UsageError(f"there is no layer {request.layer!r} to time; {suggestion(request.layer, list(NAMES))}")
    for name in ("batch", "length", "d_model", "d_state", "threads"):
        value = getattr(request, name)
        if value is not None and value < 1:
            raise UsageError(f"--{name.replace('_', '-')} must be at least 1, got {value}.")
    require_device(request.device)
    wanted = NAMES if request.layer is None else (known[request.layer.lower()],)
    shape = (request.batch, request.length, request.d_model)
    return [Case(name, *shape, _states(request, name), request.device, request.threads) for name in wanted]


def _states(request: Bench, name: str) -> int | None:
    """Only where the layer has such a choice; one layer asked for by name must have it."""
    if request.d_state is None or "d_state" in list(inspect.signature(getattr(layers, name).__init__).parameters):
        return request.d_state
    if request.layer is not None:
        raise UsageError(f"{name} has no states to choose; leave --d-state out.")
    return None


def _measure(case: Case) -> Outcome:
    try:
        return measure_case(case)
    except RuntimeError as wrong:
        raise UsageError(str(wrong)) from wrong


def show(outcomes: Sequence[Outcome], wrong: Sequence[Outcome], request: Bench, console: Console) -> None:
    shape = f"batch {request.batch}, length {request.length}, width {request.d_model}"
    console.print(f"{shape}, float32, {place(request)}; milliseconds.", soft_wrap=True)
    if outcomes:
        print_parts(list(columns(outcomes[0])), partial(table, outcomes), console)
    console.print(
        "backward: with the forward pass. step: one, inside frozen(). MB: above what is held, with backward.\n"
        "copy: the share of a copy's rate that the forward pass reaches, reading x and writing y once.\n"
        "times faster: than the same layer in plain torch operations (kernel and FFT, or a scan, or a loop).",
        soft_wrap=True,
    )
    for each in wrong:
        message = f"{each.case.layer}: its values differ from its plain version's by {each.error:.1e}; it is not timed."
        console.print(message, soft_wrap=True)


def columns(each: Outcome) -> dict[str, str]:
    """Column headings and values."""
    ours, other = each.ours, each.plain
    return {
        "forward": _ms(ours.forward_ms),
        "backward": _ms(ours.backward_ms),
        "step": _ms(ours.step_ms),
        "MB": f"{ours.extra_mb:.0f}",
        "copy": f"{each.of_copy:.0%}",
        "plain\nforward": _ms(other.forward_ms),
        "plain\nbackward": _ms(other.backward_ms),
        "plain\nMB": f"{other.extra_mb:.0f}",
        "times\nfaster": " / ".join(map(_short, each.faster)),
    }


def table(outcomes: Sequence[Outcome], heads: Sequence[str]) -> Table:
    made = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    made.add_column("layer", no_wrap=True)
    for head in heads:
        made.add_column(head, justify="right", no_wrap=True)
    for each in outcomes:
        made.add_row(each.case.layer, *(columns(each)[head] for head in heads))
    return made


def record(outcomes: Sequence[Outcome], device: str) -> dict[str, Any]:
    about = {"versions": provenance(torch.device(device)), "date": time.strftime("%Y-%m-%d")}
    return about | {"outcomes": [each.as_dict() for each in outcomes]}


def place(request: Bench) -> str:
    """A description of the machine."""
    threads = request.threads or torch.get_num_threads()
    return f"{provenance(torch.device(request.device))['device']}, {threads} {'thread' if threads == 1 else 'threads'}"


def _ms(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if value < 1 else f"{value:.2f}" if value < 10 else _short(value)


def _short(value: float) -> str:
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"
