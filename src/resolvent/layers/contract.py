"""The contract of every layer: the call signature of `torch.nn.GRU`, an explicit state, one set of checks and errors.

    y, state = layer(x, state=None, lengths=None)     x (b, l, d) -> y (b, l, d)
    y_t, state = layer.step(x_t, state)               x_t (b, d)  -> y_t (b, d)
        y, state = layer(x, dt=dt)                        step sizes dt (b, l), in the layer's steps: uneven sampling

Whole sequence = any chunking = step by step. A concrete layer implements `state_spec`, `_sequence` and `_step`; this
module does the checks, half precision, padding, both directions and freezing. `resolvent check` tests the rest.

Shape letters: b batch, l length, d channels (d_model), n states (d_state).
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from resolvent.layers import checks, fast_step
from resolvent.layers.freezing import Freezable, frozen
from resolvent.layers.groups import group_parameters
from resolvent.layers.precision import not_below_float32
from resolvent.layers.recorded import GRAPHS, forget_own, node
from resolvent.layers.recorded import run as run_recorded
from resolvent.layers.recorded.known import issue
from resolvent.layers.recorded.signature import TICKET
from resolvent.layers.states import map_state, reverse, stack_states
from resolvent.ops.linear_scan import documents_of
from resolvent.ops.plain import is_chosen
from resolvent.ops.step import Step, recorded
from resolvent.runtime.transforms import half_products, is_exporting, is_traced, is_untransformed, without_autocast

State = Any
"""A tensor, or a tuple or dict of tensors; `Layer.state_spec` says what it holds."""


@dataclass(frozen=True)
class Spec:
    """Shape and dtype of one tensor of a state; None in the shape marks a dimension that grows (a cache).

    Examples:
        >>> rv.LRU(4, 8).state_spec(batch=2)
        Spec(shape=(2, 8), dtype=torch.complex64)
    """

    shape: tuple[int | None, ...]
    dtype: torch.dtype


class Layer(Freezable, ABC):
    """One sequence layer (b, l, d) -> (b, l, d). Concrete layers are final: compose them, do not subclass.

    Examples:
        >>> isinstance(rv.S5(4), rv.layers.Layer)
        True
    """

    starts_from_none = False  # whether `_sequence` takes None for the zero state
    is_recordable = True  # whether its pass may run as a CUDA graph; False where the state is as long as the input
    takes_half = False  # whether `_sequence` takes x in bfloat16, as under autocast on a GPU
    rounds_ends = False  # whether, under autocast, inputs and outputs of the pass are rounded to half precision

    def __init__(self, d_model: int, *, bidirectional: bool = False, check_finite: bool = False) -> None:
        super().__init__()
        checks.check_positive(type(self).__name__, d_model=d_model)
        self.d_model = d_model
        self.bidirectional = bidirectional
        self.check_finite = check_finite
        self._specs: dict[tuple[int, torch.dtype], Any] = {}
        self._ticket = issue(self)

    # -- implemented by concrete layers -----------------------------------------------------------------------------

    @abstractmethod
    def state_spec(self, batch: int) -> Spec | tuple[Spec, ...] | dict[str, Spec]:
        """The shapes and dtypes of the state of `batch` sequences."""

    @abstractmethod
    def _sequence(self, x: Tensor, state: State, lengths: Tensor | None) -> tuple[Tensor, State]:
        """Causal pass over x (b, l, d), l >= 1, from an already validated state.

        x has the layer's dtype (or half, `takes_half`) and is zero beyond `lengths`; the returned state is taken at
        each sequence's own end. Values of y beyond `lengths` are ignored.
        """

    @abstractmethod
    def _step(self, x_t: Tensor, state: State) -> tuple[Tensor, State]:
        """One step from an already validated state: x_t (b, d) -> y_t (b, d)."""

    def _backward_sequence(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        """The backward direction's contribution; x arrives reversed, and the caller reverses y back.

        By default that of `other`, a second layer of the same kind.
        """
        if (other := getattr(self, "other", None)) is not None:
            y: Tensor = other(x, lengths=lengths)[0]  # called as a module: it may have hooks (pruning does)
            return y
        raise ValueError(f"{type(self).__name__} has no second direction; build it with bidirectional=False.")

    def _uneven(self, x: Tensor, dt: Tensor, state: State, lengths: Tensor | None) -> tuple[Tensor, State]:
        """`_sequence` where step k has size dt[:, k] (b, l), in units of the layer's own step; `state` as there."""
        raise ValueError(checks.no_time(self))

    def _stepper(self) -> Step | None:
        """Optional fast form of `_step` for use in `frozen()`: (u, h) -> (y, h') with all tables precomputed.

        u and h may have any strides and are in the layer's dtype; the state must be a single tensor.
        """
        return None

    def optim_groups(self) -> list[dict[str, Any]]:
        """Parameter groups for torch.optim, as data: a group's `lr` and `weight_decay` override the optimiser's."""
        return group_parameters(self, {})

    # -- the public interface -----------------------------------------------------------------------------------------

    @property
    def dtype(self) -> torch.dtype:
        """The real dtype in which the layer computes: that of its parameters, at least float32."""
        return self.anchor.dtype

    @property
    def anchor(self) -> Tensor:
        """One of the layer's own parameters, for its dtype and device; child modules are not searched."""
        for parameter in self._parameters.values():
            if parameter is not None:
                return parameter
        return next(self.parameters())

    @property
    def complex_dtype(self) -> torch.dtype:
        return torch.complex128 if self.dtype == torch.float64 else torch.complex64

    def initial_state(self, batch: int) -> State:
        """The zero state for `batch` sequences, on the layer's device."""
        if self.bidirectional:
            raise ValueError(checks.no_streaming(self, "initial_state"))
        checks.check_positive(f"{type(self).__name__}.initial_state", batch=batch)
        device = self.anchor.device
        return map_spec(
            self.state_spec(batch), lambda s: torch.zeros([n or 0 for n in s.shape], dtype=s.dtype, device=device)
        )

    def forward(
        self,
        x: Tensor,
        state: State = None,
        lengths: Tensor | None = None,
        *,
        dt: Tensor | None = None,
        rate: float | None = None,
        start: Tensor | None = None,
    ) -> tuple[Tensor, State]:
        """Process the whole sequence. Returns y in x's dtype and the state after each sequence's last step.

        dt    (b, l), positive: the duration of each step, in units of the step that the layer was trained with; for
              layers in continuous time (S4D, S5, S6)
        rate  for a stream sampled `rate` times as often as in training: dt = 1 / rate throughout
        start bool, broadcasts to (b, l): marks the first step of each document packed in a row (`packed_starts`). Each
              document is processed as if alone; the state returned is that of the last document of the row
        """
        checks.check_sequence(self, x, lengths)
        if start is not None:
            return self._packed(x, start, state, lengths, dt, rate)
        if dt is not None or rate is not None:
            return self._pass(x, lengths, state, checks.check_time(self, x, dt, rate, lengths))
        if x.device.type in GRAPHS and self.is_recordable and state is None:
            if not torch.compiler.is_compiling():
                return run_recorded(self, Layer._pass, x, lengths)
            if not (is_exporting() or is_chosen()) and self._may_be_node(self.training):
                return self._as_node(x, lengths)
        return self._pass(x, lengths, state)

    def _may_be_node(self, training: bool) -> bool:
        """Whether compilers see the pass as one opaque node; not possible where the state grows."""
        return node.may_be_node(self) and (self.bidirectional or not checks.grows(self.state_spec(1)))

    _may_be_node._dynamo_marked_constant = True  # type: ignore[attr-defined]  # `assume_constant_result`, not imported

    def _as_node(self, x: Tensor, lengths: Tensor | None) -> tuple[Tensor, State]:
        """`_pass` as one opaque node of a compiled graph."""
        leaves: list[Spec] = []
        form = None if self.bidirectional else recorded.flatten(node.arrange(self.state_spec(x.shape[0])), leaves)
        y, ends = node.run(self, x, lengths, leaves)
        return y, None if self.bidirectional else recorded.unflatten(form, ends)

    def _pass(
        self, x: Tensor, lengths: Tensor | None, state: State = None, dt: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """The pass over checked inputs, as separate torch operations."""
        if dt is not None and type(self)._uneven is Layer._uneven:
            raise ValueError(checks.no_time(self))
        if self.bidirectional and not (state is None and dt is None):
            raise ValueError(checks.no_streaming(self, "state" if dt is None else "dt"))
        if state is not None:
            checks.check_state(self, state, x.shape[0])
        if x.shape[1] == 0:
            empty = None if self.bidirectional else self.initial_state(x.shape[0]) if state is None else state
            return x.clone(), empty
        mask = checks.padding_mask(x, lengths)  # (b, l, 1) or None
        with self._precision(x.device.type):
            readable = x.device.type == "cpu" and not is_traced(x) and is_untransformed()  # would synchronise a GPU
            x_in = x.to(self._input_dtype(x) if dt is None else self.dtype)
            if mask is not None:
                x_in = x_in.masked_fill(mask, 0)
            if self.bidirectional:
                y, end = self._both_directions(x_in, lengths), None
            else:
                state = self._zero_state(x) if state is None else state
                if dt is not None:
                    steps = dt.to(self.dtype) if mask is None else dt.to(self.dtype).masked_fill(mask[..., 0], 1.0)
                    y, end = self._uneven(x_in, steps, state, lengths)
                else:
                    y, end = self._sequence(x_in, state, lengths)
                if readable and dt is None and not bool(torch.isfinite(x_in.detach().sum())):
                    y = self._isolate_nonfinite(y, x_in, state, lengths)
            if mask is not None:
                y = y.masked_fill(mask, 0)
        return y.to(x.dtype), end

    def _packed(self, x: Tensor, start: Tensor, *others: Any) -> tuple[Tensor, State]:
        """Unpack the documents into rows of their own, run them, and pack the outputs again."""
        if any(other is not None for other in others):
            raise ValueError(
                f"{type(self).__name__}: packed documents (start) begin with a fresh state and fill their rows; leave "
                "state, lengths, dt and rate out, and mark padding as a document."
            )
        if x.shape[1] == 0:
            return self.forward(x)
        packed = documents_of(type(self).__name__, x, start)
        y, end = self.forward(packed.x, None, packed.lengths)
        return packed.joined(y), map_state(end, lambda t: t[packed.ends])

    def step(self, x_t: Tensor, state: State = None, *, dt: Tensor | float | None = None) -> tuple[Tensor, State]:
        """One time step: x_t (b, d). `state` is the one the last call returned; None starts from zero.

        dt  (b,), or one number: the duration of this step, as in `forward`
        """
        if dt is not None:
            checks.check_step(self, x_t)
            y, end = self(x_t[:, None], state, dt=checks.step_time(self, x_t, dt)[:, None])
            return y[:, 0], end
        taken = fast_step.try_step(self, x_t, state)
        if taken is None and state is not None and not (self.check_finite or "_step" in self.__dict__):
            taken = recorded.replay(self._tables, self._step_long, x_t, state)
        return self._step_long(x_t, state) if taken is None else taken

    def _step_long(self, x_t: Tensor, state: State) -> tuple[Tensor, State]:
        """The step with every check, as separate torch operations."""
        if self.bidirectional:
            raise ValueError(checks.no_streaming(self, "step"))
        checks.check_step(self, x_t)
        if state is None:
            state = self.initial_state(x_t.shape[0])
        else:
            checks.check_state(self, state, x_t.shape[0])
        if not x_t.is_meta and torch.is_autocast_enabled(x_t.device.type):
            with self._precision(x_t.device.type):
                y_t, state = self._step(x_t.to(self.dtype), state)
        elif x_t.dtype == self.dtype:  # skips casts, whose cost is noticeable in so short a step
            return self._step(x_t, state)
        else:
            y_t, state = self._step(x_t.to(self.dtype), state)
        return y_t.to(x_t.dtype), state

    def states(
        self,
        x: Tensor,
        at: int | Sequence[int] | Tensor | None = None,
        state: State = None,
        *,
        dt: Tensor | None = None,
    ) -> State:
        """The intermediate states: after step t of x (b, l, d) for each t in `at` (None: after every step).

        Shape (b, steps, ...), or (b, ...) for a single index; -1 is the last step. As by stepping through x. A state of
        several tensors returns several. dt (b, l) as in `forward`.
        """
        checks.check_sequence(self, x, None)
        checks.check_lasting(self)
        l, single = x.shape[1], isinstance(at, int) or getattr(at, "ndim", 1) == 0
        wanted, found, done = checks.check_places(self, at, l), {}, 0
        state = self.initial_state(x.shape[0]) if state is None else state
        if not wanted:
            return map_state(state, lambda t: t[:, None][:, :0])
        for t in sorted(set(wanted)):
            times = {} if dt is None else {"dt": dt[:, done : t + 1]}
            state = self(x[:, done : t + 1], state, **times)[1]
            found[t], done = state, t + 1
        return found[wanted[0]] if single else stack_states([found[t] for t in wanted])

    def extra_repr(self) -> str:
        """The constructor arguments that differ from their defaults; sizes always."""
        given = inspect.signature(type(self).__init__).parameters.values()
        own = {p.name: p.default for p in given if p.name in self.__dict__ or p.name == "d_model"}
        shown = {name: getattr(self, name) for name, default in own.items() if _is_shown(name, self, default)}
        return ", ".join(f"{name}={value!r}" for name, value in shown.items())

    @contextmanager
    def frozen(self) -> Iterator[Layer]:
        """A context in which tables derived from parameters are computed once and gradients flow to inputs only."""
        with frozen(self):
            yield self

    # -- shared machinery ------------------------------------------------------------------------------------------

    def _precision(self, device_type: str) -> AbstractContextManager[Any]:
        """Recurrences run in the layer's own dtype, outside autocast; a block, which may use half, runs inside it."""
        return without_autocast(device_type)

    def _input_dtype(self, x: Tensor) -> torch.dtype:
        """The layer's own dtype, or half where autocast asks for it and the layer supports it."""
        half = self.takes_half and self.dtype == torch.float32 and half_products(x)
        return torch.bfloat16 if half else self.dtype

    def _isolate_nonfinite(self, y: Tensor, x: Tensor, start: State, lengths: Tensor | None) -> Tensor:
        """Recompute y before the first non-finite step with later inputs zeroed: the block products multiply every step
        by 0 or 1, and 0 times NaN is NaN."""
        odd = (~torch.isfinite(x.detach())).any(-1).cumsum(1) > 0  # (b, l), from the first such step on
        if not bool(odd.any()):  # only the sum overflowed
            return y
        before, _ = self._sequence(x.masked_fill(odd[..., None], 0), start, lengths)
        return torch.where(odd[..., None], y, before)

    def _both_directions(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        y, _ = self._sequence(x, self._zero_state(x), lengths)
        return y + reverse(self._backward_sequence(reverse(x, lengths), lengths), lengths)

    def _zero_state(self, x: Tensor) -> State:
        """The zero state in the form `_sequence` takes (None where it accepts that); also for bidirectional layers."""
        if self.starts_from_none:
            return None
        return map_spec(
            self.state_spec(x.shape[0]),
            lambda s: torch.zeros([n or 0 for n in s.shape], dtype=s.dtype, device=x.device),
        )

    def known_spec(self, batch: int) -> Any:
        """`state_spec(batch)`, cached for each batch size and dtype."""
        if not isinstance(batch, int) or torch.compiler.is_compiling():  # a symbolic size
            return self.state_spec(batch)
        key = (batch, self.dtype)
        if key not in self._specs:
            if len(self._specs) > 64:  # bounds the cache when batch sizes keep changing
                self._specs.clear()
            self._specs[key] = self.state_spec(batch)
        return self._specs[key]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__getstate__().items() if name != TICKET}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._ticket = issue(self)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Layer:
        """Moves and casts; a cast to half keeps float32 parameters."""
        forget_own(self)  # recorded graphs hold the parameters' old addresses
        return super()._apply(lambda t: not_below_float32(t, fn(t)), recurse)


def _is_shown(name: str, layer: nn.Module, default: Any) -> bool:
    value = getattr(layer, name)
    return isinstance(value, int | float | str) and (name in ("d_model", "d_state") or value != default)


def at_lengths(h: Tensor, lengths: Tensor | None) -> Tensor:
    """The last valid entry of h (b, l, ...) along time: (b, ...)."""
    if lengths is None:
        return h[:, -1]
    return h[torch.arange(h.shape[0], device=h.device), lengths - 1]


def map_spec(spec: Any, make: Callable[[Spec], Any]) -> Any:
    """Apply `make` to every Spec of a state description, preserving its tuple or dict structure."""
    if isinstance(spec, Spec):
        return make(spec)
    if isinstance(spec, dict):
        return {name: map_spec(part, make) for name, part in spec.items()}
    return tuple(map_spec(part, make) for part in spec)
