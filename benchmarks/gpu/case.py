"""What benchmarks/gpu measures: cases, what each of their numbers costs at least, and the clock.

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

Prepare = Callable[[], Callable[[], object]]  # hands over the work that is timed
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
    ms: float  # the median of `medians`
    medians: tuple[float, ...]  # of each turn
    peak_gb: float | None  # beyond what lay there before; None on a CPU
    recorded: bool = False  # replayed as a CUDA graph


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

    def running(self, contender: Any, timing: Timing) -> Running: ...

    def once(self, contender: Any) -> None:
        """Everything that is compared or timed, once."""
        ...

    def clear(self) -> None:
        """Forget inputs, truth and models."""
        ...


class Running:
    """Work that is ready to be timed, in as many turns as are wanted: other contenders take theirs in between.

    Brief work on a GPU is timed by the device's clock, its cache emptied before each run, unless `by_host`: then what
    the host does in between counts. With `record` a GPU replays it as a CUDA graph, where it can be recorded.
    """

    def __init__(
        self, prepare: Prepare, device: torch.device, *, warm: bool = True, by_host: bool = False, record: bool = False
    ) -> None:
        on_gpu = device.type == "cuda"
        before = _memory_reset() if on_gpu else 0
        made = _recorded(prepare) if record and on_gpu else None
        self.recorded, self.device, self.by_host = made is not None, device, by_host
        self.work = prepare() if made is None else made
        if warm:
            self.work()
        self.first = clock(self.work, device)  # ms
        self.peak_gb = round((torch.cuda.max_memory_allocated() - before) / 1e9, 3) if on_gpu else None
        self.medians: list[float] = []

    def turn(self) -> None:
        """One median more; what takes long has had its one run."""
        self.medians.append(self.first if self.first >= LONG else self._median())

    def measured(self) -> Measured:
        return Measured(statistics.median(self.medians), tuple(self.medians), self.peak_gb, self.recorded)

    def _median(self) -> float:
        if self.device.type == "cuda" and self.first < BRIEF and not self.by_host:
            from triton.testing import do_bench

            return float(do_bench(self.work, warmup=25, rep=100, return_mode="median"))
        runs = 9 if self.first < BRIEF else 3
        known = [] if self.medians else [self.first]
        return statistics.median([*known, *(clock(self.work, self.device) for _ in range(runs - len(known)))])


def measured(work: Callable[[], object], device: torch.device) -> Measured:
    """`work` alone, in one turn."""
    running = Running(lambda: work, device)
    running.turn()
    return running.measured()


def _recorded(prepare: Prepare) -> Callable[[], object] | None:
    """The work as a CUDA graph, as a recorded step runs it; None where something in it cannot be recorded.

    Autograd runs a backward pass on the stream of its forward pass, so that both are made on the one that records.
    """
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    try:
        with torch.cuda.stream(stream):
            work = prepare()
            for _ in range(2):  # handles, workspaces and compiled kernels come into being outside of the graph
                work()
        torch.cuda.current_stream().wait_stream(stream)
        with torch.cuda.graph(graph, stream=stream):
            kept = work()
    except RuntimeError:
        torch.cuda.synchronize()
        return None

    def replayed() -> object:
        graph.replay()
        return kept, work  # which lie where the graph writes and reads

    return replayed


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


def _memory_reset() -> int:
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()
