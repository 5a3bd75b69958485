"""A function from parameters to tables as one operation: one node of a traced graph; on a GPU two CUDA graphs.

The function consists of torch operations, some hundred for S4. Traced, it is one opaque node for each of forward and
backward, so that graphs stay small; on a CPU its own autograd graph is kept for the backward (`ops.kept`). On a GPU the
host needs longer for its calls than the device, so the second call with the same shapes is recorded as a CUDA graph
(`ops.step.recorded`), which layers of one shape share, and gradients recompute the function. If there are kernels
for forward and backward (`kernels`), they run instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from resolvent.ops import kept
from resolvent.ops.library import one_by_one, recording, separate
from resolvent.ops.step import recorded
from resolvent.runtime.dispatch import choose, nothing, triton_or
from resolvent.runtime.transforms import as_run, by_graph_only, gradients_by_graph, outside_autocast, refuses_operators

Parameters = Sequence[Tensor]
Make = Callable[[Parameters, str, int, bool], list[Tensor]]  # (parameters, option, T, delay) -> real tables
Shapes = Callable[[Parameters, str, int, bool], list[tuple[int, ...]]]


class Opaque:
    """`make` as an operation `resolvent::<name>`; created once, at its layer's definition.

    `load` imports GPU kernels, `tables(parameters, option, T, delay)` and `slopes(parameters, g, option, T, delay)`;
    they are probed with the parameters of `example`, `options`, and T and delay from `sizes`; with a delay the last
    parameter, D, is left out. `exactly`: they support these options alone. `is_large`: intermediate values of `make`
    are not saved.
    """

    def __init__(
        self, name: str, make: Make, shapes: Shapes, load: Any = None, example: Callable[[], Parameters] = tuple,
        options: Sequence[str] = (), sizes: Sequence[tuple[int, bool]] = ((0, False),), exactly: bool = False,
        is_large: bool = False,
    ) -> None:  # fmt: skip
        self.is_large = is_large
        self.make, self.shapes, self.known, self.name = make, shapes, dict[Any, Any](), name
        self._operator = _operator(name, self)
        self._example, self._options, self._sizes, self._exactly = example, options, sizes, exactly
        self._candidates = () if load is None else triton_or(nothing, load, self.agrees)

    def kernels(self, like: Tensor, option: str) -> Any:
        """The GPU kernels, or None."""
        if not self._candidates or not like.is_cuda or (self._exactly and option not in self._options):
            return None
        found: Any = choose(self.name, self._candidates, like.device, like.dtype)
        return None if found is nothing else found

    def agrees(self, kernels: Any, device: torch.device, dtype: torch.dtype) -> bool:
        """Whether they agree with `make` in tables and gradients."""
        pairs: list[tuple[Tensor, Tensor]] = []
        for how in ((option, *size) for option in self._options for size in self._sizes):
            given = [p.to(device, dtype).requires_grad_() for p in self._example()]
            own = given[:-1] if how[2] else given
            with as_run(), recording():
                made = self.make(own, *how)
            g = [_wave(t) for t in made]
            pairs += zip(kernels.tables(own, *how), made, strict=True)
            slopes = _differentiate(own, made, g, list(range(len(g))), False)
            pairs += zip(kernels.slopes(own, g, *how), slopes, strict=True)
        return all(torch.allclose(x, y, 1e-4, 1e-5 * float(y.detach().abs().max() + 1)) for x, y in pairs)

    def operator(self, parameters: Parameters, option: str, T: int, delay: bool) -> list[Tensor]:
        """The tables as one node of a graph, or by `make` where a graph may hold none."""
        if refuses_operators():
            return self.make(parameters, option, T, delay)
        made: list[Tensor] = self._operator(list(parameters), kept.may_learn(parameters), option, T, delay)
        return made[:-1]

    def tables(self, parameters: Parameters, option: str, T: int, delay: bool) -> list[Tensor]:
        """The tables, under autograd; for tensors on a GPU outside tracing.

        While the surrounding pass is recorded, by the calls themselves: its graph saves what gradients need, without
        host time. If that would be much memory, the function is recomputed for its gradients.
        """
        if recorded._recording and not self.is_large and self.kernels(parameters[0], option) is None:
            with as_run():
                return [t.contiguous() for t in self.make(parameters, option, T, delay)]
        return list(_Opaque.apply(self, option, T, delay, *parameters))

    def run(self, parameters: Parameters, option: str, T: int, delay: bool) -> list[Tensor]:
        """The tables without a graph."""
        kernels = self.kernels(parameters[0], option)
        if kernels is not None:
            return list(kernels.tables(parameters, option, T, delay))

        def run(own: list[Tensor], _: Any) -> list[Tensor]:
            with as_run():
                return separate(self.make(own, option, T, delay), *own)

        return self._recorded(("forward", option, T, delay), run, list(parameters))

    def run_kept(self, parameters: Parameters, option: str, T: int, delay: bool) -> list[Tensor]:
        """The same, followed by the mark of the kept graph; inputs, whose memory is the caller's, are copied."""
        with as_run(), recording():
            own = [p.detach().clone().requires_grad_() for p in parameters]
            made = self.make(own, option, T, delay)
        return [*separate([t.detach() for t in made]), kept.mark(parameters[0], (own, made))]

    def slopes(
        self, parameters: Parameters, g: Sequence[Tensor | None], option: str, T: int, delay: bool
    ) -> list[Tensor]:
        """The parameters' gradients from those of the tables, without a graph of their own."""
        kernels = self.kernels(parameters[0], option)
        if kernels is not None:
            return list(kernels.slopes(parameters, g, option, T, delay))
        asked = [i for i, t in enumerate(g) if t is not None]
        count = len(parameters)

        def run(given: list[Tensor], _: Any) -> list[Tensor]:
            with as_run(), recording():
                own = [p.detach().requires_grad_() for p in given[:count]]
                made = self.make(own, option, T, delay)
            return _differentiate(own, made, given[count:], asked, False)

        tensors = [*parameters, *(t.contiguous() for t in g if t is not None)]
        return self._recorded(("backward", option, T, delay, *asked), run, tensors)

    def _recorded(self, name: Any, run: Any, given: list[Tensor]) -> list[Tensor]:
        own = [t.detach() for t in given]
        found = recorded.rerun(self.known, name, run, own)
        return run(own, None) if found is None else found


