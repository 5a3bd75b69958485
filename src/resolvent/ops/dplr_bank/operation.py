"""S4's pass over x (b, l, d) from its parameters to its output on a GPU, and where the kernels of its tables run.

`bank_scan.dense` runs the same pass from tables made in some hundred torch operations in each direction; here
they are two kernels and four (`dplr_bank.triton_kernels`), which use that A is diagonal minus low rank. The reference
is `dense_blocks` of the bank made by the layer's own formula in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from resolvent.ops.bank_scan.dense import has_room, make_dense, serves_dense, steps_of
from resolvent.ops.bank_scan.operation import STEPS, run_scan
from resolvent.ops.blocked.tables import DenseBank, dense_blocks
from resolvent.ops.modes.dense import DenseSource, flat_blocks
from resolvent.runtime.dispatch import Candidate, choose, lazily, nothing, triton_or
from resolvent.runtime.transforms import is_traced, is_untransformed

MakeBank = Callable[..., DenseBank]  # (parameters, option)
RANKS = 2  # columns of P supported by the kernels
CLOSE = 1e-4


def kernels_of(source: Any) -> Any:
    """The kernels that make this source's tables, or None."""
    if not (isinstance(source, DenseSource) and source.option in source.fused):
        return None
    P = source.parameters[2]
    small = P.shape[-2] <= RANKS and has_room(P, 2 * P.shape[-3])
    if not (small and P.is_cuda and P.dtype == torch.float32 and is_untransformed()) or is_traced(*source.parameters):
        return None
    rank = P.shape[-2]
    found: Any = choose(f"dplr_bank {rank}", _candidates(source.make, source.option, rank), P.device, P.dtype)
    return None if found is nothing else found


def serves(source: Any, x: Tensor, h0: Tensor | None) -> bool:
    """Whether the kernels support this pass."""
    return kernels_of(source) is not None and serves_dense(x, h0, source.states)


def dplr_scan(
    source: DenseSource, x: Tensor, h0: Tensor | None, lengths: Tensor | None, delay: bool, dtype: torch.dtype,
    keep: Callable[[str, Callable[[], Any]], Any],
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """As `bank_scan` for S4's systems: y (b, l, d) and the state (b, d, s) at each sequence's end."""
    T, kernels = steps_of(x, h0), load()
    making = make_dense(
        lambda own: kernels.make_tables(own, T, delay, dtype),
        lambda own, product: kernels.parameter_gradients(own, product, T, delay),
        lambda own: flat_blocks(dense_blocks(source.make(own, source.option), T, own[0].dtype, delay)),
        lengths,
    )
    tables = keep(f"dplr {T} {dtype} {delay}", lambda: making.make(source.parameters))
    return run_scan(making, tables, x, h0, lengths, source.parameters)


# -- where the kernels run ---------------------------------------------------------------------------------------------


load = lazily("ops.dplr_bank.triton")


def example(device: torch.device, rank: int, d: int = 16, n: int = 32) -> list[Tensor]:
    """Parameters of d channels sharing a system of n states, one of them too close to the stability limit.

    Sizes match a layer's machine code, so that it is compiled only once.
    """
    shapes = (1, n), (1, n), (1, n, rank, 2), (1, n, 2), (d,), (d, n, 2), (d,)
    counts = [math.prod(shape) for shape in shapes]
    wave = torch.sin(torch.arange(sum(counts), device=device, dtype=torch.float32) ** 1.5)
    decay, frequency, P, B, log_dt, C, D = (t.reshape(s) for t, s in zip(wave.split(counts), shapes, strict=True))
    decay = decay - 1
    decay[0, 2] = -16.0
    return [decay, 5 * frequency, P / math.sqrt(n), B, log_dt - 2, C, D]


def agrees(kernels: Any, make: MakeBank, option: str, own: list[Tensor], T: int) -> bool:
    """Whether tables and the parameters' gradients agree with torch operations in float64."""
    d, width = own[5].shape[0], T + 2 * own[5].shape[1]
    with torch.enable_grad():
        own = [p.detach().requires_grad_() for p in own]
        flat = flat_blocks(dense_blocks(make(own, option), T, torch.float64))
        toeplitz, M_in, M_out, whole = *flat[:3], flat[-1]
        g = torch.sin(torch.arange(d * width * width, device=toeplitz.device, dtype=torch.float64) ** 1.3)
        g = g.view(d, width, width)
        slopes = g[:, :T, :T], g[:, :T, T:], g[:, T:, :T].mT, g[:, T:, T:]
        wanted = torch.autograd.grad((toeplitz, M_in, M_out, whole), own, slopes)
    want = torch.cat([toeplitz.mT, M_out], 2), torch.cat([toeplitz, M_in], 2), whole
    made = kernels.make_tables(own, T, False, torch.float32)[:3]
    found = kernels.parameter_gradients(own, g.float(), T, False)
    pairs = zip((*made, *found), (*want, *wanted), strict=True)
    return all(bool((x.double() - y).norm() <= CLOSE * y.norm()) for x, y in pairs)


@cache
def _candidates(make: MakeBank, option: str, rank: int) -> tuple[Candidate, ...]:
    def probe(kernels: Any, device: torch.device, dtype: torch.dtype) -> bool:
        return agrees(kernels, make, option, example(device, rank), STEPS[0])

    return triton_or(nothing, load, probe)
