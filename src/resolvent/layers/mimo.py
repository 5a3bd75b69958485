"""Diagonal systems with multiple inputs and outputs: code shared by S5 and LRU.

    h_k = lam_bar h_{k-1} + B_bar u_k,    y_k = s Re(C h_k) + D u_k  s = 2 if one of each conjugate pair is kept, else 1

Only real matrix products act on the sequence. A complex state of p numbers is stored as 2p interleaved reals, so
B_bar u is one real product whose result is viewed as complex, and s Re(C h) one real product on the real view of h:

    W_in  = [Re B_bar_1; Im B_bar_1; Re B_bar_2; ...]         (2p, d)
    W_out = s [Re C_1, -Im C_1, Re C_2, ...]                  (d, 2p)

Shape letters: b batch, l length, d channels, p complex states.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from resolvent.layers.contract import Layer, at_lengths
from resolvent.ops import plain
from resolvent.ops.blocked import deinterleave, reals
from resolvent.ops.dense_scan import linear
from resolvent.ops.linear_scan import pair_scan
from resolvent.ops.mimo_scan import mimo_scan, serves
from resolvent.ops.modes import Opaque, Parameters
from resolvent.ops.pairs import Number, stack_parts
from resolvent.ops.step import Step, is_unwatched, mimo_step
from resolvent.runtime.dispatch import lazily
from resolvent.runtime.transforms import half_products, is_traced, is_untransformed
from resolvent.scan import linear_scan

ROUNDING_STEPS = 8  # distance of |lam_bar| below 1, in units in the last place


class Tables(NamedTuple):
    """The tables of the recurrence, computed from parameters alone."""

    lam_bar: Tensor  # (p,) complex; (p, 2) in a traced pass
    W_in: Tensor  # (2p, d)
    W_out: Tensor  # (d, 2p)
    D: Tensor  # (d,)


class TableMaker:
    """How a layer class makes its tables: `discrete(parameters, option)` gives lam_bar (p,) and B_bar (p, d) from
    all parameters but the last, C (d, p, 2). In a traced pass this is one opaque node for each of forward and
    backward; on a GPU one kernel each.

    Created once per layer class, at module level, which registers the operator. `given` are the shapes of the
    parameters before B for p = 3, `options` those with which kernels are probed.
    """

    def __init__(
        self,
        name: str,
        discrete: Callable[[Parameters, str], tuple[Number, Number]],
        given: Sequence[tuple[int, ...]],
        options: Sequence[str],
    ) -> None:
        self.discrete = discrete
        whole, shapes = [f"{option} 2.0" for option in options], (*given, (3, 2, 2), (2, 3, 2))
        load = lazily("ops.modes.mimo_triton")
        self.opaque = Opaque(name, self._flatten, _shapes, load, lambda: [*map(_wave, shapes)], whole)

    def tables(self, parameters: Sequence[Tensor], D: Tensor, option: str, scale: float) -> Tables:
        """The tables from parameters, the last of which are B (p, d, 2) and C."""
        if is_traced(D):
            own = self.opaque.operator if not plain.is_chosen() else self._flatten
            lam_bar, W_in, W_out = own(list(parameters), f"{option} {scale}", 0, False)
            return Tables(lam_bar, W_in, W_out, D)
        if D.is_cuda and is_untransformed():  # as a CUDA graph: it is hundreds of calls on small tensors
            lam_bar, W_in, W_out = self.opaque.tables(parameters, f"{option} {scale}", 0, False)
            return Tables(torch.view_as_complex(lam_bar), W_in, W_out, D)
        lam_bar, B_bar = self.discrete(parameters[:-1], option)
        return Tables(lam_bar, input_table(B_bar), output_table(parameters[-1], scale), D)

    def _flatten(self, parameters: Parameters, option: str, T: int, delay: bool) -> list[Tensor]:
        own, scale = option.rsplit(" ", 1)
        lam_bar, B_bar = self.discrete(parameters[:-1], own)
        return [stack_parts(lam_bar), input_table(B_bar), output_table(parameters[-1], float(scale))]


def _wave(shape: tuple[int, ...]) -> Tensor:
    return torch.sin(torch.arange(prod(shape)) ** 1.5).view(shape) - 1



def _shapes(parameters: Parameters, option: str, T: int, delay: bool) -> list[tuple[int, ...]]:
    p, d = parameters[-2].shape[:2]
    return [(p, 2), (2 * p, d), (d, 2 * p)]


def input_table(B_bar: Number) -> Tensor:
    """W_in of a complex B_bar (p, d)."""
    p, d = B_bar.shape
    return stack_parts(B_bar).transpose(1, 2).reshape(2 * p, d)


def output_table(C: Tensor, scale: float = 1.0) -> Tensor:
    """W_out of C stored as real pairs (d, p, 2): Re(C h) = Re C Re h - Im C Im h."""
    return torch.stack([scale * C[..., 0], -scale * C[..., 1]], -1).flatten(1)


def inside_disc(lam: Number) -> Any:
    """lam with its modulus kept below 1 in floating point, too.

    exp(-x) of a small x > 0 is exactly 1 in float32, and cos, sin and their products round upwards: the modulus is
    therefore limited to 1 - 8 eps, a memory of a million steps in float32. Values inside are returned unchanged.
    """
    largest = 1.0 - ROUNDING_STEPS * torch.finfo(lam.real.dtype).eps
    return lam.mul(largest / lam.abs().clamp_min(largest))


def drive(tables: Tables, u: Tensor) -> Tensor:
    """B_bar u: (..., d) -> (..., p) complex, without a copy."""
    Bu = linear(u, tables.W_in)  # (..., 2p)
    return torch.view_as_complex(Bu.unflatten(-1, (-1, 2)))


def read(tables: Tables, h: Tensor, u: Tensor) -> Tensor:
    """s Re(C h) + D u: (..., p) and (..., d) -> (..., d)."""
    return torch.addcmul(linear(torch.view_as_real(h).flatten(-2), tables.W_out), u, tables.D)


class Mimo(Layer, ABC):
    """A layer that is a single such system: what it does with the tables of the concrete class."""

    D: Tensor  # (d,)
    starts_from_none = True

    @abstractmethod
    def _tables_now(self) -> Tables:
        """The tables of the current parameters."""

    @abstractmethod
    def _back_table(self) -> Tensor:
        """W_out of the backward direction."""

    def tables(self) -> Tables:
        return self.cached("traced tables" if is_traced(self.D) else "tables", self._tables_now)

    def _sequence(self, x: Tensor, state: Tensor | None, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        return sequence(self.tables(), x, state, lengths)

    def _step(self, x_t: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return step(self.tables(), x_t, state)

    def _stepper(self) -> Step:
        return mimo_step(*self.tables())

    def _both_directions(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        # Both directions share one driven input: x is zero beyond lengths, so nothing needs reversing.
        return both_directions(self.tables(), self._back_table(), x)


def sequence(tables: Tables, u: Tensor, h0: Tensor | None, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
    """The causal pass: u (b, l, d), h0 (b, p) -> y (b, l, d) and the state at each sequence's end (b, p)."""
    if u.is_cuda and serves(u, h0):
        return _scan(tables, u, h0, lengths)
    if tables.lam_bar.is_complex():
        h = linear_scan(tables.lam_bar, drive(tables, u), h0)
        return read(tables, h, u), at_lengths(h, lengths).clone()  # a view would keep all l states in memory
    start = None if h0 is None else reals(h0)
    pairs = pair_scan(tables.lam_bar, linear(u, tables.W_in), start)  # (b, l, 2p)
    y = torch.addcmul(linear(pairs, tables.W_out), u, tables.D)
    return y, deinterleave(at_lengths(pairs, lengths))


