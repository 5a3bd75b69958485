"""`resolvent bench RUN`: timing a trained model on this machine, from raw data to predictions."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from resolvent.commands.bench.options import Bench
from resolvent.commands.predict.execute import read_samples
from resolvent.data.preparation.like import Raw
from resolvent.disk import write_json
from resolvent.experiments.provenance import provenance
from resolvent.models import Model
from resolvent.predictor.predictor import Predictor, load
from resolvent.predictor.samples import samples_of
from resolvent.timing.measure import median_ms, wait_for
from resolvent.usage.destination import require_writable
from resolvent.usage.device import require_device
from resolvent.usage.error import UsageError

BUDGET_S = 1.5  # seconds of repeated calls


def run(request: Bench) -> int:
    """0 when measured. User errors are UsageErrors."""
    console = Console(soft_wrap=True, highlight=False)
    if request.layer is not None:
        raise UsageError("--layer times a layer of its own; leave it out with the folder of a run.")
    if request.threads is not None and request.threads < 1:
        raise UsageError(f"--threads must be at least 1, got {request.threads}.")
    if request.json is not None:
        require_writable(request.json, "--json")
    device, before = require_device(request.device), torch.get_num_threads()
    torch.set_num_threads(request.threads or before)
    try:
        with console.status("measuring"):
            found = measure(request, device)
    except (ValueError, TypeError, OSError, ImportError) as wrong:
        raise UsageError(str(wrong).removeprefix("load: ").removeprefix("from_file: ")) from wrong
    finally:
        torch.set_num_threads(before)
    show(found, console)
    if request.json is not None:
        write_json(request.json, {"versions": provenance(device), "date": time.strftime("%Y-%m-%d")} | found)
        console.print(f"record: {request.json}")
    return 0


def measure(request: Bench, device: torch.device) -> dict[str, Any]:
    """Milliseconds of each task, with its data; None where it does not apply to the model."""
    assert request.run is not None
    made = load(request.run, device=device, missing=request.new.missing if request.data else None)
    read = _reader(request, made)
    raw = read()
    one = Raw(raw.x[:1], lengths=None if raw.lengths is None else raw.lengths[:1])

    def timed(work: Callable[[], object]) -> float:
        return median_ms(wait_for(work, device), BUDGET_S)

    return {
        "samples": len(raw),
        "steps": raw.x.shape[-1] if made.preprocess.inputs is None else raw.x.shape[1],
        "threads": torch.get_num_threads(),
        "device": str(device),
        "read_ms": None if request.data is None else timed(read),
        "answer_ms": timed(lambda: made.outputs(raw)),
        "one_ms": timed(lambda: made.outputs(one)),
        "step_ms": _step_ms(made, raw, timed),
        "gradient_ms": _gradient_ms(made, raw, timed),
    }


def _reader(request: Bench, made: Predictor) -> Callable[[], Raw]:
    """Reads the file each time; the run's own samples are in memory."""
    data = request.data
    if data is not None:
        return lambda: read_samples(made, data, request.new.label, request.new.reading().header)
    assert request.run is not None
    own = samples_of(request.run)
    return lambda: Raw(own.x, own.y, own.lengths)


def _step_ms(made: Predictor, raw: Raw, timed: Callable[[Callable[[], object]], float]) -> float | None:
    """One step of one stream, as a server runs it; None if a model needs the whole sequence."""
    if not isinstance(made.model, Model):
        return None
    x_t = raw.x[:1, 0].to(next(made.model.parameters()).device)
    with torch.no_grad(), made.model.frozen():
        model = made.model
        try:
            state = model.initial_state(1)
        except ValueError:  # bidirectional layers cannot stream
            return None
        return timed(lambda: model.step(x_t, state))


def _gradient_ms(made: Predictor, raw: Raw, timed: Callable[[Callable[[], object]], float]) -> float | None:
    """Forward and backward to the input for all samples: one attack step. Tokens have no gradient."""
    if not raw.x.is_floating_point():
        return None
    first = next(p for p in made.model.parameters() if p.is_floating_point())
    x = raw.x.to(first.device, first.dtype).requires_grad_()
    lengths = None if raw.lengths is None else raw.lengths.to(first.device)

    def work() -> tuple[Tensor, ...]:
        return torch.autograd.grad(made.model(x, lengths).square().sum(), x)

    with made.model.frozen():
        return timed(work)


def show(found: dict[str, Any], console: Console) -> None:
    n = found["samples"]
    threads = f"{found['threads']} {'thread' if found['threads'] == 1 else 'threads'}"
    console.print(f"{n} samples of up to {found['steps']} steps, {found['device']}, {threads}; milliseconds")
    rows = {
        "reading and preprocessing the file": found["read_ms"],
        f"answering all {n}": found["answer_ms"],
        "answering one": found["one_ms"],
        "one step of a stream": found["step_ms"],
        f"one step of an attack on all {n} (forward, backward to the input)": found["gradient_ms"],
    }
    width = max(map(len, rows))
    for name, value in rows.items():
        console.print(f"  {name:<{width}}  {'-' if value is None else f'{value:.3f}':>10}")
    console.print(f"{1e3 * n / found['answer_ms']:,.0f} samples a second")
