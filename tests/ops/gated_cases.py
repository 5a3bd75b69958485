"""What the tests of the gated scan share: inputs, the recurrence as a loop, values and gradients of a call."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from helpers import assert_close
from resolvent.ops.gated_scan.inputs import Inputs


def draw(
    b: int, l: int, d: int, *, started: bool = True, start: str = "none", reverse: bool = False,
    dtype: torch.dtype = torch.float64,
) -> Inputs:  # fmt: skip
    """Normal p, q, x and h0; `start` is none, first (a flag for each row) or any (for each step)."""
    p, q, x = (torch.randn(b, l, d, dtype=torch.float64).to(dtype) for _ in range(3))
    rate = -(torch.rand(d, dtype=torch.float64) + 0.01).to(torch.promote_types(dtype, torch.float32))
    h0 = torch.randn(b, d, dtype=torch.float64).to(dtype) if started else None
    flags = {"none": None, "first": torch.arange(b) % 2 == 0, "any": torch.rand(b, l) < 0.3}
    return Inputs(p, q, x, rate, h0, flags[start], reverse)


def marked(x: Inputs) -> dict[str, Tensor | bool | None]:
    """The marks and the direction as `gated_scan` takes them."""
    return {"first" if x.start is not None and x.start.dim() == 1 else "start": x.start, "reverse": x.reverse}


def loop(x: Inputs) -> Tensor:
    """h step by step, the root's slope bounded by a hand-written derivative."""
    r, i = torch.sigmoid(x.p), torch.sigmoid(x.q)
    log_a = x.rate * r
    a, m = torch.exp(log_a), _Root.apply(-torch.expm1(2 * log_a))
    b, l, d = x.x.shape
    h = torch.zeros(b, d, dtype=x.x.dtype) if x.h0 is None else x.h0
    first = l - 1 if x.reverse else 0
    out: list[Tensor] = [h] * l
    for t in reversed(range(l)) if x.reverse else range(l):
        on = _opens(x.start, t, t == first, b)
        h = torch.where(on, i[:, t] * x.x[:, t], a[:, t] * h + m[:, t] * i[:, t] * x.x[:, t])
        out[t] = h
    return torch.stack(out, 1) if l else x.x.clone()


def _opens(start: Tensor | None, t: int, first: bool, b: int) -> Tensor:
    if start is None or (start.dim() == 1 and not first):
        return torch.zeros(b, 1, dtype=torch.bool)
    return (start if start.dim() == 1 else start[:, t])[:, None]


class _Root(torch.autograd.Function):
    @staticmethod
    def forward(ctx, v):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(v)
        return torch.sqrt(v)

    @staticmethod
    def backward(ctx, g):  # type: ignore[no-untyped-def]
        (v,) = ctx.saved_tensors
        return g * torch.clamp(0.5 / torch.sqrt(v.abs()), max=1000.0)


def outcome(scan: Callable[[Inputs], Tensor], x: Inputs, g: Tensor) -> list[Tensor]:
    """h and the gradients of p, q, x, rate and, where given, h0."""
    leaves = [t.detach().clone().requires_grad_() for t in x[:5] if isinstance(t, Tensor)]
    given = x._replace(**dict(zip(("p", "q", "x", "rate", "h0"), leaves, strict=False)))
    h = scan(given)
    found = torch.autograd.grad(h, leaves, g.to(h.dtype), allow_unused=True)
    return [h.detach(), *(torch.zeros_like(t) if f is None else f for f, t in zip(found, leaves, strict=True))]


def compare(scan: Callable[[Inputs], Tensor], x: Inputs, dtype: torch.dtype | None = None) -> list[Tensor]:
    """Values and gradients of `scan` in its dtype against the loop in float64 on the same numbers."""
    kind = dtype or x.x.dtype
    given = x._replace(**{name: _to(getattr(x, name), kind) for name in ("p", "q", "x", "h0")})
    given = given._replace(rate=x.rate.to(torch.promote_types(kind, torch.float32)))
    wide = x._replace(**{name: _to(getattr(given, name), torch.float64) for name in ("p", "q", "x", "rate", "h0")})
    g = torch.randn(x.x.shape, dtype=torch.float64).to(kind)
    want, got = outcome(loop, wide, g.double()), outcome(scan, given, g)
    assert_close(got[0], want[0], dtype=kind)
    for found, true in zip(got[1:], want[1:], strict=True):
        assert_close(found, true, dtype=kind, gradient=True)
    return got


def _to(t: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return None if t is None else t.to(dtype)
