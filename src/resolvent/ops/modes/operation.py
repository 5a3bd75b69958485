"""Tables of a diagonal bank as a function of its layer's parameters: discretisation, powers, Toeplitz blocks.

`Modes` says how a layer class makes its bank; `blocks` gives the tables of `ops.blocked` by the fastest method: in a
traced pass one opaque node (`resolvent::s4d_tables`, ...), so that graphs stay small and contain no complex numbers;
on a GPU one kernel, and one more for the gradients; elsewhere `blocked.tables`, which is also the reference for
probing kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from resolvent.ops import kept
from resolvent.ops.blocked.operation import Blocks, DiagonalCarry
from resolvent.ops.blocked.tables import DiagonalBank, diagonal_blocks, diagonal_tables, first_number, table_gradients
from resolvent.ops.blocked.traced import PairCarry
from resolvent.ops.library import one_by_one, recording
from resolvent.ops.pairs import Make, join_pairs, join_parts, stack_parts
from resolvent.runtime.dispatch import Candidate, choose, triton_or
from resolvent.runtime.transforms import (
    as_run,
    by_graph_only,
    gradients_by_graph,
    is_traced,
    is_untransformed,
    outside_autocast,
    refuses_operators,
)

Made = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]  # Toeplitz, M_in, M_out, powers and A^T; numbers in real pairs
Parameters = Sequence[Tensor]
MakeBank = Callable[..., DiagonalBank]  # (parameters, option, make): complex numbers by `join_parts`, if none is given


class Kind(Enum):
    """The kind of parameters."""

    S4D = "s4d"  # log_decay, frequency (d, n), log_dt (d,), B, C (d, n, 2)
    DSS = "dss"  # decay, frequency (n,), log_dt (d, 1 or 2), W (d, n, 2)
    EMA = "ema"  # alpha, damping, beta, eta (d, n)
    # each followed by D (d,), if any


class Maker(NamedTuple):
    """Tables of parameters, and the parameters' gradients from those of the tables; neither records a graph."""

    tables: Callable[[Parameters, str, int, bool], Made]  # (parameters, option, T, delay)
    gradients: Callable[..., list[Tensor]]  # (parameters, powers, gradients of Made or None, option, delay)


KNOWN: dict[str, Modes] = {}  # by the name of their kind, which an operator's schema supports


class Modes:
    """How one kind of layer makes its bank: `bank(parameters, option)`.

    `example` gives small parameters for probing kernels, and `fused` are the options they support. Created once per
    layer class, at module level, which registers the operator.
    """

    def __init__(
        self, kind: Kind, bank: MakeBank, example: Callable[[], Parameters], fused: tuple[str, ...] = ("",)
    ) -> None:
        self.kind, self.bank, self.example, self.fused = kind, bank, example, fused
        self._operator = _operator(self)
        KNOWN[kind.value] = self

    def blocks(self, parameters: Parameters, option: str, T: int, delay: bool) -> Blocks:
        if is_traced(*parameters):
            own = list(parameters), option, T, delay
            made = self.graph(*own) if refuses_operators() else self._operator(*own, kept.may_learn(parameters))
            toeplitz, M_in, M_out, powers, whole = made[:5]
            return Blocks(toeplitz, M_in, M_out, PairCarry(powers, whole))  # type: ignore[arg-type]
        like = parameters[0]
        if like.is_cuda and T > 1 and is_untransformed() and self.maker(like, option) is not self._torch:
            toeplitz, M_in, M_out, powers, whole = _Modes.apply(self, option, T, delay, *parameters)
            return Blocks(toeplitz, M_in, M_out, DiagonalCarry(join_pairs(powers, 4), join_pairs(whole, 3)))
        return diagonal_blocks(self.bank(parameters, option), T, like.dtype, delay)

    def maker(self, like: Tensor, option: str) -> Maker:
        if option not in self.fused:
            return self._torch
        found: Any = choose(f"{self.kind.value}_tables", self._candidates, like.device, like.dtype)
        assert isinstance(found, Maker)
        return found

    @cached_property
    def _torch(self) -> Maker:
        return Maker(self._made, self._slopes)

    @cached_property
    def _candidates(self) -> tuple[Candidate, ...]:
        return triton_or(self._torch, self._load, self.agrees)  # type: ignore[arg-type]

    def _load(self) -> Any:
        from resolvent.ops.modes.triton import maker

        return maker(self.kind)

    def agrees(self, maker: Any, device: torch.device, dtype: torch.dtype) -> bool:
        """Whether it agrees with the reference in tables and gradients, for an odd number of steps and with a delay."""
        parameters, option = [p.to(device, dtype) for p in self.example()], self.fused[0]
        return all(_same(maker, self._torch, parameters, option, *asked) for asked in ((11, False), (20, True)))

    # -- in torch's operations -------------------------------------------------------------------------------------

    def _made(self, parameters: Parameters, option: str, T: int, delay: bool) -> Made:
        with as_run():
            toeplitz, M_in, M_out, powers, whole = self.graph(parameters, option, T, delay)
        return toeplitz, M_in, M_out, powers, whole

    def graph(self, parameters: Parameters, option: str, T: int, delay: bool) -> list[Tensor]:
        """The same as a differentiable function."""
        bank = self.bank(parameters, option, torch.complex)
        made = diagonal_tables(bank, first_number(bank, delay).to(parameters[0].dtype), T, delay)
        return [stack_parts(t).contiguous() for t in made]

    def _slopes(
        self, parameters: Parameters, powers: Tensor, g: Sequence[Tensor | None], option: str, delay: bool
    ) -> list[Tensor]:
        """Recompute the bank with a graph; the later steps have their own gradients."""
        return _differentiate(self.ends(parameters, option, delay), powers, g, delay)

    def ends(self, parameters: Parameters, option: str, delay: bool) -> Ends:
        """The bank made from copies: the memory of parameters is the caller's."""
        with as_run(), recording():
            own = [p.detach().clone().requires_grad_() for p in parameters]
            bank = self.bank(own, option)
            return Ends(own, bank, first_number(bank, delay).to(own[0].dtype))

    def run_kept(self, parameters: Parameters, option: str, T: int, delay: bool) -> tuple[Tensor, ...]:
        """The tables, and the mark of the bank's graph kept for the backward."""
        ends = self.ends(parameters, option, delay)
        with as_run():
            made = diagonal_tables(ends.still(), ends.now.detach(), T, delay)
        held = {t.untyped_storage().data_ptr() for t in (ends.bank.lam, ends.bank.weight, ends.now)}
        flat = (stack_parts(t).contiguous() for t in made)
        apart = (t.clone() if t.untyped_storage().data_ptr() in held else t for t in flat)
        return *apart, kept.mark(parameters[0], ends)


