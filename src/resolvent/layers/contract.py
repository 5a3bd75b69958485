"""The contract that every layer keeps: the calls of `torch.nn.GRU`, an explicit state, one way to be wrong.

    y, state = layer(x, state=None, lengths=None)     x (b, l, d) -> y (b, l, d)
    y_t, state = layer.step(x_t, state)               x_t (b, d)  -> y_t (b, d)

Whole sequence = any chunking = step by step. A concrete layer writes `state_spec`, `_sequence` and `_step`; checking,
half precision, padding, both directions and freezing are done here, once. `resolvent check` proves the rest.

Shape letters: b batch, l length, d channels (d_model), n states (d_state).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from resolvent.layers import border, lane
from resolvent.layers.freezing import Freezable, frozen
from resolvent.scan.step import Step

State = Any  # a tensor, or a tuple or dict of tensors; what it holds is told by `Layer.state_spec`
HALF = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Spec:
    """Shape and dtype of one tensor of a state; None in the shape stands for a size that grows (a cache)."""

    shape: tuple[int | None, ...]
    dtype: torch.dtype


class Layer(Freezable, ABC):
    """One sequence layer (b, l, d) -> (b, l, d). Concrete layers are final: compose, do not subclass them."""

    def __init__(self, d_model: int, *, bidirectional: bool = False, check_finite: bool = False) -> None:
        super().__init__()
        border.check_positive(type(self).__name__, d_model=d_model)
        self.d_model = d_model
        self.bidirectional = bidirectional
        self.check_finite = check_finite
        self._specs: dict[tuple[int, torch.dtype], Any] = {}

    # -- what a concrete layer writes ------------------------------------------------------------------------------

    @abstractmethod
    def state_spec(self, batch: int) -> Spec | tuple[Spec, ...] | dict[str, Spec]:
        """What the state of `batch` sequences looks like."""

    @abstractmethod
    def _sequence(self, x: Tensor, state: State, lengths: Tensor | None) -> tuple[Tensor, State]:
        """Causal pass over x (b, l, d), l >= 1, from a checked state.

        x is in the layer's dtype and zero beyond `lengths`; the state returned is the one at each sequence's own end.
        What is returned as y beyond `lengths` is ignored.
        """

    @abstractmethod
    def _step(self, x_t: Tensor, state: State) -> tuple[Tensor, State]:
        """One step from a checked state: x_t (b, d) -> y_t (b, d)."""

    def _backward_sequence(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        """What a bidirectional layer adds for the other direction; x comes reversed, the caller turns y back."""
        raise ValueError(f"{type(self).__name__} has no second direction; build it with bidirectional=False.")

    def _stepper(self) -> Step | None:
        """`_step` for plain values (u, h) -> (y, h'), with all tables prepared; kept in `frozen()`. Optional.

        It takes u and h of any strides in the layer's dtype, and h of a state that is one tensor.
        """
        return None

    def optim_groups(self) -> list[dict[str, Any]]:
        """Parameter groups as data for torch.optim: groups with an `lr` or `weight_decay` override the optimiser's."""
        return grouped(self, {})

    # -- what users call -------------------------------------------------------------------------------------------

    @property
    def dtype(self) -> torch.dtype:
        """The real dtype that the layer computes in: that of its parameters, never below float32."""
        return self.anchor.dtype

    @property
    def anchor(self) -> Tensor:
        """A parameter that tells the layer's dtype and device; its own are found without walking its children."""
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
            raise ValueError(border.no_streaming(self, "initial_state"))
        border.check_positive(f"{type(self).__name__}.initial_state", batch=batch)
        device = self.anchor.device
        return map_spec(
            self.state_spec(batch), lambda s: torch.zeros([n or 0 for n in s.shape], dtype=s.dtype, device=device)
        )

    def forward(self, x: Tensor, state: State = None, lengths: Tensor | None = None) -> tuple[Tensor, State]:
        """The whole sequence. Returns y in x's dtype and the state after each sequence's last step."""
        border.check_sequence(self, x, lengths)
        if self.bidirectional and state is not None:
            raise ValueError(border.no_streaming(self, "state"))
        if state is not None:
            border.check_state(self, state, x.shape[0])
        if x.shape[1] == 0:
            empty = None if self.bidirectional else self.initial_state(x.shape[0]) if state is None else state
            return x.clone(), empty
        mask = border.padding_mask(x, lengths)  # (b, l, 1) or None
        with self._precision(x.device.type):
            x_in = x.to(self.dtype)
            if mask is not None:
                x_in = x_in.masked_fill(mask, 0)
            if self.bidirectional:
                y, end = self._both_directions(x_in, lengths), None
            else:
                start = self.initial_state(x.shape[0]) if state is None else state
                y, end = self._sequence(x_in, start, lengths)
            if mask is not None:
                y = y.masked_fill(mask, 0)
        return y.to(x.dtype), end

    def step(self, x_t: Tensor, state: State = None) -> tuple[Tensor, State]:
        """One time step: x_t (b, d). `state` is what the last call returned; None starts from zero."""
        taken = lane.take(self, x_t, state)
        if taken is not None:
            return taken
        if self.bidirectional:
            raise ValueError(border.no_streaming(self, "step"))
        border.check_step(self, x_t)
        if state is None:
            state = self.initial_state(x_t.shape[0])
        else:
            border.check_state(self, state, x_t.shape[0])
        if torch.is_autocast_enabled(x_t.device.type):
            with self._precision(x_t.device.type):
                y_t, state = self._step(x_t.to(self.dtype), state)
        elif x_t.dtype == self.dtype:  # no casts where none is needed: a step is so short that they show
            return self._step(x_t, state)
        else:
            y_t, state = self._step(x_t.to(self.dtype), state)
        return y_t.to(x_t.dtype), state

    @contextmanager
    def frozen(self) -> Iterator[Layer]:
        """A context in which tables made from parameters are computed once and only input gradients flow."""
        with frozen(self):
            yield self

    # -- shared machinery ------------------------------------------------------------------------------------------

    def _precision(self, device_type: str) -> AbstractContextManager[Any]:
        """Recurrences run in the layer's own dtype, outside of autocast; a block, which may be half, inside."""
        return torch.autocast(device_type, enabled=False)

    def _both_directions(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        start = map_spec(
            self.state_spec(x.shape[0]),
            lambda s: torch.zeros([n or 0 for n in s.shape], dtype=s.dtype, device=x.device),
        )
        y, _ = self._sequence(x, start, lengths)
        return y + reverse(self._backward_sequence(reverse(x, lengths), lengths), lengths)

    def known_spec(self, batch: int) -> Any:
        """`state_spec(batch)`, made once for each batch size and dtype."""
        key = (batch, self.dtype)
        if key not in self._specs:
            if len(self._specs) > 64:  # a stream of ever new batch sizes must not fill the memory
                self._specs.clear()
            self._specs[key] = self.state_spec(batch)
        return self._specs[key]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Layer:
        """Moves and casts; a cast to half keeps the parameters: |lambda| = 0.999 has no neighbour in bfloat16."""
        return super()._apply(lambda t: _not_below_float32(t, fn(t)), recurse)


def grouped(layer: nn.Module, special: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Split parameters into groups: `special` maps a name to its overrides; the rest form one plain group."""
    groups: dict[tuple[tuple[str, Any], ...], list[nn.Parameter]] = {}
    for name, parameter in layer.named_parameters():
        key = tuple(sorted(special.get(name, {}).items()))
        groups.setdefault(key, []).append(parameter)
    return [{"params": params, **dict(key)} for key, params in groups.items()]


def reverse(x: Tensor, lengths: Tensor | None = None) -> Tensor:
    """Turn each sequence of x (b, l, ...) around within its own length; padding stays where it is."""
    if lengths is None:
        return x.flip(1)
    t = torch.arange(x.shape[1], device=x.device)
    index = torch.where(t < lengths[:, None], lengths[:, None] - 1 - t, t)  # (b, l)
    return x.gather(1, index.reshape(index.shape + (1,) * (x.dim() - 2)).expand_as(x))


def at_lengths(h: Tensor, lengths: Tensor | None) -> Tensor:
    """The last valid entry of h (b, l, ...) along time: (b, ...)."""
    if lengths is None:
        return h[:, -1]
    return h[torch.arange(h.shape[0], device=h.device), lengths - 1]


def map_spec(spec: Any, make: Callable[[Spec], Any]) -> Any:
    """Apply `make` to every Spec of a state description, keeping its tuple or dict."""
    if isinstance(spec, Spec):
        return make(spec)
    if isinstance(spec, dict):
        return {name: map_spec(part, make) for name, part in spec.items()}
    return tuple(map_spec(part, make) for part in spec)


def _not_below_float32(old: Tensor, new: Tensor) -> Tensor:
    return old.to(new.device) if new.dtype in HALF and old.dtype not in HALF else new
