"""The kernels of `post_norm_triton` in torch operations, and a check of them on a device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import gelu, layer_norm

from resolvent.ops.pointwise import post_norm_triton as kernels
from resolvent.ops.pointwise.post_norm_triton import COLUMNS, Block
from resolvent.runtime.trust import trust

CLOSE = 2e-2  # relative error in norm, in bfloat16
SHAPES = (2, COLUMNS), (3, COLUMNS + 8)  # whole tiles; tiles spanning two sequences, the last one partial


def serves(like: Tensor, d: int, c: int, dtype: torch.dtype, kind: str) -> bool:
    """Whether the kernels support (d, b, l) on the device of `like`, and have been verified there."""
    if not kernels.serves(like, d, c, dtype, kind):
        return False
    return not like.is_cuda or trust(("post_norm", kind, d, c, like.device), lambda: is_right(kind, d, c, like.device))


def compute(y: Tensor, r: Tensor | None, w: Block) -> Tensor:
    """out = norm(scale r + map(y) + bias), in the dtype of y."""
    z = y
    if w.Wa is not None and w.ba is not None:
        z = torch.sigmoid(torch.tensordot(w.Wa.to(y), z, 1) + _column(w.ba, y)) * z
    if w.W is not None and w.bias is not None:
        bend = gelu if w.kind == "gelu" else lambda t: t
        z = bend(torch.tensordot(w.W.to(y), bend(z), 1) + _column(w.bias, y))
    if r is not None:
        z = z + (r if w.scale is None else _column(w.scale, y) * r)
    return layer_norm(z.movedim(0, -1), w.gamma.shape, w.gamma.to(y), w.beta.to(y), w.eps).movedim(-1, 0)


def _column(v: Tensor, like: Tensor) -> Tensor:
    return v.to(like)[:, None, None]


def is_right(kind: str, d: int, c: int, device: torch.device) -> bool:
    """Whether out and both gradients agree with float64: for a general gradient and for that of a mean over time, and
    with some |beta| above its |gamma|."""
    with torch.inference_mode(False), torch.enable_grad():
        cases = ((shape, mean, reach) for shape, mean, reach in zip(SHAPES, (False, True), (0.1, 3.0), strict=True))
        return all(_agrees(_block(kind, d, c, reach, device), shape, mean, c) for shape, mean, reach in cases)


def _agrees(w: Block, shape: tuple[int, int], mean: bool, c: int) -> bool:
    d, device = w.gamma.shape[0], w.gamma.device
    entry = w.kind == "entry"
    y = _wave((*shape, c), 1.0, device).permute(2, 0, 1) if entry else _wave((d, *shape), 1.0, device).bfloat16()
    r = None if entry else _wave((d, *shape), 2.0, device).bfloat16()
    g = _wave((d, shape[0], 1) if mean else (d, *shape), 3.0, device).bfloat16().expand(d, *shape)
    out, kept = kernels.forward(y, r, w, torch.bfloat16)
    if kept is None:
        return False
    gr, gy = kernels.backward(g, kept, w, c)
    wide = [t.detach().double().requires_grad_() for t in (y, r) if t is not None]
    want = compute(wide[0], wide[1] if r is not None else None, w)
    slopes = torch.autograd.grad(want, wide, g.double())
    return _are_close([out, gy, *([] if gr is None else [gr])], [want, *slopes])


def _are_close(found: Sequence[Tensor], want: Sequence[Tensor]) -> bool:
    return all(bool((x.double() - y).norm() <= CLOSE * y.norm()) for x, y in zip(found, want, strict=True))


def _block(kind: str, d: int, c: int, reach: float, device: torch.device) -> Block:
    gamma, beta = 1 + _wave((d,), 4.0, device) / 8, reach * _wave((d,), 5.0, device)
    if kind == "bare":
        return Block(kind, 1e-5, gamma, beta, scale=_wave((d,), 6.0, device))
    half = torch.float32 if kind == "entry" else torch.bfloat16
    W, bias = (_wave((d, c), 7.0, device) / c**0.5).to(half), _wave((d,), 8.0, device)
    if kind != "scaled":
        return Block(kind, 1e-5, gamma, beta, W, bias)
    return Block(kind, 1e-5, gamma, beta, W, bias, None, (_wave((d, d), 9.0, device) / d**0.5).to(half), bias)


def _wave(shape: tuple[int, ...], phase: float, device: torch.device) -> Tensor:
    """Pseudo-random numbers without using the user's random generator."""
    t = torch.arange(torch.Size(shape).numel(), dtype=torch.float64, device=device)
    return (t * t * 0.37 + phase).sin().mul_(1.4).reshape(shape).float()
