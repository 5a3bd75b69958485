"""A whole post-norm block with channels first, and the entry of a model, each with one hand-written gradient.

    block   y = k * h,  g = act(s y) with s = sigma(Wa y + ba),  out = norm(h + final(W g + b))        h (d, b, l)
    entry   out = norm(W x + b)                                                                       x (b, l, c)

With autograd, such a block passes over memory about three times as often: here everything after the convolution is
one pass over the activations in each direction (on a GPU `fused_triton`, or without parameter gradients `fused_attack`;
`fused_torch` elsewhere), the gradient of the skip is added inside the adjoint convolution, and what only parameter
gradients need is neither saved nor computed in an attack. Second derivatives rerun the plain operations.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from resolvent.lowering import columns
from resolvent.lowering.eager import CURVES
from resolvent.lowering.gpu import fused_torch
from resolvent.lowering.gpu.fused_torch import Kept, Weights
from resolvent.lowering.gpu.tiles import ROOMY
from resolvent.lowering.program import Chain, Linear, Skip
from resolvent.ops.filter import Filter
from resolvent.runtime import chip
from resolvent.runtime.fallback import ABSENT, left_to_torch, triton_module
from resolvent.runtime.transforms import by_graph_only, gradients_by_graph, outside_autocast
from resolvent.runtime.trust import trust

WIDEST = 128  # most channels for which a tile and the weights fit on a multiprocessor


def entry_weights(entry: Linear, norm: Chain, dtype: torch.dtype) -> Weights | None:
    """What `enter_rows` needs, or None if the entry has another form."""
    W = entry.weight
    if not norm or not columns.is_norm(norm, ("layer",)) or not _suits(W, W.shape[0], dtype):
        return None
    own, none = norm[0].module, ("none",) * 3
    bias = torch.zeros_like(own.bias) if entry.bias is None else entry.bias
    low = W.detach().to(torch.promote_types(dtype, torch.float32))
    return _serve(Weights(own.eps, *none, dtype, W, bias, own.weight, own.bias, low, entry=True))


def block_weights(block: Skip, dtype: torch.dtype) -> Weights | None:
    """What `post_norm_block` needs, or None if the block has another form."""
    around = block.around
    if around is None or around.linear is None or not block.adds or block.prenorm:
        return None
    W, bias = around.linear.weight, around.linear.bias
    if bias is None or not block.norm or not columns.is_norm(block.norm, ("layer",)):
        return None
    if not _suits(W, W.shape[0], dtype, single=around.scale is None):
        return None
    norm, names = block.norm[0].module, (around.act, around.final, around.sigma)
    made = Weights(norm.eps, *names, dtype, W, bias, norm.weight, norm.bias, low=W.detach().to(dtype))
    if around.scale is None:
        return _serve(made)
    Wa, ba = around.scale.weight, torch.zeros_like(bias) if around.scale.bias is None else around.scale.bias
    return _serve(replace(made, Wa=Wa, ba=ba, low_a=Wa.detach().to(dtype)))


def post_norm_block(h: Tensor, conv: Filter, w: Weights) -> Tensor:
    """out (d, b, l) of h (d, b, l)."""
    still = (conv.detached(), w.still, torch.is_grad_enabled())
    out: Tensor = _PostNorm.apply(h, still, w.W, w.bias, w.gamma, w.beta, w.Wa, w.ba, *conv.learned)
    return out


def enter_rows(x: Tensor, w: Weights) -> Tensor:
    """(b, l, c) -> (d, b, l) in the dtype of the products; x itself is not rounded below float32."""
    out: Tensor = _Entry.apply(x, w.W, w.bias, w.gamma, w.beta, (w.still, torch.is_grad_enabled()))
    return out


def _suits(weight: Tensor, d: int, dtype: torch.dtype, single: bool = True) -> bool:
    """`single`: no adaptive scaling, whose second matrix does not fit in float32."""
    if weight.device.type == "cpu":
        return True
    unfit = _unfit(d, dtype, single)
    if unfit is not None:
        left_to_torch(weight, "fused blocks", unfit)
    return weight.is_cuda and unfit is None and chip.serves(weight.device)


def _serve(w: Weights) -> Weights | None:
    """The weights, or None where a GPU lacks memory on chip for these blocks, or is not among those the kernels were
    tuned on and a first pass there differs from torch operations."""
    if not w.W.is_cuda or chip.capacity(w.W) >= ROOMY:
        return w
    if not _triton().fits(w):
        left_to_torch(w.W, "fused blocks", f"{tuple(w.W.shape)} channels on a chip with {chip.capacity(w.W)} KiB")
        return None
    key = w.W.device.index, w.low.dtype, w.dtype, tuple(w.low.shape), w.act, w.final, w.sigma, w.entry, w.low_a is None
    return w if trust(("fused blocks", *key), lambda: agrees(_triton(), w)) else None


@torch.no_grad()
def agrees(kernels: Any, w: Weights) -> bool:
    """Whether the kernels agree with torch operations in values and gradients for a few columns."""
    d, c = w.low.shape
    own, dtype = w.detached(), w.low.dtype if w.entry else w.dtype
    ramp = torch.linspace(-1, 1, c * 2 * 48, device=w.W.device, dtype=dtype)
    y = (3 * ramp).sin().view(2, 48, c).permute(2, 0, 1) if w.entry else (3 * ramp).sin().view(c, 2, 48)
    r = None if w.entry else (2 * ramp).cos().view(c, 2, 48)[:d] if d <= c else None
    found = []
    for ops in (kernels, fused_torch):
        out, kept = ops.forward(y, r, own)
        g = out.sin()
        found.append([out, *(t for learn in (False, True) for t in _flat(ops.backward(g, kept, y, own, learn)))])
    most = 3e-2 if w.dtype == torch.bfloat16 else 1e-3
    return all(float((a.float() - b.float()).norm()) <= most * (float(b.float().norm()) + 1e-3) for a, b in
               zip(*found, strict=True))  # fmt: skip


def _flat(found: tuple[Any, ...]) -> list[Tensor]:
    gz, gy, slopes = found
    return [gz, gy, *(t for t in slopes or () if t is not None)]


def _unfit(d: int, dtype: torch.dtype, single: bool) -> str | None:
    """Why the GPU kernels do not support it, as a message."""
    if d > WIDEST:
        return f"more than {WIDEST} channels"
    if dtype not in (torch.bfloat16, torch.float32):
        return str(dtype)
    if dtype == torch.float32 and not single:
        return "adaptive scaling in float32"
    return ABSENT if _triton() is None else None


def _triton() -> Any:
    """The GPU's kernels, or None without Triton."""
    return triton_module("lowering.gpu.fused_triton")


