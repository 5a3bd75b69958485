"""`resolvent reduce`: a smaller model from a trained one, and their comparison."""

from __future__ import annotations

import time
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from resolvent.commands.attack.execute import load
from resolvent.commands.reduce.options import Reduce
from resolvent.disk import write_json
from resolvent.models import Model, TwoTower, save_model
from resolvent.predictor.reduction import CannotReduce, reduce_model
from resolvent.predictor.samples import samples_of
from resolvent.predictor.saved import preprocess_in
from resolvent.training.measure import score
from resolvent.usage.destination import require_writable
from resolvent.usage.error import UsageError

RECORD = "reduction.json"
ROWS, REPEATS = 256, 3


def run(request: Reduce) -> int:
    """Print the reduction; 1 if there is none. User errors are UsageErrors."""
    console = Console(soft_wrap=True, highlight=False)
    out = request.run / "reduced" if request.out is None else request.out
    if request.samples is not None and request.samples < 1:
        raise UsageError(f"--samples must be at least 1, got {request.samples}; leave it out for all of them.")
    require_writable(out / RECORD, "--out")
    model = load(str(request.run), "{}", request.checkpoint)
    if not isinstance(model, Model | TwoTower):
        raise UsageError(f"reduce needs a model of this library, got {type(model).__name__}.")
    try:
        small, found = reduce_model(model.eval(), request.error)
    except CannotReduce as nothing:
        console.print(str(nothing))
        return 1
    except ValueError as wrong:
        raise UsageError(str(wrong)) from wrong
    data = [part[: request.samples] for part in samples_of(request.run, None, None, request.checkpoint).data]
    before, after = (_measure(each, data) for each in (model, small.eval()))
    apart = float((after["outputs"] - before["outputs"]).abs().max())
    console.print(str(found))
    unit = "squared error" if data[1].is_floating_point() else "accuracy"
    console.print(
        f"{unit} {abs(before['score']):.4g} -> {abs(after['score']):.4g} on {len(data[1])} samples; outputs of the "
        f"model move by up to {apart:.3g}; a pass takes {before['seconds']:.3g} s -> {after['seconds']:.3g} s"
    )
    save_model(small, out, preprocess_in(request.run, request.checkpoint))
    record = {"score": [before["score"], after["score"]], "seconds": [before["seconds"], after["seconds"]]}
    write_json(out / RECORD, found.to_dict() | record | {"largest_change": apart, "samples": len(data[1])})
    console.print(f"saved: {out}")
    return 0


@torch.no_grad()
def _measure(model: Model | TwoTower, data: list[Tensor]) -> dict[str, Any]:
    """Outputs, score, and the fastest of a few passes over all samples."""
    own = next(p.dtype for p in model.parameters() if p.is_floating_point())
    x, y, *lengths = data
    x = x.to(own) if x.is_floating_point() else x
    seconds = []
    with model.frozen():
        for _ in range(REPEATS):
            begun = time.perf_counter()
            parts = torch.arange(len(x)).split(ROWS)
            outputs = torch.cat([model(x[part], *(n[part] for n in lengths)) for part in parts])
            seconds.append(time.perf_counter() - begun)
    return {"outputs": outputs.double(), "score": float(score(outputs, y).double().mean()), "seconds": min(seconds)}
