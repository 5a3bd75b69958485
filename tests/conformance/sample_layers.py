"""A leaky average that keeps the contract, a stranger that keeps it without our base, and one that crashes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from resolvent.layers.contract import Layer, Spec, at_lengths
from resolvent.ssm.system import Diagonal, System


class Leaky(Layer):
    """h_t = a h_{t-1} + (1 - a) x_t, y_t = g h_t + x_t, a = sigmoid(w): the smallest honest layer."""

    def __init__(self, d_model: int = 3, **options: Any) -> None:
        super().__init__(d_model, **options)
        self.w = nn.Parameter(torch.randn(d_model))
        self.g = nn.Parameter(torch.randn(d_model))
        if self.bidirectional:
            self.g_back = nn.Parameter(torch.randn(d_model))

    def a(self) -> Tensor:
        return self.cached("a", lambda: 0.999 * torch.sigmoid(self.w))

    def state_spec(self, batch: int) -> Spec:
        return Spec((batch, self.d_model), self.dtype)

    def scan(self, x: Tensor, h: Tensor) -> Tensor:
        hs = []
        for x_t in x.unbind(1):
            h = self.a() * h + (1 - self.a()) * x_t
            hs.append(h)
        return torch.stack(hs, 1)

    def _sequence(self, x: Tensor, state: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        h = self.scan(x, state)
        return self.g * h + x, at_lengths(h, lengths)

    def _uneven(self, x: Tensor, dt: Tensor, state: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        h, hs = state, []
        for x_t, time in zip(x.unbind(1), dt.unbind(1), strict=True):
            a = self.a() ** time[:, None]
            h = a * h + (1 - a) * x_t
            hs.append(h)
        found = torch.stack(hs, 1)
        return self.g * found + x, at_lengths(found, lengths)

    def _backward_sequence(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        return self.g_back * self.scan(x, torch.zeros_like(x[:, 0]))

    def _step(self, x_t: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        h = self.a() * state + (1 - self.a()) * x_t
        return self.g * h + x_t, h

    def system(self) -> System:
        one = torch.ones(self.d_model, 1, 1, dtype=self.dtype)
        a = self.a()[:, None]
        return System(Diagonal(a), (1 - a)[..., None], self.g[:, None, None], one, dt=1.0)


class Stranger(nn.Module):
    """The same average by somebody who never heard of our base class; no system(), no frozen()."""

    def __init__(self, d_model: int = 3) -> None:
        super().__init__()
        self.d_model = d_model
        self.inner = nn.Linear(d_model, d_model)

    def initial_state(self, batch: int) -> Tensor:
        if batch < 1:
            raise ValueError(f"Stranger: expected at least one sequence, got {batch}.")
        return self.inner.weight.new_zeros(batch, self.d_model)

    def step(self, x_t: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        self._check(x_t, 2, state)
        state = self.initial_state(x_t.shape[0]) if state is None else state
        state = torch.tanh(self.inner(x_t.to(state.dtype)) + 0.5 * state)
        return state.to(x_t.dtype), state

    def forward(self, x: Tensor, state: Tensor | None = None, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
        self._check(x, 3, state)
        if lengths is None:
            lengths = torch.full((x.shape[0],), x.shape[1])
        elif not isinstance(lengths, Tensor) or lengths.shape != x.shape[:1] or lengths.is_floating_point():
            raise TypeError(f"Stranger: expected one whole length per sequence, got {lengths}.")
        elif not torch.compiler.is_compiling() and (int(lengths.min()) < 1 or int(lengths.max()) > x.shape[1]):
            raise ValueError(f"Stranger: expected lengths from 1 to {x.shape[1]}, got {lengths}.")
        state = self.initial_state(x.shape[0]) if state is None else state
        outputs = [x[:, :0]]
        for t in range(x.shape[1]):
            alive = (t < lengths)[:, None]
            _, new = self.step(torch.where(alive, x[:, t], 0), state)
            state = torch.where(alive, new, state)
            outputs.append(torch.where(alive, new, 0).to(x.dtype)[:, None])
        return torch.cat(outputs, 1), state

    def _check(self, x: Any, rank: int, state: Any) -> None:
        if not isinstance(x, Tensor) or x.device != self.inner.weight.device:
            raise TypeError(f"Stranger: expected a tensor on the layer's device, got {type(x).__name__}.")
        if x.dim() != rank or x.shape[-1] != self.d_model or x.shape[0] == 0:
            raise ValueError(f"Stranger: expected rank {rank} and {self.d_model} channels, got {tuple(x.shape)}.")
        if x.dtype not in (self.inner.weight.dtype, torch.bfloat16):
            raise TypeError(f"Stranger: expected {self.inner.weight.dtype}, got {x.dtype}; convert the input.")
        if state is None:
            return
        if not isinstance(state, Tensor) or state.dtype != self.inner.weight.dtype:
            raise TypeError(f"Stranger: expected a state in {self.inner.weight.dtype}, got {type(state).__name__}.")
        if state.shape != (x.shape[0], self.d_model):
            raise ValueError(f"Stranger: expected a state ({x.shape[0]}, {self.d_model}), got {tuple(state.shape)}.")


class Crashes(Leaky):
    """Raises in the middle."""

    def _sequence(self, x: Tensor, state: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        raise RuntimeError("the cat sat on the keyboard")


def halved(x: Tensor) -> Tensor:
    """A function of this module, which a compiler finds by the module's name."""
    return x * 0.5


class Globals(Leaky):
    """Honest; its step leans on a function beside the class, and its loop is short enough to unroll."""

    def a(self) -> Tensor:
        return halved(torch.sigmoid(self.w))
