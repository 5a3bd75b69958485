"""The model as attacks see it: a callable in evaluation mode, called in bounded batches, differentiated in x only."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from resolvent.attacks.capacity import within_memory
from resolvent.attacks.objective.objective import Objective
from resolvent.attacks.objective.slope import backward_start, slope
from resolvent.attacks.recorded.passes import run_recorded
from resolvent.attacks.recorded.recorder import Recorder
from resolvent.runtime.graph.cuda_graph import GRAPHS
from resolvent.runtime.graph.watched import recording
from resolvent.runtime.memory import keep_freed_memory
from resolvent.usage.numbers import check_count

T = TypeVar("T")
_HALF = (torch.float16, torch.bfloat16)


class Victim:
    """`Victim(f, batch_size=128)`: at most that many samples pass through f at once, with or without gradient.

    f is any callable from (b, ...) to outputs (b, ...); if lengths (b,) are given it is called f(x, lengths), and they
    stay with their samples when the batch is split. For an nn.Module or a method of one, such as
    `model.from_embedding`, `with victim.attacked():` sets evaluation mode, disables parameter gradients and enters
    `frozen()` of the module, or of its submodules that offer it (or the context made by `freeze`), and restores
    everything afterwards, also after errors. `forwards` and `backwards` count samples.

    Examples:
        >>> victim = rv.attacks.Victim(torch.nn.Linear(3, 5), batch_size=2)
        >>> victim.forward(torch.rand(7, 3)).shape
        torch.Size([7, 5])
    """

    def __init__(
        self,
        f: Callable[..., Tensor],
        batch_size: int | None = None,
        freeze: Callable[[], AbstractContextManager[Any]] | None = None,
    ) -> None:
        if not callable(f):
            raise TypeError(f"Victim: expected a model, a callable from x to logits, got {type(f).__name__}.")
        if batch_size is not None:
            check_count("Victim", 1, batch_size=batch_size)
        self.f = f
        self.batch_size = batch_size
        self.freeze = freeze
        self.forwards = 0
        self.backwards = 0
        self.recorder: Recorder | None = None  # while it is attacked, for a module on a GPU
        self._inside = False
        self._type: torch.dtype | None = None  # of a half-precision module, while it is attacked
        # torch's GRU and LSTM flatten their weights for cuDNN.
        self._recurs = self.module is not None and any(hasattr(m, "flatten_parameters") for m in self.module.modules())

    @staticmethod
    def of(f: Callable[..., Tensor] | Victim) -> Victim:
        return f if isinstance(f, Victim) else Victim(f)

    @property
    def module(self) -> nn.Module | None:
        """f, or the module whose method it is."""
        owner = self.f if isinstance(self.f, nn.Module) else getattr(self.f, "__self__", None)
        return owner if isinstance(owner, nn.Module) else None

    @contextmanager
    def attacked(self) -> Iterator[Victim]:
        """Evaluation mode, no parameter gradients; may be nested."""
        if self._inside:
            if self.recorder is not None:
                self.recorder.look_again()
            yield self
            return
        self._inside, self._type = True, self._half()
        keep_freed_memory()
        try:
            with _still(self.module), self._freeze():
                self.recorder = self._make_recorder()
                yield self
        finally:
            self._inside, recorder, self.recorder = False, self.recorder, None
            if recorder is not None:
                recorder.forget()

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Outputs without gradient: (b, classes), at least float32."""

        def once(at: slice) -> Tensor:
            return self._pass(x[at], None if lengths is None else lengths[at], None, [])[0]

        with torch.no_grad():
            return torch.cat([self._run_fitting(x, at, once) for at in self._parts(x)])  # a copy: f may reuse its own

    def value_and_grad(
        self, x: Tensor, objective: Objective, *labels: Tensor, lengths: Tensor | None = None, passes: int = 1
    ) -> tuple[Tensor, Tensor, Tensor]:
        """objective(f(x), *labels) (b,), its gradient with respect to x, and the outputs, from one pass.

        `passes` > 1 averages all three over repeated passes: expectation over transformations, for random models.
        """

        def once(at: slice) -> tuple[Tensor, ...]:
            return self._pass(x[at], None if lengths is None else lengths[at], objective, [v[at] for v in labels])

        pieces = []
        for at in self._parts(x):
            runs = [self._run_fitting(x, at, once) for _ in range(passes)]
            pieces.append(runs[0] if passes == 1 else _mean(runs))
        losses, grads, outputs = zip(*pieces, strict=True)
        return _join(losses), _join(grads), torch.cat(outputs)

    def _pass(
        self, x: Tensor, lengths: Tensor | None, objective: Objective | None, labels: list[Tensor]
    ) -> tuple[Tensor, ...]:
        """(outputs,), or (objective, gradient, outputs); by a recording of the pass if there is one."""
        if self.recorder is None:
            return self._run_plainly(x, lengths, objective, labels)
        return run_recorded(self.recorder, (x, lengths, objective, labels), self._run_plainly)

    def _run_plainly(
        self, x: Tensor, lengths: Tensor | None, objective: Objective | None, labels: list[Tensor]
    ) -> tuple[Tensor, ...]:
        if objective is None:
            return (self.call(x, lengths),)
        return self.recover(lambda: self._differentiate(x, lengths, objective, labels))

    def call(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """A single call of f for all of x, counted and checked."""
        half = self._type if self._inside else self._half()
        given = x.to(x.dtype if half is None else half, copy=True)  # f may write to its own
        with self._differentiable(given):
            output = self.f(given) if lengths is None else call_padded(self.f, given, lengths)
        self.forwards += x.shape[0]  # here: a pass that ran out of memory may be repeated
        if not isinstance(output, Tensor) or not output.is_floating_point() or output.shape[:1] != x.shape[:1]:
            got = f"{output.dtype} {tuple(output.shape)}" if isinstance(output, Tensor) else type(output).__name__
            raise ValueError(
                f"the model must map x {tuple(x.shape)} to real outputs ({x.shape[0]}, classes), got {got}."
            )
        return output.float() if output.dtype in _HALF else output

    def _differentiable(self, x: Tensor) -> AbstractContextManager[Any]:
        """The context of a differentiated pass: cuDNN's GRU and LSTM have no gradient in evaluation mode, torch's own
        do."""
        watched = self._recurs and torch.is_grad_enabled() and x.requires_grad
        return torch.backends.cudnn.flags(enabled=False) if watched else nullcontext()

    def recover(self, run: Callable[[], T]) -> T:
        """run(); again without cuDNN, now and from then on, where f proves to contain a GRU or LSTM."""
        try:
            return run()
        except RuntimeError as error:
            if self._recurs or "cudnn RNN backward" not in str(error):
                raise
        self._recurs = True
        return run()

    def _differentiate(
        self, x: Tensor, lengths: Tensor | None, objective: Objective, labels: list[Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            output = self.call(x, lengths)
            losses, end, start = backward_start(objective, output, labels)
        grad = slope(end, x, start) if end.requires_grad else None  # None: the output does not depend on x
        self.backwards += x.shape[0]
        return losses.detach(), torch.zeros_like(x.detach()) if grad is None else grad, output.detach()

    def _parts(self, x: Tensor) -> Iterator[slice]:
        """The fewest passes that the batch size allows, of nearly equal size."""
        passes = -(-x.shape[0] // self.batch_size) if self.batch_size else 1
        size = max(-(-x.shape[0] // max(passes, 1)), 1)
        return (slice(i, i + size) for i in range(0, max(x.shape[0], 1), size))

    def _run_fitting(self, x: Tensor, at: slice, run: Callable[[slice], T]) -> T:
        """run(at); out of memory, the error names the batch size that would fit."""
        if recording:
            return run(at)
        count = min(at.stop, x.shape[0]) - at.start
        with torch.cuda.device(x.device) if x.is_cuda else nullcontext():  # whose memory is measured
            return within_memory("attack", count, lambda n: run(slice(at.start, at.start + n)))

    def _make_recorder(self) -> Recorder | None:
        """A recorder, for a module on a device with graphs."""
        own = next(iter(()) if self.module is None else self.module.parameters(), None)
        there = own is not None and own.device.type in GRAPHS
        return Recorder(self, self.module) if there and self.module is not None else None

    def _half(self) -> torch.dtype | None:
        """Attacks step in float32 at least; a half-precision module gets its own dtype."""
        parameters = iter(()) if self.module is None else self.module.parameters()
        own = next((p.dtype for p in parameters if p.is_floating_point()), None)
        return own if own in _HALF else None

    @contextmanager
    def _freeze(self) -> Iterator[None]:
        offers = [module.frozen for module in _freezable(self.module)] if self.freeze is None else [self.freeze]
        with ExitStack() as stack:
            for offer in offers:
                context = offer()
                if isinstance(context, AbstractContextManager):
                    stack.enter_context(context)
            yield


class TakesNoLengths(TypeError):
    """Padded sequences were given to a model that accepts only x."""


def call_padded(f: Callable[..., Any], x: Tensor, lengths: Tensor) -> Any:
    """f(x, lengths); for a model that accepts only x, an error with advice."""
    try:
        return f(x, lengths)
    except TypeError as error:
        own = _inmost(f)
        if _takes_two(own):
            raise
        name = type(own).__name__ if isinstance(own, nn.Module) else getattr(own, "__qualname__", type(own).__name__)
        raise TakesNoLengths(
            f"{name} takes x alone, but the sequences are padded and come with lengths: give it "
            "`def forward(self, x, lengths=None)`, where lengths (b,) says how many steps of each count, and leave the "
            "rest out (a mean over x[i, : lengths[i]], say); or cut all samples to one length."
        ) from error


def _inmost(f: Callable[..., Any]) -> Callable[..., Any]:
    """The model wrapped by torch.compile, DataParallel or DistributedDataParallel."""
    if isinstance(f, nn.DataParallel | nn.parallel.DistributedDataParallel):
        return _inmost(f.module)
    inner = getattr(f, "_orig_mod", None)  # of torch.compile(model)
    inner = getattr(f, "_torchdynamo_orig_callable", None) if inner is None else inner  # of torch.compile(function)
    return f if inner is None else _inmost(inner)


def _takes_two(f: Callable[..., Any]) -> bool:
    try:
        inspect.signature(f.forward if isinstance(f, nn.Module) else f).bind(0, 0)
    except TypeError:
        return False
    except ValueError:  # no signature available
        return True
    return True


def _freezable(module: nn.Module | None) -> Iterator[Any]:
    """The outermost modules that offer `frozen()`: a model of ours may be wrapped in a user's normalisation."""
    if callable(getattr(module, "frozen", None)):
        yield module
    elif module is not None:
        for child in module.children():
            yield from _freezable(child)


def _join(parts: tuple[Tensor, ...]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _mean(runs: list[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    return tuple(sum(values[1:], values[0]) / len(runs) for values in zip(*runs, strict=True))


@contextmanager
def keep_modes(module: nn.Module | None) -> Iterator[None]:
    """Restore the mode, training or evaluation, of every submodule."""
    found = [] if module is None else [(own, own.training) for own in module.modules()]
    try:
        yield
    finally:
        for own, mode in found:
            own.training = mode


@contextmanager
def _still(module: nn.Module | None) -> Iterator[None]:
    """Evaluation mode and no parameter gradients; every submodule's mode is restored."""
    trainable = [] if module is None else [p for p in module.parameters() if p.requires_grad]
    with keep_modes(module):
        try:
            if module is not None:
                module.eval()
            for p in trainable:
                p.requires_grad_(False)
            yield
        finally:
            for p in trainable:
                p.requires_grad_(True)
