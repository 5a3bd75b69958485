"""The PGD-10 training step on a CPU: two S4D layers, b = l = d = 64; eager torch, our modules, our lowered form.

Beside it the floor: the products of eleven passes over two layers, each forward and adjoint, of which the convolutions
need their causal half, and those of the parameters' gradients, at the rate of a large product in the same run.

    python -m benchmarks.cpu.step [--threads 2] [--repeats 7] [--out benchmarks/results/step.json]

Values and gradients of all three are compared in float64 first. Medians, milliseconds; needs a quiet machine.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.about import about, processor
from benchmarks.eager import Eager
from resolvent.attacks import Draws, Threat
from resolvent.lowering import lowered
from resolvent.models import build_model
from resolvent.models.config import ResidualConfig
from resolvent.models.layer_config import S4DConfig
from resolvent.models.presets import robustness
from resolvent.training import pgd_at
from resolvent.training.step.batch import Batch, criterion

b = l = d = 64


class Modules(nn.Module):
    """The same model through its modules, never in the lowered form."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.frozen = model, model.frozen

    def forward(self, x: Tensor) -> Tensor:
        return self.model.from_embedding(self.model.embed(x))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--repeats", type=int, default=7)
    options.add_argument("--out", type=Path, default=None)
    settings = options.parse_args()
    torch.set_num_threads(settings.threads)
    torch.manual_seed(0)
    block = ResidualConfig(S4DConfig(64), "linear", "none", final_activation="none")
    model = build_model(replace(robustness("s4", "mnist"), d_model=d, layers=2, block=block))
    ways: dict[str, Callable[[nn.Module], nn.Module]] = {
        "eager": Eager,
        "modules": Modules,
        "lowered": lambda model: model,
    }
    _check(model, ways)
    report = {name: _time(way(copy.deepcopy(model)), settings.repeats) for name, way in ways.items()}
    report["floor"] = _floor()
    for name, ms in report.items():
        print(f"{name:8} {ms:7.1f} ms")
    if settings.out is not None:
        record = about(processor(settings.threads)) | {"ms": report}
        settings.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def _check(model: nn.Module, ways: dict[str, Callable[[nn.Module], nn.Module]]) -> None:
    """Logits and gradients of every way in float64; raises where they differ."""
    wide = copy.deepcopy(model).double()
    batch = _batch(torch.float64)
    assert lowered.serving(wide, batch.x, None) is not None
    found = {}
    for name, way in ways.items():
        x = batch.x.clone().requires_grad_()
        output = way(wide)(x)
        inputs = [x, *wide.parameters()]
        found[name] = [output, *torch.autograd.grad(criterion(output, batch.y).sum(), inputs)]
    for name, values in found.items():
        for got, want in zip(values, found["eager"], strict=True):
            error = float(((got - want).abs().max() / want.abs().max()).detach())
            if not error < 1e-9:
                raise SystemExit(f"{name} differs from eager by {error:.1e}: no time is told")


def _floor() -> float:
    """Milliseconds of the products alone."""
    x, times = torch.rand(1024, 1024), []
    for _ in range(10):
        start = time.perf_counter()
        torch.mm(x, x)
        times.append(time.perf_counter() - start)
    rate = 2 * 1024**3 / min(times)  # operations a second
    product = 2 * b * d * l * (d + l / 2)  # a map and a convolution
    return 1e3 * 2 * (11 * 2 + 1) * product / rate  # two layers; each way, and once for the parameters


def _batch(dtype: torch.dtype) -> Batch:
    g = torch.Generator().manual_seed(1)
    x, y = torch.rand(b, l, 1, generator=g, dtype=dtype), torch.randint(0, 10, (b,), generator=g)
    return Batch(x, y, None, Draws(0, torch.arange(b)))


def _time(model: nn.Module, repeats: int) -> float:
    batch, objective = _batch(torch.float32), pgd_at(Threat("linf", 0.1, (0, 1)), steps=10)
    optimiser = torch.optim.AdamW(model.parameters(), 1e-3, fused=True)

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        objective(model, batch).value.backward()
        optimiser.step()

    step()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        step()
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times)


if __name__ == "__main__":
    main()
