"""Mega's gated attention block with channels first, (d, b, l), as one operation with a hand-written backward pass.

    s = silu(ema(h)),  (u, z, r, h') = W_base s,  z = silu(z + b_z),  q, k = gamma z + beta
    o = attention(q, k, silu(W_value h + b_value)),    w = W_leave (silu(r + b_r) o)
    y = norm(x + sigmoid(u + b_u) (silu(h' + w + b_h) - x))                   or without the norm

h is x itself if the norm is at the end. In the hand-written backward the gradients of the four slices are written
directly into their common array, those of x are added in the stores of the kernels that compute them, and the sums
subtracted in the softmax gradient come from o and its gradient, which saves reading the scores once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from resolvent.ops.attention.column_attention import (
    attend_backward,
    average,
    plain_column_attention,
    sum_diagonals,
)
from resolvent.ops.filter.toeplitz import toeplitz
from resolvent.ops.filter.two_sided import TwoSided, plain_two_sided
from resolvent.ops.pointwise.biased_silu import plain_biased_silu
from resolvent.ops.pointwise.feed_forward import add_product, outer, product
from resolvent.ops.pointwise.skip_norm import WIDEST, Ending, plain_skip_norm
from resolvent.runtime.dispatch import choose, half_or, nothing
from resolvent.runtime.fallback import kernels, triton_module
from resolvent.runtime.launch import attempt
from resolvent.runtime.transforms import by_graph_only, gradients_by_graph, outside_autocast


class Weights(NamedTuple):
    ema: TwoSided
    W_base: Tensor  # (2d + z + w, d): W_u, W_z, W_r, W_h
    W_value: Tensor  # (w, d)
    W_leave: Tensor  # (d, w)
    b_u: Tensor
    b_z: Tensor
    b_r: Tensor
    b_h: Tensor  # of W_h and of W_leave
    b_value: Tensor
    gamma: Tensor  # (2, z), the queries' include the scale of the scores
    beta: Tensor  # (2, z)
    line: Tensor  # (2l - 1,)
    end: Ending | None  # the norm, if at the end

    @property
    def sizes(self) -> list[int]:
        """Channels of u, z, r and h'."""
        return [t.shape[0] for t in (self.b_u, self.b_z, self.b_r, self.b_h)]

    @property
    def learned(self) -> tuple[Tensor, ...]:
        norm = () if self.end is None else (self.end.gamma, self.end.beta)
        return self.ema.past.kernel, self.ema.future.kernel, *self[1:-1], *norm

    def detached(self) -> Weights:
        still = self.of([t.detach() for t in self.learned])
        return still._replace(ema=self.ema.detached())

    def of(self, learned: Sequence[Tensor]) -> Weights:
        """The same with other tensors in place of `learned`, except for the averages."""
        end = None if self.end is None else self.end._replace(gamma=learned[13], beta=learned[14])
        return Weights._make([self.ema, *learned[2:13], end])


def gated_block(h: Tensor | None, x: Tensor, w: Weights) -> Tensor:
    """y; h None is x."""
    own = _triton(x)
    if own is None:
        return compose(h, x, w, w.ema)
    return attempt("gated_block", lambda: _Block.apply(own, h, x, w, *w.learned), lambda: compose(h, x, w, w.ema))


def compose(h: Tensor | None, x: Tensor, w: Weights, ema: Callable[[Tensor], Tensor]) -> Tensor:
    """The same in torch operations."""
    h = x if h is None else h
    u, z, r, hx = product(w.W_base, F.silu(ema(h))).split(w.sizes)
    z = plain_biased_silu(z, w.b_z)
    q, k = (_affine(z, *own) for own in zip(w.gamma, w.beta, strict=True))
    o = plain_column_attention(q, k, plain_biased_silu(product(w.W_value, h), w.b_value), w.line)
    left = product(w.W_leave, (plain_biased_silu(r, w.b_r).to(o.dtype) * o))
    wide = torch.promote_types(x.dtype, torch.float32)
    step = torch.sigmoid(_affine(u.to(wide), None, w.b_u)) * (plain_biased_silu(hx.to(wide) + left, w.b_h) - x)
    return (x + step).to(x.dtype) if w.end is None else plain_skip_norm(x, step, w.end, 0)


