"""What benchmarks/gpu.py measures: cases, what each of their numbers costs at least, and the clock.

A case is one piece of work with several contenders, ours first. Each contender is compared with float64 before it is
timed; what a number costs at least is a list of kernels, each with its bytes, products and exponentials.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

OURS, EAGER = "ours", "eager"
BRIEF, LONG = 50.0, 2000.0  # ms: below the first more runs are timed, above the second one is enough


@dataclass(frozen=True)
class Cost:
    """The least that one kernel moves and computes; `times` of them run one after another."""

    bytes: float = 0.0
    flops: float = 0.0
    exponentials: float = 0.0
    times: float = 1.0


@dataclass(frozen=True)
class Ceilings:
    """What the device reached in this run, each with nothing else to do."""

    bytes_per_s: float  # of a copy, read plus written
    flops_per_s: float  # of a large bf16 product
    exponentials_per_s: float

    def floor(self, costs: Sequence[Cost]) -> float:
        """ms: kernels one after another, each as slow as the scarcest thing that it needs."""
        return 1e3 * sum(
            c.times
            * max(c.bytes / self.bytes_per_s, c.flops / self.flops_per_s, c.exponentials / self.exponentials_per_s)
            for c in costs
        )


@dataclass(frozen=True)
class Timing:
    """One number of a case.

    kind    "forward": no gradients wanted; "saving": with what a backward pass needs; "backward"; "step"
    items   samples of one run, where the rate is told in samples a second and not in bytes
    rival   how the names of those begin that ours must not be slower than in the same run; `target_ms` counts where
            none is there
    quoted  what somebody else's code took elsewhere: never of this run
    wanted  which inputs a backward pass differentiates; all unless told
    """

    name: str
    kind: str
    costs: tuple[Cost, ...]
    target_ms: float | None = None
    quoted: str = ""
    items: int | None = None
    wanted: tuple[int, ...] | None = None
    rival: str = ""

    def rate(self, ms: float) -> str:
        if self.items is not None:
            return f"{1e3 * self.items / ms:.0f} samples/s"
        return f"{sum(c.times * c.bytes for c in self.costs) / ms * 1e-9:.2f} TB/s"


@dataclass(frozen=True)
class Measured:
    ms: float
    peak_gb: float | None  # beyond what lay there before; None on a CPU


class Contender(Protocol):
    """`ahead`: whether it has kernels that are compiled on first use."""

    @property
    def name(self) -> str: ...

    @property
    def ahead(self) -> bool: ...


class Case(Protocol):
    """`contenders[0]` is ours; `errors` are distances from float64, `limit` what is allowed of one of them."""

    @property
    def name(self) -> str: ...

    @property
    def timings(self) -> Sequence[Timing]: ...

    @property
    def contenders(self) -> Sequence[Any]: ...

    def errors(self, contender: Any) -> dict[str, float]: ...

    def limit(self, error: str) -> float: ...

    def measured(self, contender: Any, timing: Timing) -> Measured: ...

    def once(self, contender: Any) -> None:
        """Everything that is compared or timed, once."""
        ...

    def clear(self) -> None:
        """Forget inputs, truth and models."""
        ...


def measured(
    prepare: Callable[[], Callable[[], object]], device: torch.device, *, warm: bool = True, by_host: bool = False
) -> Measured:
    """The work that `prepare` hands over, its median time and the memory that both of them take.

    Brief work on a GPU is timed by the device's clock, its cache emptied before each run, unless `by_host`: then what
    the host does in between counts.
    """
    on_gpu = device.type == "cuda"
    before = _memory_reset() if on_gpu else 0
    work = prepare()
    if warm:
        work()
    ms = clock(work, device)
    if ms < LONG:
        ms = _median(work, device, ms, by_host)
    return Measured(ms, round((torch.cuda.max_memory_allocated() - before) / 1e9, 3) if on_gpu else None)


def clock(work: Callable[[], object], device: torch.device) -> float:
    """ms of one run, by the host's clock."""
    synchronise(device)
    start = time.perf_counter()
    work()
    synchronise(device)
    return 1e3 * (time.perf_counter() - start)


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def _median(work: Callable[[], object], device: torch.device, first: float, by_host: bool) -> float:
    if device.type == "cuda" and first < BRIEF and not by_host:
        from triton.testing import do_bench

        return float(do_bench(work, warmup=50, rep=200, return_mode="median"))
    more = 8 if first < BRIEF else 2
    return statistics.median([first, *(clock(work, device) for _ in range(more))])


def _memory_reset() -> int:
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()