class Ends(NamedTuple):
    """A bank with its graph from leaves that replace the parameters."""

    leaves: list[Tensor]
    bank: DiagonalBank
    now: Tensor  # direct contribution of an input to its output

    def still(self) -> DiagonalBank:
        gain = self.bank.gain
        parts = self.bank.lam.detach(), self.bank.weight.detach(), None if gain is None else gain.detach()
        return replace(self.bank, lam=parts[0], weight=parts[1], gain=parts[2])


def _differentiate(
    ends: Ends, powers: Tensor, g: Sequence[Tensor | None], delay: bool, again: bool = False
) -> list[Tensor]:
    """The parameters' gradients from those of the tables; `again`: retain the graph."""
    complex_ = ends.bank.lam.is_complex()
    shapes = _shapes(powers.shape, complex_)
    asked = [powers.new_zeros(()).expand(s) if t is None else t for t, s in zip(g, shapes, strict=True)]
    if complex_:
        asked[3:] = [torch.view_as_complex(t.contiguous()) for t in asked[3:]]
        powers = torch.view_as_complex(powers)
    own: list[Any] = [*asked[:3], None if g[3] is None else asked[3], asked[4]]
    found = table_gradients(ends.still(), powers, own, delay)[:3]
    leads = ends.bank.lam, ends.bank.weight, ends.now
    pairs = [(end, slope.to(end.dtype)) for end, slope in zip(leads, found, strict=True) if end.requires_grad]
    with as_run(), recording():
        slopes = torch.autograd.grad(
            [e for e, _ in pairs], ends.leaves, [s for _, s in pairs], retain_graph=again, allow_unused=True
        )
    return [torch.zeros_like(p) if t is None else t for t, p in zip(slopes, ends.leaves, strict=True)]


@dataclass(frozen=True, eq=False)
class Source:
    """One layer's bank: made when called, or skipped in making tables directly from parameters."""

    modes: Modes
    parameters: Parameters
    option: str = ""

    def __call__(self, make: Make = join_parts) -> DiagonalBank:
        return self.modes.bank(self.parameters, self.option, make)

    def blocks(self, T: int, delay: bool) -> Blocks:
        return self.modes.blocks(self.parameters, self.option, T, delay)


def _shapes(powers: torch.Size, pair: bool) -> list[tuple[int, ...]]:
    d, T, n = powers[:3]
    s, number = (2 * n, (2,)) if pair else (n, ())
    return [(d, T, T), (d, T, s), (d, T, s), (d, T, n, *number), (d, n, *number)]