def _affine(x: Tensor, scale: Tensor | None, shift: Tensor) -> Tensor:
    wide = torch.promote_types(x.dtype, torch.float32)
    z = x.to(wide) if scale is None else x.to(wide) * scale.to(wide)[:, None, None]
    return (z + shift.to(wide)[:, None, None]).to(x.dtype)


def _triton(x: Tensor) -> Any:
    """The GPU's kernels, or None where they do not apply."""
    unfit = None if x.shape[0] <= WIDEST else f"more than {WIDEST} channels"
    if kernels("attention", "gated_block", x, unfit) is None:
        return None
    found = choose("gated_block", _KERNELS, x.device, x.dtype)
    return None if found is nothing else found


class _Block(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: Any, h: Tensor | None, x: Tensor, w: Weights, *learned: Tensor) -> Tensor:
        at, skip = (x if h is None else h).contiguous(), x.contiguous()
        c = w.ema.forward(at)
        base, raw = product(w.W_base, F.silu(c)), product(w.W_value, at)
        u, z, r, hx = base.split(w.sizes)
        q, k = own.project(z, w.b_z, w.gamma, w.beta)
        v = own.biased_silu(raw, w.b_value)
        p = own.weigh(q, k, w.line)
        o = average(p, v)
        left = product(w.W_leave, own.open_gates(r, o, w.b_r))
        y, kept = own.close((u, hx, left, skip), (w.b_u, w.b_h), w.end)
        ctx.save_for_backward(*learned, h, x, c, base, raw, q, k, v, p, o, left, *(kept or (None, None)))
        ctx.kernels, ctx.own, ctx.count = own, w.detached(), len(learned)
        ctx.learn = any(ctx.needs_input_grad[4:])
        found: Tensor = y
        return found

    @staticmethod
    @outside_autocast
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        learned, (h, x, *made) = ctx.saved_tensors[: ctx.count], ctx.saved_tensors[ctx.count :]
        g, needs = gradients[0], (*ctx.needs_input_grad[1:3], *ctx.needs_input_grad[4:])

        def again() -> tuple[Tensor | None, ...]:
            own = ctx.own
            run = lambda h, x, *t: (compose(h, x, own.of(t), lambda a: plain_two_sided(a, *t[:2])),)  # noqa: E731
            gh, gx, *rest = gradients_by_graph(run, (h, x, *learned), (g,), needs)
            return None, gh, gx, None, *rest

        def by_hand() -> tuple[Tensor | None, ...]:
            w = ctx.own.of(learned)
            gh, gx, rest = _gradients(ctx.kernels, (h, x), w, made, g.contiguous(), ctx.learn)
            return None, gh, gx, None, *rest

        return again() if by_graph_only(g) else attempt("gated_block_backward", by_hand, again)


