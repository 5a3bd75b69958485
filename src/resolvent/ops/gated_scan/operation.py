"""The scan of RG-LRU with its gates (De et al. 2024, section 2.4), fused where a kernel applies.

    r = sigmoid(p),   i = sigmoid(q),   log a = rate r,   h_t = a_t h_{t-1} + sqrt(1 - a_t^2) i_t x_t

In torch operations the gates pass over memory a dozen times; a kernel reads p, q and x and writes h, and recomputes
the gates in the backward. Differentiating or mapping the backward pass (second derivatives, forward mode, torch.func),
half types on a CPU, float64 on a GPU and devices without a kernel use torch operations. Compilers and exports see one
opaque node.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from resolvent.ops import plain
from resolvent.ops.gated_scan.inputs import HALF, Inputs, accumulator, check
from resolvent.ops.gated_scan.reference import gated_reference, gradients_again
from resolvent.ops.library import fresh, recording, register
from resolvent.runtime.dispatch import Candidate, choose, lazily, nothing, numba_or, use
from resolvent.runtime.fallback import left_to_torch
from resolvent.runtime.memory import resolve
from resolvent.runtime.transforms import by_graph_only, is_batched, is_traced, is_untransformed, outside_autocast

MOST = 2**30  # most numbers in a row of a GPU's kernel: its offsets have 31 bits


def gated_scan(
    p: Tensor, q: Tensor, x: Tensor, rate: Tensor, h0: Tensor | None = None, start: Tensor | None = None,
    reverse: bool = False, *, first: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """All states of h_t = a_t h_{t-1} + sqrt(1 - a_t^2) i_t x_t, (b, l, d) in the dtype of x.

    p, q, x  (b, l, d): the two gates before their sigmoid, and the input.
    rate     (d,), log a at an open gate, -c softplus(L): not positive.
    h0       (b, d), the state before the first step; zero when None.
    start    (b, l) bool: where set, a_t = 0 and the multiplier of i_t x_t is 1, as at a document's first step.
    reverse  run from the last step to the first. `start` marks steps in scan order, unlike in
             `linear_scan`: reversed, a document's first step is its last in time.
    first    (b,) bool, instead of `start`: whether the first step of the scan in each row is a document's first,
             and no other is. Cheaper.

    Half types accumulate in float32; p, q, x, rate and h0 may carry gradients of any order, each in its own dtype. The
    slope of the root is bounded by 1000, as published. Results are deterministic, bit for bit.

    Examples:
        >>> p, q, x = torch.randn(3, 2, 10, 4).unbind()
        >>> rv.gated_scan(p, q, x, -torch.ones(4)).shape
        torch.Size([2, 10, 4])
    """
    if not torch.compiler.is_compiling():
        p, q, x, rate, h0 = (resolve(t) if isinstance(t, Tensor) else t for t in (p, q, x, rate, h0))  # type: ignore[assignment]
    given = Inputs(p, q, x, rate, h0, start if first is None else first, reverse)
    check(given, start, first)
    if is_traced(x) and not plain.is_chosen():
        recorded: Tensor = _operator(*given)
        return recorded
    kernels = None if plain.is_chosen() else _kernels(given)
    if kernels is None:
        return gated_reference(*given)
    h: Tensor = _GatedScan.apply(kernels, *given)
    return h


# -- where a kernel applies -------------------------------------------------------------------------------------------


def _kernels(x: Inputs) -> Any:
    """The kernels for this call, or None for torch operations."""
    if not x.x.numel() or not is_untransformed():
        return None
    if is_batched(*x[:6]) or _unfit(x):
        return None
    if x.x.dtype in HALF and not x.x.is_cuda:
        return None
    found = choose("gated_scan", CANDIDATES, x.x.device, x.x.dtype)
    return None if found is nothing else found


def _unfit(x: Inputs) -> bool:
    """Whether no kernel supports this, by dtypes and size; logged once on a GPU."""
    mixed = not x.p.dtype == x.q.dtype == x.x.dtype or accumulator(x) != _choose_kept_dtype(x.x.dtype)
    if mixed:
        left_to_torch(x.x, "gated_scan", "inputs of several dtypes")
    long = x.x.is_cuda and x.x.shape[1] * x.x.shape[2] >= MOST
    if long:
        left_to_torch(x.x, "gated_scan", "rows of 2^30 numbers or more")
    return mixed or long


def _choose_kept_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in HALF else dtype


class _GatedScan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, kernels: Any, *given: Any) -> Tensor:
        x = Inputs(*given)
        h: Tensor = kernels.forward(x)
        ctx.save_for_backward(*given[:6], h)
        ctx.kernels, ctx.reverse = kernels, x.reverse
        return h

    @staticmethod
    @outside_autocast
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        p, q, u, rate, h0, start, h = ctx.saved_tensors
        x, g, needs = Inputs(p, q, u, rate, h0, start, ctx.reverse), gradients[0], ctx.needs_input_grad[1:6]
        found = gradients_again(x, g, needs) if by_graph_only(g) else ctx.kernels.backward(x, h, g)
        kept = (t if need else None for t, need in zip(found, needs, strict=True))
        return None, *kept, None, None


# -- for compilers and exports -----------------------------------------------------------------------------------------


@torch.library.custom_op("resolvent::gated_scan", mutates_args=())
def _operator(
    p: Tensor, q: Tensor, x: Tensor, rate: Tensor, h0: Tensor | None, start: Tensor | None, reverse: bool
) -> Tensor:
    given = Inputs(p, q, x, rate, h0, start, reverse)
    kernels = _kernels(given)
    return (gated_reference(*given) if kernels is None else kernels.forward(given)).contiguous()


@torch.library.custom_op("resolvent::gated_scan_backward", mutates_args=())
def _operator_backward(
    g: Tensor, h: Tensor, p: Tensor, q: Tensor, x: Tensor, rate: Tensor, h0: Tensor | None, start: Tensor | None,
    reverse: bool,
) -> list[Tensor]:  # fmt: skip
    given = Inputs(p, q, x, rate, h0, start, reverse)
    kernels = _kernels(given)
    if kernels is not None:
        found = kernels.backward(given, h, g)
    else:
        with recording():
            found = gradients_again(given, g, (True,) * 5)
    return [t.detach().contiguous() for t in found if t is not None]


_operator.register_fake(lambda p, q, x, *rest: fresh(x))
_operator_backward.register_fake(lambda g, h, *given: [fresh(t) for t in given[:5] if t is not None])


def _operator_saved(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.reverse = inputs
    ctx.save_for_backward(*tensors, output)


def _operator_gradients(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    *tensors, h = ctx.saved_tensors
    p, q, x, rate, h0, start = tensors
    given = Inputs(p, q, x, rate, h0, start, ctx.reverse)
    if torch.is_grad_enabled():
        return *gradients_again(given, g, ctx.needs_input_grad[:5]), None, None
    found = _operator_backward(g.contiguous(), h, *given)
    return *found, *(None,) * (7 - len(found))


register(_operator, _operator_backward, _operator_gradients, _operator_saved)


# -- the candidates ----------------------------------------------------------------------------------------------------


def _probe(kernels: Any, device: torch.device, dtype: torch.dtype) -> bool:
    """Values and gradients over slightly more than a tile, with all optional inputs."""
    wave = torch.sin(torch.arange(1.0, 81, device=device, dtype=torch.float64) ** 1.5).reshape(2, 10, 4).to(dtype)
    rate, start = -wave[0, 0].abs().to(_choose_kept_dtype(dtype)), wave[..., 0] > 0.8
    x = Inputs(wave, wave.flip(0), wave.flip(1), rate, wave[:, 1], start)
    wide: Any = Inputs(wave.double(), x.q.double(), x.x.double(), rate.double(), wave[:, 1].double(), start)
    with use("torch"):
        want: Any = gated_reference(*wide), *gradients_again(wide, wave.double(), (True,) * 5)
    h = kernels.forward(x)
    got: Any = h, *kernels.backward(x, h, wave)
    return all(bool((a.double() - b).norm() <= CLOSE[dtype] * b.norm()) for a, b in zip(got, want, strict=True))


def _gpu(device: torch.device, dtype: torch.dtype) -> bool:
    return device.type == "cuda" and dtype in CLOSE and dtype != torch.float64


CLOSE = {torch.float64: 1e-10, torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 2e-2}
CANDIDATES = (
    Candidate("triton", _gpu, lazily("ops.gated_scan.triton"), _probe),
    *numba_or(nothing, lazily("ops.gated_scan.numba"), _probe),
)
