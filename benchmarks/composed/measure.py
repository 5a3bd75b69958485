"""What is measured of one stack: its distance from float64, steps in turns, memory, calls and kernels, first call."""

from __future__ import annotations

import gc
import resource
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.composed.modules import Contender, Stack, truth
from benchmarks.gpu.case import clock, synchronise

LIMIT = {torch.bfloat16: 3e-2, torch.float32: 1e-4}  # of values and gradients against float64, relative, by norm
SETTLED = 6  # steps after which whatever is recorded has been: its memory is counted, what recording took is not
TURN_MS = 60.0  # a turn holds as many runs as fit, and no fewer than three


@dataclass(frozen=True)
class Setting:
    """Shape (b, l, d), device, and the dtype of autocast; None runs in float32."""

    shape: tuple[int, int, int]
    device: torch.device
    autocast: torch.dtype | None

    def precision(self) -> Any:
        return torch.autocast(self.device.type, self.autocast or torch.bfloat16, enabled=self.autocast is not None)

    def batch(self) -> tuple[Tensor, Tensor]:
        made = torch.Generator().manual_seed(1)
        x, target = (torch.randn(*self.shape, generator=made) for _ in range(2))
        return x.to(self.device), target.to(self.device)


class Work:
    """One contender at one setting: `step` trains once, `forward` only runs."""

    def __init__(self, model: Stack, setting: Setting, batch: tuple[Tensor, Tensor], *, compiled: Any = None) -> None:
        self.run: Callable[[Tensor], Tensor] = model if compiled is None else compiled
        self.setting, (self.x, self.target) = setting, batch
        quick = {"fused": True} if setting.device.type == "cuda" else {"foreach": True}
        self.optimiser = torch.optim.AdamW(model.parameters(), lr=1e-6, **quick)
        self.took: dict[str, list[float]] = {"step": [], "forward": []}

    def step(self) -> None:
        with self.setting.precision():
            loss = F.mse_loss(self.run(self.x).float(), self.target)
        loss.backward()
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)

    def forward(self) -> None:
        with torch.no_grad(), self.setting.precision():
            self.run(self.x)

    def turn(self) -> None:
        """One median of each, of runs that fit into a turn."""
        for name, work in (("step", self.step), ("forward", self.forward)):
            first = clock(work, self.setting.device)
            count = max(2, min(20, int(TURN_MS / max(first, 1e-3))))
            times = [first, *(clock(work, self.setting.device) for _ in range(count))]
            self.took[name].append(statistics.median(times))

    def told(self) -> dict[str, float]:
        """The least of its turns' medians: what others do on the machine only adds."""
        return {f"{name}_ms": round(min(took), 3) for name, took in self.took.items()}


# -- right first -------------------------------------------------------------------------------------------------------


def distances(contender: Contender, model: Stack, setting: Setting) -> dict[str, float]:
    """‖got − want‖ / ‖want‖ of values, input gradients and parameter gradients, on two sequences of the full length."""
    x, target = (t[:2] for t in setting.batch())
    want = _gradients(truth(contender, model), x.double(), target.double(), None)
    got = _gradients(model, x, target, setting)
    model.zero_grad(set_to_none=True)
    return {name: _distance(g, w) for name, g, w in zip(("values", "inputs", "parameters"), got, want, strict=True)}


def _gradients(model: nn.Module, x: Tensor, target: Tensor, setting: Setting | None) -> list[Tensor]:
    x = x.clone().requires_grad_()
    if setting is None:
        y = model(x)
    else:
        with setting.precision():
            y = model(x)
    F.mse_loss(y.to(target.dtype), target, reduction="sum").backward()
    assert x.grad is not None
    named = sorted(model.named_parameters())  # the naive twin's come in another order
    slopes = [torch.zeros_like(p) if p.grad is None else p.grad for _, p in named]
    return [y.detach(), x.grad, torch.cat([g.flatten().double() for g in slopes])]


def _distance(got: Tensor, want: Tensor) -> float:
    return float((got.double() - want.double()).norm() / want.double().norm())


def refusal(found: dict[str, float], setting: Setting, ours: bool = True) -> str | None:
    """A rival may lose ten times as many digits: its users have its speed with its error, which stands beside it."""
    most = LIMIT[setting.autocast or torch.float32] * (1 if ours else 10)
    far = [f"{name} differ by {error:.1e}, allowed {most:.0e}" for name, error in found.items() if not error <= most]
    return f"{'; '.join(far)}: no speed is told" if far else None


