"""The whole training step as one CUDA graph: every attack step, the loss and its gradients.

A step launches some thousand short kernels, which a GPU finishes quicker than Python can name them. With a lowered form
of the model (`lower`) the step is a fixed sequence of kernels: it is recorded when the same shapes come for the second
time and replayed from then on. The numbers are those of the same step without a graph. What cannot be recorded (a
kernel that has to wait for the CPU) runs as ever.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from resolvent.attacks import Threat
from resolvent.runtime.memory import keeper, lacks_memory, let_go
from resolvent.training.step.adversarial import Passes, StepLoss, lower
from resolvent.training.step.batch import Batch, wide
from resolvent.training.step.parameter_aliases import alias_parameters

CleanLoss = Callable[[Passes, Batch], tuple[Tensor, Tensor]]

MOST = 2  # graphs of one model: each keeps its activations
KNOWN = 32  # steps of one model that are remembered, recorded or not
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
    """The recording of this step and shape, made where it is due, run on the batch; None where there is none."""
    known = _of(model)
    name = (loss, tuple(batch.x.shape), batch.x.dtype, tuple(batch.y.shape), batch.y.dtype, lowered[1])
    if name not in known:
        known[name] = None  # seen once: a shape that never comes again is not worth a recording
        if len(known) > KNOWN:  # an objective made anew for every step would fill the memory
            del known[next(iter(known))]
        return None
    known[name] = known.pop(name)  # the last to go
    full = sum(isinstance(r, _Recording) for r in known.values()) >= MOST
    if known[name] is False or (known[name] is None and full):
        return None
    if known[name] is None:
        known[name] = _record(model, lowered, batch, threat and batch.fitted(threat), loss)
    return known[name].replay(batch) if known[name] else None


def _of(model: nn.Module) -> dict[Any, Any]:
    """The recordings of a model; those of parameters that have moved since are dropped."""
    places = tuple((p.data_ptr(), p.requires_grad) for p in model.parameters())
    known = _recorded.get(model)
    if known is None or known[0] != places:
        known = _recorded[model] = (places, {})
    return known[1]


def _record(
    model: nn.Module, lowered: tuple[Any, torch.dtype], batch: Batch, threat: Threat | None, loss: StepLoss | CleanLoss
) -> _Recording | bool:
    """A recording, or False where some kernel refuses to be recorded."""
    form, dtype = lowered
    parameters = [p for p in model.parameters() if p.requires_grad]
    given = () if threat is None else (threat,)

    def run(held: Batch, apart: bool = True) -> tuple[Tensor, Tensor, list[Tensor | None]]:
        standing = alias_parameters(model) if apart else nullcontext({p: p for p in parameters})
        with torch.autocast("cuda", enabled=False), standing as twin:
            tables = form.tables(held.x.shape[1], dtype)
            still = tables.detached()
            passes = Passes(lambda x: form(x, still), lambda x: form(x, tables))
            value, output = loss(passes, held, *given)
            found = torch.autograd.grad(value, [twin[p] for p in parameters], allow_unused=True)
        return value.detach(), output.detach(), list(found)

    with torch.cuda.device(batch.x.device):  # which need not be the current one
        generator = torch.cuda.default_generators[torch.cuda.current_device()]
        numbers = generator.clone_state()
        try:
            return _Recording(parameters, run, batch, threat)
        except RuntimeError as error:
            generator.graphsafe_set_state(numbers)  # its own still believes that it is being recorded
            full = _is_out_of_memory(error)
    if full:  # the step itself may fit, once the frames of the error are gone and with them what they held
        let_go()
    return False


def _is_out_of_memory(error: RuntimeError) -> bool:
    """Whether it was for lack of memory."""
    # Its words alone: a handler that keeps the error would keep its frames, and the batch in them.
    _log.warning("the training step cannot be recorded as a CUDA graph, and runs without one: %s", str(error))
    return lacks_memory(error)


@keeper
def _given_up() -> bool:
    """Memory has run out beside recordings, which keep theirs: they go, and their steps run without one from now on."""
    kept = [(known, name) for _, known in _recorded.values() for name, r in known.items() if isinstance(r, _Recording)]
    for known, name in kept:
        known[name] = False
    if kept:
        _log.warning(
            "memory has run out beside the recorded training step, which is given up: steps run without a CUDA graph "
            "from now on; a smaller batch_size keeps it"
        )
    return bool(kept)


@cache
def _stream(device: int) -> torch.cuda.Stream:
    """One for all recordings: matrix products keep memory for every stream that they ever ran on."""
    return torch.cuda.Stream(device)


class _Recording:
    """One recorded step: its batch, outputs and gradients at fixed places."""

    def __init__(
        self, parameters: list[nn.Parameter], run: Callable[..., Any], batch: Batch, threat: Threat | None
    ) -> None:
        draws = batch.draws.select(torch.arange(len(batch), device=batch.x.device))  # a copy
        self.batch = Batch(batch.x.clone(), batch.y.clone(), None, draws)
        self.parameters, self.replays = parameters, 0
        self.threat = threat  # the graph reads its numbers where they lie: they must not be given to others
        self.graph = torch.cuda.CUDAGraph()
        side = _stream(torch.cuda.current_device())
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            # Twice, so that handles, workspaces and compiled kernels come into being outside of the graph.
            reached = [[g is not None for g in run(self.batch, apart)[2]] for apart in (False, True)]
        if reached[0] != reached[1]:
            raise RuntimeError("its form holds parameters that are not in its modules")
        torch.cuda.current_stream().wait_stream(side)
        with torch.cuda.graph(self.graph, stream=side):
            self.value, self.output, found = run(self.batch)
            self.gradients = [torch.zeros_like(p) if g is None else g for g, p in zip(found, parameters, strict=True)]

    def replay(self, batch: Batch) -> tuple[Tensor, Tensor]:
        held = self.batch
        pairs = (held.x, batch.x), (held.y, batch.y), *zip(_numbers(held), _numbers(batch), strict=True)
        with torch.cuda.device(held.x.device):
            for to, source in pairs:
                to.copy_(source)
            self.graph.replay()
        self.replays += 1
        value: Tensor = _Found.apply(self.value, self, *self.parameters)
        return value, self.output.clone()


def _numbers(batch: Batch) -> tuple[Tensor, Tensor]:
    """All that the random numbers of a batch depend on."""
    return batch.draws.index, batch.draws._key


class _Found(torch.autograd.Function):
    """A value whose gradients are known already: they lie in the recording until it runs again."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, recording: _Recording, *parameters: Tensor) -> Tensor:
        ctx.recording, ctx.replay = recording, recording.replays
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *g: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.recording.replays != ctx.replay:
            raise RuntimeError(
                "the gradients of this loss are gone: another step of the same model has been taken since; call "
                "backward() on each loss before the next is computed."
            )
        return None, None, *torch._foreach_mul(ctx.recording.gradients, g[0])
