"""A streaming step on a GPU as one CUDA graph: inside `frozen()` it is a fixed sequence of kernels.

A step of a small batch takes microseconds, and launching its kernels one by one takes the host ten times as long.
The second call with the same shapes is recorded, compared once with the ordinary step, and replayed from
then on: one copy of all inputs, one launch, one copy of all outputs, so that returned states stay unchanged.
A replay leaves its last state where the next one reads it: a stream that passes the last returned state, unmodified,
copies only its input. A step that cannot be recorded, or differs, is logged once and runs without a graph.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from resolvent.ops.step.operation import is_unwatched
from resolvent.runtime.dispatch import is_forced
from resolvent.runtime.graph.cuda_graph import CudaGraph
from resolvent.runtime.graph.watched import numerics
from resolvent.runtime.graph.watched import recording as _recording

KEY = "recorded steps"  # in the tables of `frozen()`
LAST = "last recorded step"  # likewise
MOST = 8  # most cached shapes: the shape of a growing state does not recur
ALIGNED = 16  # bytes: alignment of outputs
CLOSE = {torch.float64: 1e-10, torch.float32: 1e-4}  # replay against the step, by the largest value; else HALF
HALF = 2e-2
Run = Callable[[Any, Any], Any]  # (x, state) -> (y, state)
Call = Callable[[list[Tensor]], Any]  # the same on the list of its tensors
Form = Any  # None for a leaf, else (kind, keys or None, forms)
Place = tuple[torch.dtype, torch.Size, tuple[int, ...], int]  # dtype, shape, strides and first element of an output
log = logging.getLogger("resolvent")
_places = threading.Lock()  # input copy, launch and output copy must not be interleaved


GRAPHS: dict[str, Any] = {"cuda": CudaGraph}  # by device type


class Recording:
    """One call of given shapes: its inputs and outputs at fixed addresses; `chained`: all outputs but the first are the
    next call's inputs but the first."""

    def __init__(self, call: Call, given: list[Tensor], chained: bool = False) -> None:
        self.given, self.chained = [t.clone() for t in given], chained
        self.flat: Tensor | None = None  # all outputs in one buffer, in the dtype of the first
        self.call = call
        self.places: list[Place] = []
        self._work()  # determines the outputs
        graph, device = GRAPHS[given[0].device.type], given[0].device
        graph.aside(self._work, device)
        self.graph = graph(self._work, device, apart=True)  # streams of several threads run concurrently

    def _work(self) -> None:
        outputs: list[Tensor] = []
        self.form = flatten(self.call(self.given), outputs)
        if not all(isinstance(t, Tensor) for t in outputs):
            raise RuntimeError("a state holds something that is no tensor")
        if self.flat is None:
            self._lay_out(outputs)
            self.chained = self.chained and _alike(outputs[1:], self.given[1:])
        assert self.flat is not None
        for t, place in zip(outputs, self._views(self.flat), strict=True):
            place.copy_(t)
        if self.chained:
            for t, place in zip(self._views(self.flat)[1:], self.given[1:], strict=True):
                place.copy_(t)

    def _lay_out(self, outputs: list[Tensor]) -> None:
        end = 0
        for t in outputs:
            strides = torch.empty(t.shape, device="meta").stride()
            self.places.append((t.dtype, t.shape, strides, end // t.element_size()))
            end += -(-t.numel() * t.element_size() // ALIGNED) * ALIGNED
        first = outputs[0]
        self.flat = torch.empty(end // first.element_size(), dtype=first.dtype, device=first.device)

    def _views(self, flat: Tensor) -> list[Tensor]:
        kind = flat.dtype
        return [
            (flat if dtype is kind else flat.view(dtype)).as_strided(shape, strides, first)
            for dtype, shape, strides, first in self.places
        ]

    def __call__(self, given: list[Tensor]) -> Any:
        with _places:
            torch._foreach_copy_(self.given, given)
            return unflatten(self.form, self.launch()[0])

    def launch(self) -> tuple[list[Tensor], Tensor]:
        """The outputs for the current input buffers, and the tensor of which they are views."""
        assert self.flat is not None
        self.graph.replay()
        flat = self.flat.clone()
        return self._views(flat), flat


class _Last(NamedTuple):
    """The last step of a stream: the state it returned, and the conditions for continuing from it."""

    made: Recording
    state: Any
    leaves: list[Tensor]
    flat: Tensor  # their memory, whose version shows modifications
    how: Any  # autocast state and stream

    def holds(self, state: Any) -> bool:
        """Whether it is that state: the same tensor, or a structure of the same tensors."""
        if type(state) is Tensor:
            return state is self.state
        leaves: list[Any] = []
        flatten(state, leaves)
        return len(leaves) == len(self.leaves) and all(a is b for a, b in zip(leaves, self.leaves, strict=True))


def replay(tables: dict[str, Any] | None, run: Run, x: Tensor, state: Any) -> Any:
    """run(x, state) by its recording; None if there is none. `tables` are those of `frozen()`, or None outside."""
    if tables is None or type(x) is not Tensor:
        return None
    kind = x.device.type
    if kind not in GRAPHS or is_forced() or not _is_free(x) or not is_unwatched(x):
        return None
    how, last, given = _how(x), tables.get(LAST), [x]
    if last is not None and last.holds(state):
        with _places:
            if _continues(tables, last, x, how):
                return _return_outputs(tables, last.made, given, how)
    form = flatten(state, given)
    name = _name(form, given, how)
    if name is None or not is_unwatched(*given):
        return None
    known: dict[Any, Any] = tables.setdefault(KEY, {})
    found = known.get(name)
    if found is None:
        found = _remember(known, name, lambda own: run(own[0], unflatten(form, own[1:])), given, chained=True)
    if not found:
        return None
    with _places:
        return _return_outputs(tables, found, given, how)


def _continues(tables: dict[str, Any], last: _Last, x: Tensor, how: Any) -> bool:
    """Whether the state passed by the stream is still, unmodified, where the recording reads it."""
    own = last.made.given[0]
    if x.shape != own.shape or x.dtype is not own.dtype or x.device != own.device or how != last.how:
        return False
    return tables.get(LAST) is last and last.flat._version == 0


def _return_outputs(tables: dict[str, Any], made: Recording, given: list[Tensor], how: Any) -> Any:
    """A launch's outputs, remembered for the next step; not in inference mode, which has no version counters."""
    tables[LAST] = None  # an interruption would leave a partial state
    torch._foreach_copy_(made.given[: len(given)], given)
    leaves, flat = made.launch()
    found = unflatten(made.form, leaves)
    goes_on = made.chained and not flat.is_inference()
    tables[LAST] = _Last(made, found[1], leaves[1:], flat, how) if goes_on else None
    return found


def rerun(known: dict[Any, Any], name: Any, run: Callable[[list[Tensor], Any], Any], given: list[Tensor]) -> Any:
    """run(given, None) by its recording; None if there is none. `known` are the recordings of one function."""
    x = given[0]
    if x.device.type not in GRAPHS or is_forced() or not _is_free(x) or not is_unwatched(*given):
        return None
    name = (name, _stream(x), numerics(), *((t.shape, t.dtype, t.device) for t in given))
    found = known.get(name)
    if found is None:
        found = _remember(known, name, lambda own: run(own, None), given)
    return found(given) if found else None


def _name(form: Any, given: list[Any], how: Any) -> tuple[Any, ...] | None:
    """The key of a recording: shapes and dtypes; None if not all are tensors on one device."""
    name, device = [form, how], given[0].device
    for t in given:
        if type(t) is not Tensor or t.device != device:
            return None
        name += (t.shape, t.dtype)
    return tuple(name)


def flatten(value: Any, leaves: list[Any]) -> Form:
    """The form of a tensor, or of a tuple, list or dict of such, whose leaves are added to `leaves`.

    As torch's pytree, for these types only: that would take longer than the step's launch.
    """
    kind = type(value)
    if kind is dict:
        return dict, tuple(value), tuple([flatten(part, leaves) for part in value.values()])
    if kind is tuple or kind is list:
        return kind, None, tuple([flatten(part, leaves) for part in value])
    leaves.append(value)
    return None


def unflatten(form: Form, leaves: list[Any]) -> Any:
    """The inverse of `flatten`."""
    return _build(form, iter(leaves))


def _build(form: Form, leaves: Iterator[Any]) -> Any:
    if form is None:
        return next(leaves)
    kind, keys, forms = form
    parts = [next(leaves) if part is None else _build(part, leaves) for part in forms]
    return dict(zip(keys, parts, strict=True)) if kind is dict else kind(parts)


def _alike(some: list[Tensor], others: list[Tensor]) -> bool:
    return [(t.shape, t.dtype) for t in some] == [(t.shape, t.dtype) for t in others]


def _remember(known: dict[Any, Any], name: Any, call: Call, given: list[Tensor], chained: bool = False) -> Any:
    """None at the first call, so that the next one is recorded; then the recording, or False."""
    if name not in known:
        known[name] = None
        while len(known) > MOST:
            del known[next(iter(known))]
        return None
    _recording.append(True)
    try:
        with torch.inference_mode(False), torch.no_grad():
            made = Recording(call, given, chained)
            right = _agrees(made(given), call(given))
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
    pairs: tuple[list[Tensor], list[Tensor]] = [], []
    flatten(found, pairs[0]), flatten(want, pairs[1])
    return all(_close(x, y) for x, y in zip(*pairs, strict=True))


def _close(x: Tensor, y: Tensor) -> bool:
    if not (y.is_floating_point() or y.is_complex()):
        return torch.equal(x, y)
    most = CLOSE.get(y.real.dtype, HALF)
    x, y = (t if t.is_complex() else t.double() for t in (x, y))
    return not y.numel() or bool((x - y).abs().amax() <= most * y.abs().amax())


def _is_free(x: Tensor) -> bool:
    """Whether no CUDA graph is being captured, and no compiler is tracing."""
    if torch.compiler.is_compiling() or _recording:
        return False
    return not (x.is_cuda and torch.cuda.is_current_stream_capturing())


def _how(x: Tensor) -> Any:
    """The autocast state and stream of a call: two streams must not share a recording's buffers."""
    kind = x.device.type
    half = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
    return half, _stream(x)


def _stream(x: Tensor) -> int:
    return int(torch._C._cuda_getCurrentRawStream(x.device.index)) if x.is_cuda else 0
