"""The adversarial training step on a GPU: ours and the straightforward eager FFT version, checked, then timed.

    python benchmarks/gpu_step.py --out benchmarks/results/gpu_step.json [--rows s4d s4 dss s5 mamba mega] [--profile]

One step is PGD-10 on one batch, the loss, its gradients and AdamW: b = 256, l = 1024, d = 128, four blocks of the study
of deep SSMs under adversarial training. Values, input and parameter gradients are compared with float64 first; a row
that disagrees gets no time. Medians of `--repeats` steps after a warm-up, everything in one process. Rows that the
output holds already and that are not asked for stay in it, each with its own commit and command.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from eager import Eager
from resolvent.attacks import Draws, Threat
from resolvent.models import build_model
from resolvent.models.config import AdSConfig, ResidualConfig
from resolvent.models.layer_config import S4DConfig, S5Config
from resolvent.models.presets import robustness
from resolvent.training import pgd_at
from resolvent.training.batch import Batch
from resolvent.training.criterion import criterion

b, l, STEPS = 256, 1024, 10
LIMIT = 2e-2  # of bf16 against float64, ‖got − want‖ / ‖want‖
DAY = {"s4d": 234.0, "s4": 234.0, "dss": 234.0, "s5": 500.0, "mamba": 689.0, "mega": 1332.0}  # ms to beat
GOAL = {"s4d": 25.0, "s4": 25.0, "dss": 25.0, "s5": 45.0, "mamba": 200.0, "mega": 250.0}
SHAPE = {"b": b, "l": l, "d": 128, "blocks": 4, "steps": STEPS}
LTI = ("s4d", "s4", "dss", "s4 gelu", "s4 ads")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--out", type=Path, required=True)
    options.add_argument("--rows", nargs="*", default=[*LTI, "s5", "mamba", "mega"])
    options.add_argument("--repeats", type=int, default=9)
    options.add_argument("--profile", action="store_true", help="add the kernels of one of our steps, by time")
    options.add_argument("--commit", default="", help="of the measured tree, where git cannot tell")
    settings = options.parse_args()
    here, rows = _about(settings.commit), _held(settings.out)
    for name in settings.rows:
        try:
            row = _row(name, settings)
        except (RuntimeError, ValueError) as error:  # out of memory among them: the other rows still count
            row = {"error": str(error).splitlines()[0]}
        rows[name] = row | {"run": here}
        settings.out.write_text(json.dumps({"shape": SHAPE, "rows": rows}, indent=1) + "\n", encoding="utf-8")
        _tell(name, row)
        torch.cuda.empty_cache()


def _about(commit: str) -> dict[str, Any]:
    asked = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return {
        "device": torch.cuda.get_device_name(),
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit or asked.stdout.strip(),
        "command": "python benchmarks/gpu_step.py " + " ".join(sys.argv[1:]),
        "torch": torch.__version__,
        "copy_TB_s": round(_copy_rate(), 2),
        "bf16_TFLOP_s": round(_matrix_rate(), 0),
    }


def _held(out: Path) -> dict[str, Any]:
    """The rows of an earlier run, each with what it says of that run."""
    if not out.exists():
        return {}
    report = json.loads(out.read_text(encoding="utf-8"))
    rows = report.pop("rows")
    shared = {key: value for key, value in report.items() if key != "shape"}
    return {name: {"run": shared} | row for name, row in rows.items()}


def _row(name: str, settings: argparse.Namespace) -> dict[str, Any]:
    model = _model(name).cuda()
    row: dict[str, Any] = {"to_beat_ms": DAY.get(name.split()[0]), "goal_ms": GOAL.get(name.split()[0])}
    row["errors"] = _errors(model, name)
    worst = max(row["errors"].values())
    if not worst <= LIMIT:
        return row | {"error": f"differs from float64 by {worst:.1e}, allowed {LIMIT}: no speed is told"}
    if name in LTI:
        row |= {f"eager_{key}": v for key, v in _timed(Eager(copy.deepcopy(model)), 3, half=False).items()}
        row["floor_ms"] = round(_floor(), 1)
    else:
        row |= {f"modules_{key}": v for key, v in _timed(Modules(model), 1, half=True).items()}
        torch.cuda.empty_cache()
    row |= _timed(model, settings.repeats, half=True)
    if settings.profile:
        row["kernels"] = _kernels(model)
    return row


class Modules(nn.Module):
    """The model's modules one by one, without its lowered form and without a recording."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model.from_embedding(self.model.embed(x))  # type: ignore[operator]
        return logits

    def frozen(self) -> Any:
        return self.model.frozen()  # type: ignore[operator]


def _model(name: str) -> nn.Module:
    torch.manual_seed(0)
    kind, *more = name.split()
    config = robustness("s4" if kind == "s4d" else kind)  # type: ignore[arg-type]
    if kind == "s4d":
        config = replace(config, block=ResidualConfig(S4DConfig(64), "linear", "none", final_activation="none"))
    if kind == "s5":  # conjugate halves: 64 complex states
        config = replace(config, block=ResidualConfig(S5Config(128), "none", "none"))
    if "gelu" in more:
        config = robustness(kind, activation="gelu")  # type: ignore[arg-type]
    if "ads" in more:
        config = replace(config, ads=AdSConfig("relu", False))
    return build_model(config)


def _batch(rows: int, length: int = l) -> Batch:
    g = torch.Generator().manual_seed(1)
    x, y = torch.rand(rows, length, 3, generator=g), torch.randint(0, 10, (rows,), generator=g)
    return Batch(x.cuda(), y.cuda(), None, Draws(0, torch.arange(rows, device="cuda")))