def _ops(y: Tensor, w: Weights, learn: bool) -> Any:
    """The implementation after the convolution: kernels for attacks, for all passes, or torch."""
    if not y.is_cuda:
        return fused_torch
    quick = None if learn else triton_module("lowering.gpu.fused_attack")  # without parameter gradients
    return quick if quick is not None and quick.serves(y, w) else _triton()


class _PostNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, still: tuple[Filter, Weights, bool], *learned: Any) -> Tensor:
        conv, w, watched = still
        learn = any(ctx.needs_input_grad[2:])
        y = conv.forward(h)
        ctx.ops = _ops(y, w, learn)
        out, kept = ctx.ops.forward(y, h, w, watched and any(ctx.needs_input_grad))
        if kept is not None:
            bent = not w.linear_in_y and kept.first is None and kept.last is None
            ctx.save_for_backward(h, y if learn or bent else None, *kept)
        ctx.tables, ctx.learned, ctx.learn = (conv, w), learned, learn
        return out

    @staticmethod
    @outside_autocast
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        (conv, w), (h, y, *kept), g = ctx.tables, ctx.saved_tensors, gradients[0]
        if by_graph_only(g):
            needs = ctx.needs_input_grad[:1] + ctx.needs_input_grad[2:]
            again = lambda *t: (plain_block(*t, w=w, conv=conv),)  # noqa: E731
            gh, *rest = gradients_by_graph(again, (h, *ctx.learned), (g,), needs)
            return gh, None, *rest
        gz, gy, found = ctx.ops.backward(g, Kept(*kept), y, w, learn=ctx.learn)
        taps = conv.taps(h, gy) if ctx.learn else (None,) * len(conv.learned)
        gh = conv.adjoint(gy, onto=gz)
        return gh, None, *(found or (None,) * 6), *taps


class _Entry(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, *rest: Any) -> Tensor:
        *learned, (w, watched) = rest
        learn = any(ctx.needs_input_grad[1:])
        rows = x.contiguous().permute(2, 0, 1)  # x itself is saved, so that second derivatives flow through it
        ctx.ops = _ops(rows, w, learn)
        out, kept = ctx.ops.forward(rows, None, w, watched and any(ctx.needs_input_grad))
        ctx.w, ctx.inputs, ctx.learn = w, (x, *learned), learn
        if kept is not None:
            ctx.save_for_backward(*kept)
        return out

    @staticmethod
    @outside_autocast
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        g, needs, x = gradients[0], ctx.needs_input_grad, ctx.inputs[0]
        if by_graph_only(g):
            again = lambda *t: (plain_entry(*t, w=ctx.w),)  # noqa: E731
            return *gradients_by_graph(again, ctx.inputs, (g,), needs[:5]), None
        rows = x.contiguous().permute(2, 0, 1)
        _, gx, found = ctx.ops.backward(g, Kept(*ctx.saved_tensors), rows, ctx.w, learn=ctx.learn)
        return gx.permute(1, 2, 0), *(found[:4] if found else (None,) * 4), None


def plain_block(
    h: Tensor, W: Tensor, bias: Tensor, gamma: Tensor, beta: Tensor, Wa: Tensor | None, ba: Tensor | None,
    *taps: Tensor, w: Weights, conv: Filter,
) -> Tensor:  # fmt: skip
    """The block in torch operations: the reference, also used for second derivatives."""
    y = conv.plain(h, *taps)
    if Wa is not None and ba is not None:
        y = CURVES[w.sigma](_map(Wa, ba, y)) * y
    z = h + CURVES[w.final](_map(W, bias, CURVES[w.act](y)))
    return _norm(z, gamma, beta, w.eps)


def plain_entry(x: Tensor, W: Tensor, bias: Tensor, gamma: Tensor, beta: Tensor, *, w: Weights) -> Tensor:
    return _norm(_map(W, bias, x.permute(2, 0, 1)), gamma, beta, w.eps).to(w.dtype)


def _map(W: Tensor, bias: Tensor, y: Tensor) -> Tensor:
    return torch.tensordot(W.to(y.dtype), y, 1) + bias.to(y.dtype)[:, None, None]


def _norm(z: Tensor, gamma: Tensor, beta: Tensor, eps: float) -> Tensor:
    var, mean = torch.var_mean(z, 0, correction=0, keepdim=True)
    return (z - mean) * torch.rsqrt(var + eps) * gamma[:, None, None] + beta[:, None, None]
