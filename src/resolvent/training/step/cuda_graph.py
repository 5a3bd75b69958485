"""The whole training step with one set of tables: every attack step, the loss and its gradients; on a GPU as one
CUDA graph.

A step launches some thousand short kernels, which a GPU finishes quicker than Python can name them. Where the model
has a lowered form (`model.lowered(x)`: a function of x and of tables made from the parameters), the step is a fixed
sequence of kernels: it is recorded when the same shapes come for the second time and replayed from then on. The tables
are made once; the attack uses them detached, the training pass with their graph. The numbers are those of the same
step without a graph. A CPU runs the same sequence at once.

What cannot be recorded (another norm than Linf, masks, lengths, a model without lowered form, a kernel that has to wait
for the CPU) runs as ever.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from resolvent.attacks import Threat, kl
from resolvent.attacks.capacity import keeper, lacks_memory, let_go
from resolvent.attacks.objective.slope import slope
from resolvent.lowering.cpu.pgd_loop import Path
from resolvent.training.step.ascent import step_signs
from resolvent.training.step.batch import Batch
from resolvent.training.step.criterion import criterion
from resolvent.training.step.inner import Inner
from resolvent.training.step.parameter_aliases import alias_parameters

Forward = Callable[[Tensor], Tensor]
Reach = tuple[Any, ...]  # an objective and what it takes after the output

PgdLoop = Callable[[Tensor, Path], "Tensor | None"]  # all steps from a start at once, where that can be done

MOST = 2  # graphs of one model: each keeps its activations
KNOWN = 32  # steps of one model that are remembered, recorded or not
_log = logging.getLogger(__name__)
_recorded: weakref.WeakKeyDictionary[nn.Module, tuple[Any, dict[Any, Any]]] = weakref.WeakKeyDictionary()


@dataclass(frozen=True, eq=False)
class Passes:
    """The lowered model twice: `still` for attacks, `learnt` with parameter gradients. `pgd_loop` is a whole attack."""

    still: Forward
    learnt: Forward
    pgd_loop: PgdLoop | None = None


Loss = Callable[[Passes, Batch, Threat], tuple[Tensor, Tensor]]
CleanLoss = Callable[[Passes, Batch], tuple[Tensor, Tensor]]


def run_ascent(f: Passes, batch: Batch, threat: Threat, inner: Inner, start: Tensor, reach: Reach) -> Tensor:
    """`rise` of `f.still`, in one call where model and objective allow."""
    target = None if f.pgd_loop is None or threat.scale(batch.x) is not None else _target(reach)
    if f.pgd_loop is not None and target is not None:
        region = threat.around(batch.x)
        assert region.low is not None
        assert region.high is not None
        path = Path(target, region.low, region.high, inner.size(threat, batch.x), inner.steps)
        found = f.pgd_loop(start, path)
        if found is not None:
            return found
    return rise(f.still, batch, threat, inner, start, reach)


def _target(reach: Reach) -> Tensor | None:
    """What the slope of an objective in the logits z is softmax(z) less: labels, or probabilities."""
    objective, given = reach
    assert isinstance(given, Tensor)
    if objective is kl:
        return given.softmax(-1)
    labels = objective is criterion and given.dtype == torch.int64 and given.dim() == 1
    return given if labels else None


def rise(f: Forward, batch: Batch, threat: Threat, inner: Inner, start: Tensor, reach: Reach) -> Tensor:
    """`attacks.pgd.ascend` for Linf without a look at any value: a sample whose gradient is not finite stays put."""
    objective, *labels = reach
    region, size, x = threat.around(batch.x), inner.size(threat, batch.x), start
    scale = threat.scale(batch.x)
    size = size if scale is None else size * scale  # each channel by its own eps
    for _ in range(inner.steps):
        with torch.enable_grad():
            at = x.detach().requires_grad_()
            output = f(at)
            losses = objective(output, *labels)
            grad = slope(losses.sum(), at)
            assert grad is not None
        x = step_signs(x, grad, (losses, output), region, size)
    return x


def recorded_step(model: nn.Module, batch: Batch, inner: Inner, loss: Loss) -> tuple[Tensor, Tensor] | None:
    """(value, output) of one step, whose gradients `value.backward()` brings to the parameters; None: run as ever.

    `loss` is a value that stands for what it computes: equal ones share a recording.
    """
    lowered = _lower(model, batch, inner.threat) if inner.steps else None
    if lowered is None:
        return None
    if not batch.x.is_cuda:
        return _at_once(lowered, batch, batch.fitted(inner.threat), loss)
    return _replay(model, lowered, batch, inner.threat, loss)


def recorded_pass(model: nn.Module, batch: Batch, loss: CleanLoss) -> tuple[Tensor, Tensor] | None:
    """The same for a loss without an attack: a recording on a GPU, None elsewhere, where there is nothing to gain."""
    lowered = _lower(model, batch, None) if batch.x.is_cuda else None
    return None if lowered is None else _replay(model, lowered, batch, None, loss)


def _replay(
    model: nn.Module, lowered: tuple[Any, torch.dtype], batch: Batch, threat: Threat | None, loss: Loss | CleanLoss
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


def _at_once(lowered: tuple[Any, torch.dtype], batch: Batch, threat: Threat, loss: Loss) -> tuple[Tensor, Tensor]:
    """The same without a recording: the tables are made once all the same."""
    form, dtype = lowered
    tables = form.tables(batch.x.shape[1], dtype)
    still = tables.detached()
    run_loop = getattr(form, "run_loop", None)
    pgd_loop = None if run_loop is None else lambda start, path: run_loop(start, still, path)
    value, output = loss(Passes(lambda x: form(x, still), lambda x: form(x, tables), pgd_loop), batch, threat)
    return value, output.detach()


def _lower(model: nn.Module, batch: Batch, threat: Threat | None) -> Any:
    """The model's lowered form and its dtype, where a step is a fixed sequence of operations with it."""
    if batch.lengths is not None:
        return None
    if threat is not None and (threat.norm != "linf" or threat.mask is not None or threat.shaped):
        return None
    if batch.weight is not None and batch.x.is_cuda:  # a recording would repeat the weights of its first batch
        return None
    offered = getattr(model, "lowered", None)
    return offered(batch.x) if callable(offered) and torch.is_grad_enabled() else None


def _of(model: nn.Module) -> dict[Any, Any]:
    """The recordings of a model; those of parameters that have moved since are dropped."""
    places = tuple((p.data_ptr(), p.requires_grad) for p in model.parameters())
    known = _recorded.get(model)
    if known is None or known[0] != places:
        known = _recorded[model] = (places, {})
    return known[1]


def _record(
    model: nn.Module, lowered: tuple[Any, torch.dtype], batch: Batch, threat: Threat | None, loss: Loss | CleanLoss
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