def _errors(model: nn.Module, name: str) -> dict[str, float]:
    """Logits, input and parameter gradients in bf16 against the modules in float64, as ‖difference‖ / ‖truth‖."""
    lti = name in LTI
    batch = _batch(1, 257) if name in ("mamba", "mega") else _batch(8)  # their float64 modules are slow
    want = _gradients(copy.deepcopy(model).double(), batch.x.double(), batch.y)
    with torch.autocast("cuda", torch.bfloat16):
        got = _gradients(model, batch.x, batch.y)
    with torch.autocast("cuda", torch.bfloat16), model.frozen():
        x = batch.x.clone().requires_grad_()
        frozen = torch.autograd.grad(criterion(model(x).float(), batch.y).sum(), x)[0]
    found = {key: _distance(got[key], want[key]) for key in ("logits", "x")}
    found["x, frozen"] = _distance(frozen, want["x"])
    names = [key for key in want if key not in found]
    found["parameters"] = _distance(*(torch.cat([g[n].flatten().double() for n in names]) for g in (got, want)))
    if lti:
        eager = _gradients(Eager(copy.deepcopy(model)), batch.x, batch.y)
        found |= {f"eager {key}": _distance(eager[key], want[key]) for key in ("logits", "x")}
    worst = max(names, key=lambda n: _distance(got[n], want[n]))
    print(f"    worst parameter gradient: {worst} {_distance(got[worst], want[worst]):.1e}")
    return found


def _gradients(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    x = x.clone().requires_grad_()
    own = model.model if isinstance(model, Eager) else model
    named = dict(own.named_parameters())
    logits = model(x)
    found = torch.autograd.grad(criterion(logits.double(), y).sum(), [x, *named.values()], allow_unused=True)
    found = [torch.zeros_like(t) if g is None else g for g, t in zip(found, [x, *named.values()], strict=True)]
    return {"logits": logits.detach(), "x": found[0], **dict(zip(named, found[1:], strict=True))}


def _distance(got: Tensor, want: Tensor) -> float:
    return float((got.double() - want.double()).norm() / want.double().norm())


def _timed(model: nn.Module, repeats: int, half: bool) -> dict[str, float]:
    batch, objective = _batch(b), pgd_at(Threat("linf", 8 / 255, (0, 1)), steps=STEPS)
    optimiser = torch.optim.AdamW(model.parameters(), 1e-3)

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16, enabled=half):
            loss = objective(model, batch)
        loss.value.backward()
        optimiser.step()

    torch.cuda.reset_peak_memory_stats()
    for _ in range(3):  # the second one records, the third one replays
        step()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated()
    times = [_clock(step) for _ in range(repeats)]
    with torch.autocast("cuda", torch.bfloat16, enabled=half):
        loss_ms = statistics.median(_clock(lambda: objective(model, batch)) for _ in range(3))
    return {
        "loss_ms": round(loss_ms, 2),
        "step_ms": round(statistics.median(times), 2),
        "least_ms": round(min(times), 2),
        "most_ms": round(max(times), 2),
        "peak_GB": round(peak / 1e9, 2),
    }


def _clock(work: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - start)


def _floor() -> float:
    """ms: 44 convolutions and 44 adjoints of half a square product each, and the passes over memory they cannot share.

    Per block and pass forward reads y and the skip and writes out and its normal form, backward the same number; each
    convolution reads and writes once; the training pass adds the kernel gradients.
    """
    d = 128
    flops = (4 * 11 * 2 + 4) * d * b * l * l
    moved = (4 * 11 * 2 * (4 + 2) + 4 * 4) * d * b * l * 2
    return 1e3 * (flops / (_matrix_rate() * 1e12) + moved / (_copy_rate() * 1e12))


def _copy_rate() -> float:
    source = torch.randn(1 << 30, device="cuda")
    target = torch.empty_like(source)
    ms = statistics.median(_clock(lambda: target.copy_(source)) for _ in range(5))
    return 8 * source.numel() / ms / 1e9


def _matrix_rate() -> float:
    left, right = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    ms = statistics.median(_clock(lambda: left @ right) for _ in range(8))
    return 2 * 8192**3 / ms / 1e9


def _kernels(model: nn.Module) -> list[str]:
    batch, objective = _batch(b), pgd_at(Threat("linf", 8 / 255, (0, 1)), steps=STEPS)
    with torch.autocast("cuda", torch.bfloat16):
        for _ in range(3):
            objective(model, batch).value.backward()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
            objective(model, batch).value.backward()
            torch.cuda.synchronize()
    rows = sorted(seen.key_averages(), key=lambda e: -e.self_device_time_total)
    total = sum(e.self_device_time_total for e in rows) / 1e3
    told = [f"{e.self_device_time_total / 1e3:9.3f} ms {e.count:6d} x {e.key[:90]}" for e in rows[:25]]
    return [f"{total:9.3f} ms {sum(e.count for e in rows):6d} x kernels in all", *told]


def _tell(name: str, row: dict[str, Any]) -> None:
    if "error" in row:
        print(f"{name:8} {row['error']}  {row.get('errors', '')}", flush=True)
        return
    kind, floor = ("eager" if "eager_step_ms" in row else "modules"), row.get("floor_ms")
    other = row[f"{kind}_step_ms"]
    beside = f" {kind} {other:.0f} ms ({other / row['step_ms']:.1f}x), {row[f'{kind}_peak_GB']} GB"
    share = f", {100 * floor / row['step_ms']:.0f} % of the floor's speed" if floor else ""
    print(f"{name:8} {row['step_ms']:8.2f} ms (goal {row['goal_ms']}){share}, {row['peak_GB']} GB;{beside}", flush=True)
    for line in row.get("kernels", []):
        print("   ", line)


if __name__ == "__main__":
    main()