def _wave(like: Tensor) -> Tensor:
    return torch.sin(torch.arange(like.numel(), device=like.device, dtype=like.dtype) ** 1.5).view(like.shape)


class _Opaque(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, opaque: Opaque, option: str, T: int, delay: bool, *parameters: Tensor) -> tuple[Tensor, ...]:
        ctx.own = opaque, option, T, delay
        ctx.save_for_backward(*parameters)
        ctx.set_materialize_grads(False)
        return tuple(opaque.run(parameters, option, T, delay))

    @staticmethod
    @outside_autocast
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
        (opaque, *how), parameters = ctx.own, ctx.saved_tensors
        if by_graph_only(*gradients):
            return *(None,) * 4, *_by_graph(opaque, parameters, gradients, how)
        return *(None,) * 4, *opaque.slopes(parameters, gradients, *how)


def _by_graph(opaque: Opaque, parameters: Parameters, g: Sequence[Tensor | None], how: Sequence[Any]) -> list[Any]:
    with as_run():
        found = gradients_by_graph(lambda *own: opaque.make(own, *how), parameters, g, [True] * len(parameters))
    return [torch.zeros_like(p) if t is None else t for t, p in zip(found, parameters, strict=True)]


def _operator(name: str, opaque: Opaque) -> Any:
    @torch.library.custom_op(f"resolvent::{name}", mutates_args=())
    def tables(parameters: list[Tensor], learns: bool, option: str, T: int, delay: bool) -> list[Tensor]:
        if learns and parameters[0].device.type == "cpu":
            return opaque.run_kept(parameters, option, T, delay)
        return [*opaque.run(parameters, option, T, delay), kept.mark(parameters[0])]

    @tables.register_fake
    def _(parameters: list[Tensor], learns: bool, option: str, T: int, delay: bool) -> list[Tensor]:
        like = parameters[0]
        return [*map(like.new_empty, opaque.shapes(parameters, option, T, delay)), kept.fake_mark(like)]

    @torch.library.custom_op(f"resolvent::{name}_backward", mutates_args=())
    def backward(
        parameters: list[Tensor], mark: Tensor, tables: list[Tensor], g: list[Tensor], asked: list[int], option: str,
        T: int, delay: bool,
    ) -> list[Tensor]:  # fmt: skip
        found = kept.take(mark)
        if found is not None:
            (own, made), again = found
            return _differentiate(own, made, g, asked, again)
        full: list[Tensor | None] = [None] * (max(asked) + 1)
        for i, t in zip(asked, g, strict=True):
            full[i] = t
        return opaque.slopes(parameters, full, option, T, delay)

    @backward.register_fake
    def _(parameters: list[Tensor], *rest: Any) -> list[Tensor]:
        return [p.new_empty(p.shape) for p in parameters]

    def saved(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
        parameters, _, *ctx.how = inputs
        ctx.count = len(parameters)
        held = output[:-1] if parameters[0].device.type == "cpu" else []  # a kept graph reads them: must not be reused
        ctx.save_for_backward(output[-1], *parameters, *held)
        ctx.set_materialize_grads(False)

    def gradients(ctx: Any, g: list[Tensor | None]) -> tuple[Any, ...]:
        mark, *rest = ctx.saved_tensors
        parameters, held = rest[: ctx.count], rest[ctx.count :]
        if torch.is_grad_enabled():
            return _by_graph(opaque, parameters, g[:-1], ctx.how), *(None,) * 4
        asked = [i for i, t in enumerate(g[:-1]) if t is not None]
        given = [t.contiguous() for t in g[:-1] if t is not None]
        return backward(parameters, mark, held, given, asked, *ctx.how), *(None,) * 4

    tables.register_autograd(gradients, setup_context=saved)
    one_by_one(tables)
    one_by_one(backward)
    return tables._opoverload


def _differentiate(
    own: list[Tensor], made: list[Tensor], g: list[Tensor], asked: list[int], again: bool
) -> list[Tensor]:
    """The parameters' gradients by a kept graph; `again`: retain it."""
    pairs = [(made[i], t) for i, t in zip(asked, g, strict=True) if made[i].requires_grad]
    ends, slopes = [end for end, _ in pairs], [slope for _, slope in pairs]
    with recording():
        found = torch.autograd.grad(ends, own, slopes, retain_graph=again, allow_unused=True)
    return separate([torch.zeros_like(p) if t is None else t for t, p in zip(found, own, strict=True)], *g)