def _scan(tables: Tables, u: Tensor, h0: Tensor | None, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
    """`sequence` with the GPU kernels."""
    lam = torch.view_as_real(tables.lam_bar) if tables.lam_bar.is_complex() else tables.lam_bar
    start = None if h0 is None else reals(h0)
    dtype = torch.bfloat16 if half_products(u) else torch.float32
    y, end = mimo_scan((lam, *tables[1:]), u, start, lengths, dtype)
    return y, torch.view_as_complex(end.unflatten(-1, (-1, 2)))


def both_directions(tables: Tables, W_back: Tensor, u: Tensor) -> Tensor:
    """Forward and backward pass over the same driven input, the latter read by W_back: u (b, l, d) -> y (b, l, d).

    u must be zero in the padding: the backward scan is then still at rest when it reaches the last valid step.
    """
    if not tables.lam_bar.is_complex():
        v = linear(u, tables.W_in)  # (b, l, 2p)
        y = torch.addcmul(linear(pair_scan(tables.lam_bar, v), tables.W_out), u, tables.D)
        return y + linear(pair_scan(tables.lam_bar, v, reverse=True), W_back)
    Bu = drive(tables, u)  # (b, l, p)
    y = read(tables, linear_scan(tables.lam_bar, Bu), u)
    h_back = linear_scan(tables.lam_bar, Bu, reverse=True)
    return y + linear(torch.view_as_real(h_back).flatten(-2), W_back)


def step(tables: Tables, u_t: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """One step: u_t (b, d), h (b, p) -> y_t (b, d) and the next h."""
    if not tables.lam_bar.is_complex():
        tables = tables._replace(lam_bar=torch.view_as_complex(tables.lam_bar))
    if is_unwatched(u_t, h, *tables):
        return mimo_step(*tables)(u_t, h)
    h = torch.addcmul(drive(tables, u_t), tables.lam_bar, h)
    return read(tables, h, u_t), h


def simulate(lam_bar: Tensor, B_bar: Tensor, C: Tensor, D: Tensor, u: Tensor, scale: float) -> Tensor:
    """The recurrence as written, step by step: the reference of `sequence`. u (b, l, d) -> y (b, l, d)."""
    h = torch.zeros_like(u[:, 0, :1] * lam_bar)  # (b, p)
    ys = []
    for u_k in u.unbind(1):
        h = lam_bar * h + u_k.to(B_bar.dtype) @ B_bar.mT
        ys.append(scale * (h @ C.mT).real + D * u_k)
    return torch.stack(ys, 1)
