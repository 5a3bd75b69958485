"""The measuring process: python -m resolvent.timing.work CASE ours|plain, which prints JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from resolvent import layers
from resolvent.layers import Layer
from resolvent.timing.case import Case, Figures
from resolvent.timing.measure import copy_rate, median_ms, peak_extra_mb, wait_for
from resolvent.timing.plain import plain

SHORT = 128  # steps of a warm-up pass that loads and compiles
COMPARED = 300  # steps on which values are compared
BUDGET_S = 1.5  # seconds of repeated calls

Call = Callable[[Tensor], Tensor]


def main(case: Case, way: str) -> dict[str, Any]:
    """Memory first, before later work allocates it; then times, then the comparison."""
    if case.threads is not None:
        torch.set_num_threads(case.threads)
    device = torch.device(case.device)
    layer = build(case).to(device)
    call: Call = (lambda x: layer(x)[0]) if way == "ours" else plain(layer)
    differentiate(call, layer, sample(case, min(SHORT, case.length)))
    figures = figures_of(case, layer, call, streams=way == "ours")
    if way != "ours":
        return {"figures": asdict(figures)}
    moved = 2 * case.batch * case.length * case.d_model * 4  # bytes of x and y
    return {"figures": asdict(figures), "error": error(case, layer), "floor_ms": 1e3 * moved / copy_rate(device)}


def build(case: Case) -> Layer:
    """The layer with its own defaults and fixed random parameters."""
    torch.manual_seed(0)
    states = {} if case.d_state is None else {"d_state": case.d_state}
    made: Layer = getattr(layers, case.layer)(case.d_model, **states)
    return made


def sample(case: Case, length: int) -> Tensor:
    g = torch.Generator().manual_seed(1)
    return torch.randn(case.batch, length, case.d_model, generator=g).to(case.device).requires_grad_()


def figures_of(case: Case, layer: Layer, call: Call, streams: bool) -> Figures:
    device, x = torch.device(case.device), sample(case, case.length)
    memory = peak_extra_mb(lambda: differentiate(call, layer, x), device)
    with torch.no_grad():
        forward = median_ms(wait_for(lambda: call(x), device), BUDGET_S)
    backward = median_ms(wait_for(lambda: differentiate(call, layer, x), device), BUDGET_S)
    return Figures(forward, backward, step_ms(layer, x) if streams else None, memory)


def differentiate(call: Call, layer: Layer, x: Tensor) -> object:
    """A forward and a backward pass to the input and every parameter."""
    leaves = [x, *(p for p in layer.parameters() if p.requires_grad)]
    return torch.autograd.grad(call(x).square().sum(), leaves, allow_unused=True)


def step_ms(layer: Layer, x: Tensor) -> float:
    """One streaming step inside `frozen()`, as a server would run it."""
    x_t = x.detach()[:, 0].contiguous()
    with layer.frozen(), torch.no_grad():
        _, state = layer.step(x_t)
        return median_ms(wait_for(lambda: layer.step(x_t, state), x.device), BUDGET_S / 5)


@torch.no_grad()
def error(case: Case, layer: Layer) -> float:
    x = sample(case, min(COMPARED, case.length)).detach()
    truth = plain(layer.double())(x.double())
    return float((layer.float()(x)[0].double() - truth).abs().max() / truth.abs().max())


if __name__ == "__main__":
    print(json.dumps(main(Case(**json.loads(sys.argv[1])), sys.argv[2])))