def _gradients(
    own: Any, given: tuple[Tensor | None, Tensor], w: Weights, made: list[Any], g: Tensor, learn: bool
) -> tuple[Tensor | None, Tensor, tuple[Tensor | None, ...]]:
    """∂h where h is not x, ∂x, and with `learn` those of the parameters."""
    c, base, raw, q, k, v, p, o, left, *kept = made
    h, x = given[0], given[1].contiguous()
    at = x if h is None else h.contiguous()
    u, z, r, hx = base.split(w.sizes)
    g_base = torch.empty_like(base)
    gu, gz, gr, ghx = g_base.split(w.sizes)
    norm = None if w.end is None else w.end.gamma
    gx, ends = own.close_backward(g, (u, hx, left, x), (w.b_u, w.b_h), norm, kept, (gu, ghx), learn)
    go, products, g_br = own.open_backward(product(w.W_leave.mT, ghx), r, o, w.b_r, gr, learn)
    gs, rest = own.slope(go, v, p, products)
    gq, gk, gv = attend_backward((q, k, v), p, go, gs)
    queries = own.project_backward((gq, gk, rest), z, (w.b_z, w.gamma, w.beta), gz, learn)
    graw, g_bv = own.biased_silu_backward(gv, raw, w.b_value, learn, out=gv)
    gh = add_product(gx, w.W_value.mT, graw) if h is None else product(w.W_value.mT, graw)
    gc = torch.ops.aten.silu_backward(product(w.W_base.mT, g_base), c)
    gh = w.ema.adjoint(gc, onto=gh)
    if not learn:
        return None if h is None else gh, gx, (None,) * len(w.learned)
    s, gated = F.silu(c), own.open_gates(r, o, w.b_r)
    maps = [outer(a, b) for a, b in ((g_base, s), (graw, at), (ghx, gated))]
    g_bz, *turned = queries.unbind(0)
    vectors = (ends[0], g_bz, g_br, ends[1], g_bv, torch.stack(turned[:2]), torch.stack(turned[2:]))
    found = [*w.ema.taps(at, gc), *maps, *vectors, sum_diagonals(gs), *(() if norm is None else ends[2:])]
    slopes = tuple(t.to(like.dtype) for t, like in zip(found, w.learned, strict=True))
    return None if h is None else gh, gx, slopes


# -- whether the kernels run here --------------------------------------------------------------------------------------

LIMIT = 5e-2  # of bf16 against float64: a wrong number is far beyond


def _probe(own: Any, device: torch.device, dtype: torch.dtype, sizes: tuple[int, ...] = (128, 64, 256, 256)) -> bool:
    """A block's values and gradients against float64."""
    d, z, w, l = sizes
    shapes = [(d, 2, l), (d, l), (d, l), (2 * d + z + w, d), (w, d), (d, w)]
    shapes += [(d,), (z,), (w,), (d,), (w,), (2, z), (2, z), (2 * l - 1,), (d,), (d,)]
    wide = [_wave(shape, i).to(device) for i, shape in enumerate(shapes)]
    low = [t.to(dtype if i in (0, 3, 4, 5) else torch.float32) for i, t in enumerate(wide)]
    g = _wave((d, 2, l), 99).to(device, dtype)
    quick = _found(lambda x, w: _Block.apply(own, None, x, w, *w.learned), low, g)
    truth = _found(lambda x, w: compose(None, x, w, lambda a: plain_two_sided(a, *w.learned[:2])), wide, g.double())
    return all(float((a.double() - b).norm()) <= LIMIT * float(b.norm()) for a, b in zip(quick, truth, strict=True))


def _found(run: Callable[[Tensor, Weights], Tensor], inputs: list[Tensor], g: Tensor) -> list[Tensor]:
    with torch.enable_grad():
        x, *t = (p.detach().requires_grad_() for p in inputs)
        ema = TwoSided(*(toeplitz(k, x.dtype) for k in t[:2]))
        y = run(x, Weights._make([ema, *t[2:13], Ending(t[13], t[14], None, None, 1e-5)]))
    return [y, *torch.autograd.grad(y, [x, *t], g)]


def _wave(shape: tuple[int, ...], which: int) -> Tensor:
    """Deterministic numbers without a pattern that could cancel; matrix rows of norm about one."""
    at = torch.arange(math.prod(shape), dtype=torch.float64)
    return (at * at * 0.618 + which).sin().view(shape) / (shape[-1] ** 0.5 if len(shape) == 2 and shape[0] > 2 else 1)


_KERNELS = half_or(nothing, lambda: triton_module("ops.attention.gated_block_triton"), _probe)
