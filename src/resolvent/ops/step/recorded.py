"""A streaming step on a GPU as one CUDA graph: inside of `frozen()` it is a fixed sequence of kernels.

A step of a small batch is microseconds of work, and naming its kernels one by one takes the host ten times as long.
What comes in the same shapes for the second time is recorded, compared once with the step as it was, and replayed from
then on: one copy of all inputs, one launch, one copy of all outputs, so that a state that was returned stays what it
is. What cannot be recorded, or differs, is named once in the log and runs as ever.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from resolvent.ops.step.operation import is_unwatched
from resolvent.runtime.dispatch import is_forced

KEY = "recorded steps"  # in the tables of `frozen()`
MOST = 8  # shapes that are remembered: a state that grows never comes again
ALIGNED = 16  # bytes: where an output starts
CLOSE = {torch.float64: 1e-10, torch.float32: 1e-4}  # of a replay to the step itself, by the largest value; else HALF
HALF = 2e-2
Run = Callable[[Any, Any], Any]  # (x, state) -> (y, state)
log = logging.getLogger("resolvent")
_recording: list[bool] = []  # one at a time: a model's step holds those of its layers


class CudaGraph:
    """Records `work`, which reads and writes at fixed places."""

    def __init__(self, work: Callable[[], None], device: torch.device) -> None:
        self.graph, self.device = torch.cuda.CUDAGraph(), device
        side = torch.cuda.Stream(device)
        with torch.cuda.device(device):
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                work()  # handles, workspaces and compiled kernels come into being outside of the graph
            torch.cuda.current_stream().wait_stream(side)
            with torch.cuda.graph(self.graph, stream=side):
                work()

    def replay(self) -> None:
        if self.device.index is None or self.device.index == torch.cuda.current_device():
            return self.graph.replay()
        with torch.cuda.device(self.device):
            self.graph.replay()


GRAPHS: dict[str, Any] = {"cuda": CudaGraph}  # by the type of a device


class Recording:
    """One step of given shapes: its inputs and outputs at fixed places."""

    def __init__(self, run: Run, given: list[Tensor], spec: TreeSpec) -> None:
        self.given = [t.clone() for t in given]
        self.flat: Tensor | None = None  # all outputs, as bytes
        self.run, self.spec = run, spec
        self.places: list[tuple[int, int, torch.dtype, torch.Size]] = []
        self._work()  # tells the outputs
        self.graph = GRAPHS[given[0].device.type](self._work, given[0].device)

    def _work(self) -> None:
        x, state = tree_unflatten(self.given, self.spec)
        outputs, self.out_spec = tree_flatten(self.run(x, state))
        if not all(isinstance(t, Tensor) for t in outputs):
            raise RuntimeError("a state holds something that is no tensor")
        if self.flat is None:
            self._lay_out(outputs)
        assert self.flat is not None
        for t, (first, size, dtype, shape) in zip(outputs, self.places, strict=True):
            self.flat[first : first + size].view(dtype).view(shape).copy_(t)

    def _lay_out(self, outputs: list[Tensor]) -> None:
        end = 0
        for t in outputs:
            size = t.numel() * t.element_size()
            self.places.append((end, size, t.dtype, t.shape))
            end += -(-size // ALIGNED) * ALIGNED
        self.flat = torch.empty(end, dtype=torch.uint8, device=outputs[0].device)

    def __call__(self, given: list[Tensor]) -> Any:
        assert self.flat is not None
        torch._foreach_copy_(self.given, given)
        self.graph.replay()
        flat = self.flat.clone()
        found = [flat[first : first + size].view(dtype).view(shape) for first, size, dtype, shape in self.places]
        return tree_unflatten(found, self.out_spec)


def replay(tables: dict[str, Any] | None, run: Run, x: Tensor, state: Any) -> Any:
    """run(x, state) by its recording; None where there is none. `tables` are those of `frozen()`, or None outside."""
    if tables is None or type(x) is not Tensor or x.device.type not in GRAPHS or is_forced() or not _is_free(x):
        return None
    given, spec = tree_flatten((x, state))
    if not all(type(t) is Tensor and t.device == x.device for t in given) or not is_unwatched(*given):
        return None
    known: dict[Any, Any] = tables.setdefault(KEY, {})
    name = (spec, *((t.shape, t.dtype) for t in given), _autocast(x))
    found = known.get(name)
    if found is None:
        found = _remember(known, name, run, given, spec)
    return found(given) if found else None


def rerun(known: dict[Any, Any], name: Any, run: Callable[[list[Tensor], Any], Any], given: list[Tensor]) -> Any:
    """run(given, None) by its recording; None where there is none. `known` are the recordings of one function."""
    x = given[0]
    if x.device.type not in GRAPHS or is_forced() or not _is_free(x) or not is_unwatched(*given):
        return None
    _, spec = tree_flatten((given, ()))  # None would be a leaf
    name = (name, *((t.shape, t.dtype) for t in given))
    found = known.get(name)
    if found is None:
        found = _remember(known, name, run, given, spec)
    return found(given) if found else None


def _remember(known: dict[Any, Any], name: Any, run: Run, given: list[Tensor], spec: TreeSpec) -> Any:
    """Seen once: None, so that the next time it is recorded; then the recording, or False."""
    if name not in known:
        known[name] = None
        while len(known) > MOST:
            del known[next(iter(known))]
        return None
    _recording.append(True)
    try:
        with torch.inference_mode(False), torch.no_grad():
            made = Recording(run, given, spec)
            right = _agrees(made(given), run(*tree_unflatten(given, spec)))
        known[name] = made if right else False
        why = "its replay gives other numbers"
    except RuntimeError as error:
        known[name], why = False, str(error).strip().splitlines()[0]
    finally:
        _recording.pop()
    if known[name] is False:
        log.warning("a step cannot be recorded as a CUDA graph, and runs without one: %s", why)
    return known[name]


def _agrees(found: Any, want: Any) -> bool:
    return all(_close(x, y) for x, y in zip(tree_flatten(found)[0], tree_flatten(want)[0], strict=True))


def _close(x: Tensor, y: Tensor) -> bool:
    if not (y.is_floating_point() or y.is_complex()):
        return torch.equal(x, y)
    most = CLOSE.get(y.real.dtype, HALF)
    x, y = (t if t.is_complex() else t.double() for t in (x, y))
    return not y.numel() or bool((x - y).abs().amax() <= most * y.abs().amax())


def _is_free(x: Tensor) -> bool:
    """Whether nobody records around this call, and no compiler traces it."""
    if torch.compiler.is_compiling() or _recording:
        return False
    return not (x.is_cuda and torch.cuda.is_current_stream_capturing())


def _autocast(x: Tensor) -> Any:
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