def _same(one: Maker, other: Maker, parameters: Parameters, option: str, T: int, delay: bool) -> bool:
    if delay:
        parameters = parameters[:-1]  # D is not delayed
    found, want = (by.tables(parameters, option, T, delay) for by in (one, other))
    weights = [torch.cos(torch.arange(t.numel(), device=t.device, dtype=t.dtype)).view(t.shape) for t in want]
    slopes = [by.gradients(parameters, want[3], weights, option, delay) for by in (one, other)]
    return all(torch.allclose(x, y, 1e-4, 1e-5 * float(y.abs().max() + 1)) for x, y in
               (*zip(found, want, strict=True), *zip(*slopes, strict=True)))  # fmt: skip


class _Modes(torch.autograd.Function):
    """A `Maker` under autograd."""

    @staticmethod
    def forward(ctx: Any, modes: Modes, option: str, T: int, delay: bool, *parameters: Tensor) -> Made:
        made = modes.maker(parameters[0], option).tables(parameters, option, T, delay)
        ctx.save_for_backward(made[3], *parameters)
        ctx.own, ctx.shapes = (modes, option, T, delay), [t.shape for t in made]
        ctx.set_materialize_grads(False)
        return made

    @staticmethod
    @outside_autocast
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
        powers, *parameters = ctx.saved_tensors
        modes, option, T, delay = ctx.own
        if by_graph_only(*gradients):
            g = [powers.new_zeros(s) if t is None else t for t, s in zip(gradients, ctx.shapes, strict=True)]
            again = lambda *own: tuple(modes.graph(own, option, T, delay))  # noqa: E731
            return *(None,) * 4, *gradients_by_graph(again, parameters, g, ctx.needs_input_grad[4:])
        found = modes.maker(parameters[0], option).gradients(parameters, powers, gradients, option, delay)
        return *(None,) * 4, *found


# -- as one node of a graph --------------------------------------------------------------------------------------------


def _operator(modes: Modes) -> Any:
    name = f"resolvent::{modes.kind.value}_tables"

    @torch.library.custom_op(name, mutates_args=())
    def tables(
        parameters: list[Tensor], option: str, T: int, delay: bool, learns: bool
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        like = parameters[0]
        if learns and like.device.type == "cpu":
            toeplitz, M_in, M_out, powers, whole, own = modes.run_kept(parameters, option, T, delay)
            return toeplitz, M_in, M_out, powers, whole, own
        return *modes.maker(like, option).tables(parameters, option, T, delay), kept.mark(like)

    @tables.register_fake
    def _(parameters: list[Tensor], option: str, T: int, delay: bool, learns: bool) -> tuple[Tensor, ...]:
        like = parameters[3]
        pair = like.dim() == 3
        shapes = _shapes(torch.Size((like.shape[0], T, like.shape[1])), pair)
        return *map(like.new_empty, shapes), kept.fake_mark(like)

    @torch.library.custom_op(f"{name}_backward", mutates_args=())
    def backward(
        parameters: list[Tensor], mark: Tensor, powers: Tensor, g_toeplitz: Tensor | None, g_in: Tensor | None,
        g_out: Tensor | None, g_powers: Tensor | None, g_whole: Tensor | None, option: str, delay: bool,
    ) -> list[Tensor]:  # fmt: skip
        g = g_toeplitz, g_in, g_out, g_powers, g_whole
        ready = kept.take(mark)
        if ready is not None:
            return [t.contiguous() for t in _differentiate(ready[0], powers, g, delay, ready[1])]
        found = modes.maker(parameters[0], option).gradients(parameters, powers, g, option, delay)
        return [t.contiguous() for t in found]

    @backward.register_fake
    def _(parameters: list[Tensor], *rest: Any) -> list[Tensor]:
        return [p.new_empty(p.shape) for p in parameters]

    def saved(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        parameters, ctx.option, ctx.T, ctx.delay, _ = inputs
        ctx.save_for_backward(output[5], output[3], *parameters)
        ctx.shapes = [t.shape for t in output[:5]]
        ctx.set_materialize_grads(False)

    def gradients(ctx: Any, *every: Tensor | None) -> tuple[Any, ...]:
        mark, powers, *parameters = ctx.saved_tensors
        g = every[:5]
        if torch.is_grad_enabled():
            full = [powers.new_zeros(s) if t is None else t for t, s in zip(g, ctx.shapes, strict=True)]
            again = lambda *own: tuple(modes.graph(own, ctx.option, ctx.T, ctx.delay))  # noqa: E731
            with as_run():
                found = gradients_by_graph(again, parameters, full, [True] * len(parameters))
            return list(found), *(None,) * 4
        given = [None if t is None else t.contiguous() for t in g]
        return backward(parameters, mark, powers, *given, ctx.option, ctx.delay), *(None,) * 4

    tables.register_autograd(gradients, setup_context=saved)
    one_by_one(tables)
    one_by_one(backward)
    return tables._opoverload
