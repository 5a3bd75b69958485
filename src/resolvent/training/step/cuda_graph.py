"""The whole training step as one CUDA graph: every attack step, the loss and its gradients.

A step launches about a thousand short kernels, which a GPU executes faster than Python can launch them. With a lowered
form of the model (`lower`) the step is a fixed sequence of kernels: it is recorded at the second call with the same
shapes and replayed from then on, with the results of the same step without a graph. Steps that cannot be recorded (a
kernel synchronises with the CPU) run without one.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from resolvent.attacks import Threat
from resolvent.attacks.recorded.marks import SCALARS
from resolvent.runtime.dispatch import is_forced
from resolvent.runtime.graph.cuda_graph import GRAPHS
from resolvent.runtime.graph.watched import numerics
from resolvent.runtime.memory import keeper, lacks_memory, let_go
from resolvent.training.step.adversarial import Passes, StepLoss, lower
from resolvent.training.step.batch import Batch, wide
from resolvent.training.step.parameter_aliases import alias_parameters

CleanLoss = Callable[[Passes, Batch], tuple[Tensor, Tensor]]

MOST = 2  # graphs per model: each holds its activations
KNOWN = 32  # steps tracked per model, recorded or not
_log = logging.getLogger(__name__)
_recorded: weakref.WeakKeyDictionary[nn.Module, tuple[Any, dict[Any, Any]]] = weakref.WeakKeyDictionary()


def clean_pass(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor] | None:
    """(value, output) of `objective.standard`, recorded; None where the model has no lowered form."""
    lowered = lower(model, batch)
    return None if lowered is None else replay(model, lowered, batch, None, _clean)


def _clean(f: Passes, batch: Batch) -> tuple[Tensor, Tensor]:
    output = wide(f.learnt(batch.x))
    return batch.loss(output), output


def replay(
    model: nn.Module, lowered: tuple[Any, torch.dtype], batch: Batch, threat: Threat | None, loss: StepLoss | CleanLoss
) -> tuple[Tensor, Tensor] | None:
    """Replay the recording of this step and shape, made if due, on the batch; None if there is none."""
    if is_forced() or (batch.x.is_cuda and torch.cuda.is_current_stream_capturing()):
        return None
    known = _of(model)
    sizes = () if threat is None else (threat.eps, *(threat.bounds or ()))  # which may be modified in place
    written = tuple(t._version for t in sizes if isinstance(t, Tensor) and not t.is_inference())
    kinds = ((tuple(t.shape), t.dtype, t.device) for t in (batch.x, batch.y))
    name = (loss, *kinds, lowered[1], numerics(), written)
    if name not in known:
        known[name] = None  # seen once: a shape that does not recur is not recorded
        if len(known) > KNOWN:  # a new objective at every step would fill the memory
            del known[next(iter(known))]
        return None
    known[name] = known.pop(name)  # most recently used last
    full = sum(isinstance(r, _Recording) for r in known.values()) >= MOST
    if known[name] is False or (known[name] is None and full):
        return None

    def again() -> Tensor:
        return _run(model, lowered, threat and batch.fitted(threat), loss, batch)[0]

    if known[name] is None:
        known[name] = _record(model, lowered, batch, threat and batch.fitted(threat), loss)
    return known[name].replay(batch, again) if known[name] else None


def _of(model: nn.Module) -> dict[Any, Any]:
    """The recordings of a model; dropped if parameters have moved since or settings have changed."""
    places: list[Any] = [(p.data_ptr(), p.requires_grad) for p in model.parameters()]
    for own in model.modules():
        places += type(own), *(v for v in own.__dict__.values() if type(v) in SCALARS)
    known = _recorded.get(model)
    if known is None or known[0] != places:
        known = _recorded[model] = (places, {})
    return known[1]


def _run(
    model: nn.Module, lowered: tuple[Any, torch.dtype], threat: Threat | None, loss: StepLoss | CleanLoss, held: Batch
) -> tuple[Tensor, Tensor]:
    """(value, output) of the step."""
    form, dtype = lowered
    with torch.autocast(held.x.device.type, enabled=False):
        tables = form.tables(held.x.shape[1], dtype)
        still = tables.detached()
        passes = Passes(lambda x: form(x, still), lambda x: form(x, tables))
        return loss(passes, held, *(() if threat is None else (threat,)))


def _record(
    model: nn.Module, lowered: tuple[Any, torch.dtype], batch: Batch, threat: Threat | None, loss: StepLoss | CleanLoss
) -> _Recording | bool:
    """A recording, or False where a kernel cannot be recorded."""
    parameters = [p for p in model.parameters() if p.requires_grad]

    def run(held: Batch, apart: bool = True) -> tuple[Tensor, Tensor, list[Tensor | None]]:
        standing = alias_parameters(model) if apart else nullcontext({p: p for p in parameters})
        with standing as alias:
            value, output = _run(model, lowered, threat, loss, held)
            with torch.autocast(held.x.device.type, enabled=False):
                found = torch.autograd.grad(value, [alias[p] for p in parameters], allow_unused=True)
        return value.detach(), output.detach(), list(found)

    try:
        return _Recording(parameters, run, batch, threat)
    except RuntimeError as error:
        full = _is_out_of_memory(error)
    if full:  # the step itself may fit, once the error's frames release their tensors
        let_go()
    return False


def _is_out_of_memory(error: RuntimeError) -> bool:
    """Log the failure; returns whether it was lack of memory."""
    # The text alone: a handler that keeps the error would keep its frames, and the batch in them.
    _log.warning("the training step cannot be recorded as a CUDA graph, and runs without one: %s", str(error))
    return lacks_memory(error)


@keeper
def _given_up() -> bool:
    """On lack of memory, drop all recordings; their steps run without one from now on."""
    kept = [(known, name) for _, known in _recorded.values() for name, r in known.items() if isinstance(r, _Recording)]
    for known, name in kept:
        known[name] = False
    if kept:
        _log.warning(
            "out of memory: the recorded training step is dropped, and steps run without a CUDA graph from now on; "
            "a smaller batch_size keeps it"
        )
    return bool(kept)


class _Recording:
    """One recorded step: its batch, outputs and gradients at fixed addresses."""

    def __init__(
        self, parameters: list[nn.Parameter], run: Callable[..., Any], batch: Batch, threat: Threat | None
    ) -> None:
        draws = batch.draws.select(torch.arange(len(batch), device=batch.x.device))  # a copy
        self.batch = Batch(batch.x.clone(), batch.y.clone(), None, draws)
        self.parameters, self.replays = parameters, 0
        self.threat = threat  # the graph reads its tensors in place: they must stay allocated
        self._run = run
        graph, device = GRAPHS[batch.x.device.type], batch.x.device
        graph.aside(self._look, device)
        self.graph = graph(self._work, device, apart=True)
        del self._run  # which references the model

    def _look(self) -> None:
        """Run twice, so that handles, workspaces and compiled kernels are created outside the graph."""
        reached = [[g is not None for g in self._run(self.batch, apart)[2]] for apart in (False, True)]
        if reached[0] != reached[1]:
            raise RuntimeError("its form holds parameters that are not in its modules")

    def _work(self) -> None:
        self.value, self.output, found = self._run(self.batch)
        self.gradients = [torch.zeros_like(p) if g is None else g for g, p in zip(found, self.parameters, strict=True)]

    def replay(self, batch: Batch, again: Callable[[], Tensor]) -> tuple[Tensor, Tensor]:
        """`again` gives the step's value with its autograd graph, for second derivatives."""
        held = self.batch
        pairs = (held.x, batch.x), (held.y, batch.y), *zip(_numbers(held), _numbers(batch), strict=True)
        self.replays += 1  # first: an interrupted replay invalidates the last gradients
        for to, source in pairs:
            to.copy_(source)
        self.graph.replay()
        value: Tensor = _Found.apply(self.value, self, again, *self.parameters)
        return value, self.output.clone()


def _numbers(batch: Batch) -> tuple[Tensor, Tensor]:
    """Everything that the random numbers of a batch depend on."""
    return batch.draws.index, batch.draws._key


class _Found(torch.autograd.Function):
    """A value whose gradients are known already: they are in the recording until its next replay."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, recording: _Recording, again: Any, *parameters: Tensor) -> Tensor:
        ctx.recording, ctx.replay, ctx.again = recording, recording.replays, again
        ctx.save_for_backward(*parameters)
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *g: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            value = ctx.again()
            found = torch.autograd.grad(value, ctx.saved_tensors, g, create_graph=True, allow_unused=True)
            return None, None, None, *found
        if ctx.recording.replays != ctx.replay:
            raise RuntimeError(
                "the gradients of this loss are gone: another step of the same model has been taken since; call "
                "backward() on each loss before the next is computed."
            )
        return None, None, None, *torch._foreach_mul(ctx.recording.gradients, g[0])
