"""A layer's pass over whole sequences on a GPU, as one CUDA graph for forward and one for backward.

In a user's own module and loop a layer is hundreds of kernels, which take longer to launch than to execute.
A pass called with the same shapes, dtypes and options `PATIENCE` times in a row is recorded, compared once
with the ordinary pass, and from then on replayed, with the results of the same kernels. Parameters are read in place,
so that optimiser steps take effect; replaced or moved parameters cause a new recording.

Not recorded: calls with hooks, transforms, tracing, capture, a forced backend, forward-mode tangents, saved-tensor
hooks or anomaly mode, layers that contain user code, layers inside `frozen()`, second derivatives, and passes whose
recording still awaits its backward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from resolvent.layers.recorded.gradients import Pass
from resolvent.layers.recorded.known import Kind, Known, are_kept, find_kind, give_up, keeping, log
from resolvent.layers.recorded.recording import Lease, Recording
from resolvent.layers.recorded.replica import find_leaves, replicate
from resolvent.layers.recorded.signature import How, ask, sign
from resolvent.ops.step import recorded
from resolvent.runtime.graph.watched import is_watched
from resolvent.runtime.memory import lacks_memory, let_go

Run = Callable[[Any, Tensor, Tensor | None], Any]  # (module, x, lengths) -> (y, state)
Found = tuple[Kind, Recording, Lease, list[nn.Parameter]]
_apply = super(torch.autograd.Function, Pass).apply  # Function.apply checks every tensor for transforms again


class _Unclear(RuntimeError):
    """These inputs cannot verify a recording."""


def run(module: nn.Module, call: Run, x: Tensor, lengths: Tensor | None) -> Any:
    """call(module, x, lengths), replayed where possible; without recordings where they leave too little memory."""
    return run_either(lambda: replay(module, call, x, lengths), lambda: call(module, x, lengths))


def run_either(recorded: Callable[[], Any], plain: Callable[[], Any]) -> Any:
    """The first, or the second where that returns None or runs out of memory while recordings exist."""
    try:
        found = recorded()
        return plain() if found is None else found
    except RuntimeError as error:
        if not lacks_memory(error) or not are_kept():
            raise
    give_up()
    let_go()  # only now: the error's frames held tensors until here
    return plain()


def replay(module: nn.Module, call: Run, x: Tensor, lengths: Tensor | None) -> Any:
    """call(module, x, lengths) by replay; None where there is no recording."""
    found = find(module, call, x, lengths)
    if found is None:
        return None
    kind, own, lease, parameters = found
    if not own.trains:
        return own.join(own.run(x, lengths))
    return own.join(_apply(kind, own, lease, lengths, torch._C._functorch.unwrap_if_dead(x), *parameters))


def find(module: nn.Module, call: Run, x: Tensor, lengths: Tensor | None) -> Found | None:
    """A recording of call(module, x, lengths), made if due, with a lease on it; None where there is none.

    Only on devices in GRAPHS.
    """
    found = look_up(module, x, lengths, ask(x))
    if found is None:
        return None
    parameters, known, kind = found
    taken = kind.take()
    if taken is None:
        if torch._C._current_graph_task_id() != -1:  # inside a backward pass, whose thread and order autograd controls
            return None
        with keeping:
            if not kind.is_due() or not known.has_room(kind):
                return None
        if not _record(kind, module, call, x, lengths, parameters) or (taken := kind.take()) is None:
            return None
    return kind, *taken, parameters


def look_up(module: nn.Module, x: Tensor, lengths: Tensor | None, how: How) -> tuple[list[Any], Known, Kind] | None:
    """The module's parameters and the records of such calls; None where they are not recorded."""
    if is_watched(x, lengths):
        return None
    signed = sign(module, x, lengths, how)
    found = None if signed is None else find_kind(module, signed[0])
    return None if signed is None or found is None else (signed[1], *found)


def _record(
    kind: Kind, module: nn.Module, call: Run, x: Tensor, lengths: Tensor | None, parameters: list[nn.Parameter]
) -> bool:
    """Record call(module, x, lengths); False, with one warning, where the replay does not reproduce its results."""
    made, why, records = None, "its replay gives other numbers", torch.is_grad_enabled()
    with keeping:  # one recording at a time
        recorded._recording.append(True)
        try:
            with torch.inference_mode(False), torch.set_grad_enabled(records):
                made = _make(module, call, x, lengths, parameters, kind.ends)
            right = made.agrees(recorded._close)
        except _Unclear:
            kind.calls = 0  # retry later
            return False
        except RuntimeError as error:
            right, why = False, str(error).strip().splitlines()[0]
            full = lacks_memory(error)
        else:
            full = False
        finally:
            recorded._recording.pop()
        if right and made is not None:
            kind.calls = 0
            kind.recordings.append(made)
            return True
        kind.give_up()
    if full:  # the pass itself may fit, once the frames of the error release their tensors
        let_go()
    log.warning("a layer's pass cannot be recorded as a CUDA graph, and runs without one: %s", why)
    return False


def _make(
    module: nn.Module, call: Run, x: Tensor, lengths: Tensor | None, parameters: list[nn.Parameter], ends: bool
) -> Recording:
    trains = torch.is_grad_enabled() and (x.requires_grad or any(p.requires_grad for p in parameters))
    device = x.device.type
    on, half = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
    own, leaves = replicate(module)
    reached = find_leaves(call(module, x.detach(), lengths)[0]) if trains else set()

    def within(x: Tensor, lengths: Tensor | None) -> Any:
        with torch.autocast(device, half, enabled=on, cache_enabled=False):  # casts are part of the graph
            return call(own, x, lengths)

    rounded = half if on and x.dtype == torch.float32 and getattr(module, "rounds_ends", False) else None
    with torch.autocast(device, enabled=False):
        made = Recording(own, within, x, lengths, [leaves[p] for p in parameters], trains, ends, rounded)
    if not all(map(_is_finite, made.want)):
        raise _Unclear
    found = find_leaves(made.outputs[0])
    if any((id(p) in reached) is not (id(leaves[p]) in found) for p in parameters):
        raise RuntimeError("it holds parameters that are not in its modules")
    return made


def _is_finite(t: Tensor) -> bool:
    return not (t.is_floating_point() or t.is_complex()) or bool(torch.isfinite(t).all())
