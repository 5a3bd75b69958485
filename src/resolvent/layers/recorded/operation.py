"""A layer's pass over whole sequences on a GPU, as one CUDA graph forwards and one backwards.

In somebody's own module and loop a layer is some hundred kernels, which the host takes longer to name than the device
to run. A pass that comes in the same shapes, dtypes and options `PATIENCE` times in a row is recorded, compared once
with the pass as it was, and replayed from then on, with the numbers of the same kernels. Parameters are read where they
lie, so that an optimiser's steps are seen; what was replaced or moved is recorded anew.

What watches, transforms, traces, captures or forces a call, tangents, saved-tensor hooks, own code inside of a layer
and layers inside of `frozen()` run as ever; so do second derivatives, gradients of the last state and passes whose
recording is still waiting for its way back.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from resolvent.layers.recorded.parameter_aliases import alias_parameters
from resolvent.layers.recorded.recording import Recording
from resolvent.layers.recorded.signature import sign
from resolvent.ops.step import recorded
from resolvent.runtime.dispatch import is_forced, log, push
from resolvent.runtime.transforms import by_graph_only, forward_mode, gradients_by_graph, is_traced, is_transformed

PATIENCE = 3  # calls that run as ever before one is recorded: shapes that change at every call never are
KINDS = 3  # signatures of one module whose recordings are kept: training, evaluation, and a last short batch
COPIES = 4  # recordings of one signature: for passes that all wait for their way back
Run = Callable[[Any, Tensor, Tensor | None], Any]  # (module, x, lengths) -> (y, state)
_off: list[bool] = []
_known: weakref.WeakKeyDictionary[nn.Module, dict[Any, _Kind]] = weakref.WeakKeyDictionary()


class _Kind:
    """What is known of one signature: its calls in a row, its recordings, whether it cannot be recorded."""

    def __init__(self) -> None:
        self.calls, self.refused, self.recordings = 0, False, list[Recording]()

    def give_up(self) -> None:
        self.refused, self.recordings = True, []


def without_recording() -> AbstractContextManager[None]:
    """Inside of this context layers on a GPU name their kernels one by one; for the whole process.

    Recording saves the host's time. It keeps the values that a pass needs for its way back allocated between steps.

    Examples:
        >>> with rv.layers.without_recording():
        ...     y, state = rv.S4D(4, 8)(torch.randn(2, 50, 4))
    """
    return push(_off, True)


def forget() -> bool:
    """Give up all recordings and their memory; whether there were any."""
    there = any(kind.recordings for known in _known.values() for kind in known.values())
    _known.clear()
    return there


def replay(module: nn.Module, call: Run, x: Tensor, lengths: Tensor | None) -> Any:
    """call(module, x, lengths) by its recording, made where it is due; None where there is none.

    On a device that has GRAPHS.
    """
    if _is_watched(x, lengths):
        return None
    signed = sign(module, x, lengths)
    if signed is None:
        return None
    signature, parameters = signed
    kind = _remember(module, signature)
    if kind.refused:
        return None
    own = next((r for r in kind.recordings if r.is_free()), None)
    if own is None:
        kind.calls += 1
        if kind.calls <= PATIENCE or len(kind.recordings) >= COPIES:
            return None
        own = _record(kind, weakref.ref(module), call, x, lengths, parameters)
        if own is None:
            return None
    if not own.trains:
        return own.join(own.run(x, lengths))
    return own.join(_Pass.apply(kind, own, module, lengths, x, *parameters))


def _is_watched(x: Tensor, lengths: Tensor | None) -> bool:
    if _off or recorded._recording or is_forced() or is_traced(x, lengths) or is_transformed() or forward_mode():
        return True
    if x.is_cuda:  # replays share memory, so that all of them run on one stream: the default one, never captured
        index = x.device.index
        if torch._C._cuda_getCurrentRawStream(index) != 0 or index != torch.cuda.current_device():
            return True
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


def _remember(module: nn.Module, signature: Any) -> _Kind:
    known = _known.get(module)
    if known is None:
        known = _known[module] = {}
    kind = known.get(signature)
    if kind is None:
        for other in known.values():
            if not other.recordings:
                other.calls = 0  # not in a row
        while len(known) >= KINDS:
            del known[next((name for name, other in known.items() if not other.recordings), next(iter(known)))]
        kind = known[signature] = _Kind()
    elif len(known) > 1:
        known[signature] = known.pop(signature)  # the last to go
    return kind


def _record(
    kind: _Kind, own: Callable[[], Any], call: Run, x: Tensor, lengths: Tensor | None, parameters: list[nn.Parameter]
) -> Recording | None:
    """A recording of call(own(), x, lengths) that gives the same numbers, or None, which is said once.

    `own` is a weak reference: a recording must not keep its module alive.
    """
    trains = torch.is_grad_enabled() and (x.requires_grad or any(p.requires_grad for p in parameters))
    device, aliases, made, why = x.device, dict[Any, Any](), None, "its replay gives other numbers"
    on, half = torch.is_autocast_enabled(device.type), torch.get_autocast_dtype(device.type)

    def within(x: Tensor, lengths: Tensor | None) -> Any:
        casts = torch.autocast(device.type, half, enabled=on, cache_enabled=False)  # they belong to the graph
        with alias_parameters(own(), aliases), casts:
            return call(own(), x, lengths)

    recorded._recording.append(True)
    try:
        with torch.inference_mode(False), torch.autocast(device.type, enabled=False):
            with alias_parameters(own(), aliases):
                pass
            made = Recording(within, x, lengths, [aliases[p] for p in parameters], trains)
            made = made if made.agrees(recorded._close) else None
    except RuntimeError as error:
        made, why = None, str(error).strip().splitlines()[0]
    finally:
        recorded._recording.pop()
    if made is None:
        kind.give_up()
        log.warning("a layer's pass cannot be recorded as a CUDA graph, and runs without one: %s", why)
        return None
    kind.calls = 0
    kind.recordings.append(made)
    return made


class _Pass(torch.autograd.Function):
    """(x, parameters) -> y and the tensors of the last state, by a recording."""

    @staticmethod
    def forward(
        ctx: Any, kind: _Kind, own: Recording, module: nn.Module, lengths: Any, x: Tensor, *parameters: Tensor
    ) -> Any:
        ctx.set_materialize_grads(False)
        ctx.kind, ctx.own, ctx.lease, ctx.module = kind, own, own.take(), module
        ctx.precision = x.device.type, torch.get_autocast_dtype(x.device.type), torch.is_autocast_enabled(x.device.type)
        ctx.save_for_backward(lengths, x, *parameters)
        outputs = own.run(x, lengths)
        ctx.mark_non_differentiable(*(t for t in outputs if not (t.is_floating_point() or t.is_complex())))
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *g: Tensor | None) -> tuple[Any, ...]:
        lengths, x, *parameters = ctx.saved_tensors
        own, needs = ctx.own, ctx.needs_input_grad[4:]
        if g[0] is None or any(t is not None for t in g[1:]) or by_graph_only(g[0]):
            slopes = _by_graph(ctx, x, lengths, parameters, g, needs)
            ctx.kind.give_up()  # it would run twice at every step
        else:
            slope, found = own.run_back(g[0])
            known = iter(found)
            slopes = (slope, *[next(known) if need else None for need in needs[1:]])
        if not torch._C._autograd._get_current_graph_task_keep_graph():
            own.release()
        return None, None, None, None, *slopes


def _by_graph(
    ctx: Any, x: Tensor, lengths: Tensor | None, parameters: list[Tensor], g: tuple[Tensor | None, ...], needs: Any
) -> tuple[Tensor | None, ...]:
    """The same gradients from the pass run once more, as a graph: of any order, and of the last state too."""
    names = [name for name, _ in ctx.module.named_parameters()]
    asked = [i for i, t in enumerate(g) if t is not None]
    if not asked:
        return (None,) * len(needs)

    def again(x: Tensor, *own: Tensor) -> tuple[Tensor, ...]:
        outputs: list[Tensor] = []
        with without_recording(), torch.autocast(*ctx.precision):
            found = torch.func.functional_call(ctx.module, dict(zip(names, own, strict=True)), (x, None, lengths))
        recorded.flatten(found, outputs)
        return tuple(outputs[i] for i in asked)

    return gradients_by_graph(again, [x, *parameters], [t for t in g if t is not None], needs)
