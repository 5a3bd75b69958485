"""Which implementation of an operation runs here: determined once, by running it.

An operation lists its candidates, best first. The first one that accepts the device and dtype, loads, and gives the
reference's numbers on a tiny input is cached; one that fails is logged once and skipped. Another backend is one
more `Candidate` in an operation's tuple.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch

Kernel = Callable[..., Any]
BACKENDS = ("reference", "torch", "numba", "triton")
log = logging.getLogger("resolvent")


@dataclass(frozen=True)
class Candidate:
    """One way to run an operation.

    name     one of BACKENDS.
    accepts  whether it is for this device and dtype.
    load     imports what it needs and returns the kernel; may raise.
    probe    runs the kernel on a tiny input of that device and dtype and compares it with the reference; may raise.
    """

    name: str
    accepts: Callable[[torch.device, torch.dtype], bool]
    load: Callable[[], Kernel]
    probe: Callable[[Kernel, torch.device, torch.dtype], bool]


def numba_or(truth: Kernel, load: Callable[[], Kernel], probe: Callable[..., bool]) -> tuple[Candidate, ...]:
    """numba on a CPU; elsewhere, and if it fails, `truth`: torch operations, or a marker for none."""
    return Candidate("numba", _real_on_cpu, load, probe), *everywhere(truth)


def triton_or(truth: Kernel, load: Callable[[], Kernel], probe: Callable[..., bool]) -> tuple[Candidate, ...]:
    """Triton on a GPU in float32; elsewhere, and if it fails, `truth`: torch operations."""
    return Candidate("triton", float32_on_gpu, load, probe), *everywhere(truth)


def half_or(truth: Kernel, load: Callable[[], Kernel], probe: Callable[..., bool]) -> tuple[Candidate, ...]:
    """Triton on an NVIDIA GPU in bf16; elsewhere, and if it fails, `truth`."""
    return Candidate("triton", _half_on_gpu, load, probe), *everywhere(truth)


def everywhere(truth: Kernel) -> tuple[Candidate, ...]:
    """The last candidates: `truth`, without a probe."""
    always: Any = (lambda device, dtype: True), (lambda: truth), (lambda kernel, device, dtype: True)
    return tuple(Candidate(name, *always) for name in ("torch", "reference"))


def lazily(place: str, name: str = "") -> Callable[[], Any]:
    """A `load`: the module resolvent.`place`, or `name` in it, imported when tried."""

    def load() -> Any:
        module = import_module(f"resolvent.{place}")
        return getattr(module, name) if name else module

    return load


def _real_on_cpu(device: torch.device, dtype: torch.dtype) -> bool:
    return device.type == "cpu" and dtype in (torch.float32, torch.float64)


def float32_on_gpu(device: torch.device, dtype: torch.dtype) -> bool:
    """The `accepts` of Triton kernels for NVIDIA GPUs only, whose small tables are in float64."""
    return device.type == "cuda" and dtype == torch.float32 and torch.version.hip is None


def _half_on_gpu(device: torch.device, dtype: torch.dtype) -> bool:
    return device.type == "cuda" and dtype == torch.bfloat16 and torch.version.hip is None


def nothing() -> None:
    """A `truth` for `numba_or` and `half_or` recognised by the caller, which then takes its own fallback."""


_Key = tuple[str, str, str, torch.dtype]  # operation, backend, device type, dtype
_tried: dict[_Key, Kernel | str] = {}  # a kernel that works, or the reason why not
_chosen: dict[tuple[str, str, torch.dtype, str | None], Kernel] = {}
_forced: list[str] = []  # a plain stack, not a context variable: autograd's device threads must see it too


def choose(op: str, candidates: tuple[Candidate, ...], device: torch.device, dtype: torch.dtype) -> Kernel:
    """The kernel for `op` here: the forced one inside `use`, otherwise the first candidate that works."""
    forced = _forced[-1] if _forced else None
    key = (op, device.type, dtype, forced)
    kernel = _chosen.get(key)
    if kernel is None:
        kernel = _select(op, candidates, device, dtype, forced)
        if not _is_recorded(device):
            _chosen[key] = kernel
    return kernel


def available(op: str, candidates: tuple[Candidate, ...], device: torch.device, dtype: torch.dtype) -> tuple[str, ...]:
    """Names of the candidates that work here, best first."""
    return tuple(c.name for c in candidates if not isinstance(_try(op, c, device, dtype), str))


@contextmanager
def push(stack: list[Any], value: Any) -> Iterator[None]:
    """Push a value on a stack for the duration of a block; visible in the whole process."""
    stack.append(value)
    try:
        yield
    finally:
        stack.pop()


def use(name: str) -> AbstractContextManager[None]:
    """Force one backend for every operation inside the block, backward passes included.

    For tests and benchmarks. It holds for the whole process. An operation that cannot run with this backend raises a
    ValueError that lists those that can.

    Examples:
        >>> with rv.scan.use("reference"):
        ...     rv.linear_scan(torch.full((3, 1), 0.5), torch.ones(3, 1))[:, 0]
        tensor([1.0000, 1.5000, 1.7500])
    """
    if name not in BACKENDS:
        raise ValueError(f"use: expected one of {', '.join(BACKENDS)}, got {name!r}; pass one of these names.")
    return push(_forced, name)


def is_forced() -> bool:
    """Whether a backend is forced at the moment."""
    return bool(_forced)


def forget() -> None:
    """Drop every cached choice, so that the next call probes again (after installing a package, or in a test)."""
    _tried.clear()
    _chosen.clear()


def _select(
    op: str, candidates: tuple[Candidate, ...], device: torch.device, dtype: torch.dtype, forced: str | None
) -> Kernel:
    reasons = []
    for candidate in candidates:
        if forced is not None and candidate.name != forced:
            continue
        result = _try(op, candidate, device, dtype)
        if not isinstance(result, str):
            return result
        reasons.append(f"{candidate.name}: {result}")
    wanted = f"the {forced} backend" if forced else "a backend"
    why = "; ".join(reasons) or "no such implementation"
    works = ", ".join(available(op, candidates, device, dtype)) or "none"
    raise ValueError(
        f"{op}: expected {wanted} for {dtype} on {device.type}, which cannot run here ({why}); what works: {works}."
    )


def _try(op: str, candidate: Candidate, device: torch.device, dtype: torch.dtype) -> Kernel | str:
    if not candidate.accepts(device, dtype):
        return f"not made for {dtype} on {device.type}"
    key = (op, candidate.name, device.type, dtype)
    if key not in _tried and _is_recorded(device):  # a probe would break the graph and count as a failure
        return candidate.load() if candidate.name == "torch" else "a CUDA graph is being recorded; call it once before"
    if key not in _tried:
        _tried[key] = result = _attempt(candidate, device, dtype)
        if isinstance(result, str):
            log.warning("%s: skipping the %s backend for %s on %s: %s", op, candidate.name, dtype, device.type, result)
    return _tried[key]


def _is_recorded(device: torch.device) -> bool:
    """Whether a CUDA graph is being captured here, during which nothing can be compared."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def _attempt(candidate: Candidate, device: torch.device, dtype: torch.dtype) -> Kernel | str:
    """Load and probe in a separate thread: autocast, inference mode, transforms and the dispatcher's state belong to
    the caller's thread, and a cached choice must not depend on them."""
    found: list[Kernel | str] = []
    thread = threading.Thread(target=lambda: found.append(_probe(candidate, device, dtype)), name="resolvent-probe")
    thread.start()
    thread.join()
    return found[0]


def _probe(candidate: Candidate, device: torch.device, dtype: torch.dtype) -> Kernel | str:
    own: Any = torch._C
    allowed = own._get_fp32_precision_getter("cuda", "matmul")  # process-wide, which may allow lower precision
    rounds = allowed not in ("none", "ieee")
    try:
        kernel = candidate.load()
        if rounds:
            own._set_fp32_precision_setter("cuda", "matmul", "ieee")
        with torch.no_grad():
            works = candidate.probe(kernel, device, dtype)
    except Exception as error:  # whatever a compiler or a missing library raises, another backend can take over
        return f"{type(error).__name__}: {error}"
    finally:
        if rounds:
            own._set_fp32_precision_setter("cuda", "matmul", allowed)
    return kernel if works else "its numbers differ from the reference's"