# -- memory, calls, kernels --------------------------------------------------------------------------------------------


def peak_gb(work: Work) -> float | None:
    """The most that a step allocates beyond what lay there before the first; None on a CPU."""
    if work.setting.device.type != "cuda":
        return None
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    for _ in range(SETTLED):
        work.step()
    torch.cuda.reset_peak_memory_stats()
    work.step()
    torch.cuda.synchronize()
    return round((torch.cuda.max_memory_allocated() - before) / 1e9, 3)


def calls(work: Work, which: str) -> dict[str, Any]:
    """Of one run: torch's calls, and on a GPU its kernels, how long they took, and the longest of them."""
    from torch.profiler import ProfilerActivity, profile

    on_gpu = work.setting.device.type == "cuda"
    run = getattr(work, which)
    run()
    synchronise(work.setting.device)
    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]) as seen:
        run()
        synchronise(work.setting.device)
    averages = seen.key_averages()
    record: dict[str, Any] = {"torch": sum(e.count for e in averages if e.key.startswith(("aten::", "resolvent::")))}
    if on_gpu:
        kernels = [e for e in averages if e.device_type == torch.autograd.DeviceType.CUDA]
        record["kernels"] = sum(e.count for e in kernels)
        record["busy_ms"] = round(sum(e.self_device_time_total for e in kernels) / 1e3, 3)
        longest = sorted(kernels, key=lambda e: -e.self_device_time_total)[:6]
        record["longest"] = [[e.key[:60], e.count, round(e.self_device_time_total / 1e3, 3)] for e in longest]
    return record


# -- compiled ----------------------------------------------------------------------------------------------------------


@dataclass
class FirstCall:
    """`nodes`: of each graph that was compiled, forward and backward."""

    wall_s: float = 0.0
    cpu_s: float = 0.0
    nodes: list[int] = field(default_factory=list)


def compile_stack(
    model: Stack, setting: Setting, batch: tuple[Tensor, Tensor], mode: str = "default"
) -> tuple[Work, FirstCall]:
    """The compiled stack after its first training step, and what that took; no cache of earlier runs is used.

    Nodes are counted in the default mode alone.
    """
    import torch._inductor.config as inductor
    from torch._inductor.compile_fx import compile_fx, compile_fx_inner

    seen = FirstCall()

    def count(graph: Any, *args: Any, **kwargs: Any) -> Any:
        seen.nodes.append(len(graph.graph.nodes))
        return compile_fx_inner(graph, *args, **kwargs)

    inductor.force_disable_caches = True
    how: Any = {"mode": mode} if mode != "default" else {"backend": partial(compile_fx, inner_compile=count)}
    compiled = torch.compile(_own_code(model), fullgraph=True, **how)
    work = Work(model, setting, batch, compiled=compiled)
    wall, cpu = time.perf_counter(), _cpu_seconds()
    work.step()
    synchronise(setting.device)
    seen.wall_s, seen.cpu_s = round(time.perf_counter() - wall, 1), round(_cpu_seconds() - cpu, 1)
    return work, seen


def _own_code(model: Stack) -> Callable[[Tensor], Tensor]:
    """model(x) in a code object of its own: what a compiler keeps for one contender is no part of another's calls."""

    def run(x: Tensor) -> Tensor:
        y: Tensor = model(x)
        return y

    return FunctionType(run.__code__.replace(), run.__globals__, run.__name__, None, run.__closure__)


def _cpu_seconds() -> float:
    """Of this process, and of compilers that it has called."""
    own, others = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + others.ru_utime + others.ru_stime


# -- streams -----------------------------------------------------------------------------------------------------------


def streaming_ms(layer: Any, device: torch.device, d: int, count: int, turns: int) -> float:
    """One step of a single sequence in `frozen()`, the least of several turns."""
    x = torch.randn(1, d, device=device)
    took = []
    with torch.no_grad(), layer.frozen():
        state = layer.initial_state(1)

        def run() -> None:
            nonlocal state
            for _ in range(count):
                _, state = layer.step(x, state)

        run()
        took = [clock(run, device) / count for _ in range(turns)]
    return round(min(took), 5)


def in_turns(works: Sequence[Work], turns: int) -> None:
    for _ in range(turns):
        for work in works:
            work.turn()
