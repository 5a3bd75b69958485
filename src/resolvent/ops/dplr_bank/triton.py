"""Launches of `triton_kernels`: the tables of a bank of S4's systems in two kernels, their gradients in four and a sum.

Imported by the dispatcher only, because Triton is not required.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from resolvent.ops.bank_scan.triton import Tables, carry_dense
from resolvent.ops.dplr_bank import triton_kernels as kernels
from resolvent.runtime.launch import on_device

STEP = 32  # rows per product step
WIDE = 64  # rows of A^T per program


class Given(NamedTuple):
    """A layer's parameters as kernel arguments, and their sizes."""

    own: list[Tensor]  # log_decay, frequency, P, B, log_dt, C
    D: Tensor | None
    d: int
    n: int
    rank: int
    shared: int  # channels per system

    @property
    def like(self) -> Tensor:
        return self.own[5]

    @property
    def cols(self) -> int:
        """The number of starting points, including those for A^T."""
        return 2 + 2 * self.rank

    @property
    def margin(self) -> float:
        """The margin of ||A_bar|| below one in `half_dplr.discrete`."""
        return 8 * torch.finfo(torch.float32).eps

    def sizes(self, columns: int = 1) -> dict[str, int]:
        BN = max(16, triton.next_power_of_2(self.n))
        return {"RANK": self.rank, "BN": BN, "num_warps": max(1, BN * columns // 128)}


class Slopes(NamedTuple):
    """Gradients of tables, in place: those of M_in (d, T, s), of M_out, whose rows and numbers have separate strides,
    of A^T (d, s, s), and of the Toeplitz matrices or of K itself."""

    into: Tensor
    out: Tensor
    power: Tensor
    toeplitz: Tensor | None = None
    K: Tensor | None = None


def unpack(parameters: Sequence[Tensor], delay: bool = False) -> Given:
    own = [p.detach().contiguous() for p in parameters]
    (d, n), rank = own[5].shape[:2], own[2].shape[2]
    D = None if delay or len(own) < 7 else own[6]
    return Given(own[:6], D, d, n, rank, d // own[0].shape[0])


def make_tables(parameters: Sequence[Tensor], T: int, delay: bool, dtype: torch.dtype) -> Tables:
    """The tables of `bank_scan`, in the dtype of its products."""
    given = unpack(parameters, delay)
    width = T + 2 * given.n
    ahead, back = (torch.empty((given.d, T, width), dtype=dtype, device=given.like.device) for _ in range(2))
    K = given.like.new_empty(given.d, T)
    power = _make_power(given, T, delay, K, back[:, :, T:], ahead[:, :, T:], (back, ahead))
    return Tables(ahead, back, power, True)


def parameter_gradients(parameters: Sequence[Tensor], product: Tensor, T: int, delay: bool) -> list[Tensor]:
    """The parameters' gradients from `bank_scan`'s product (d, T + s, T + s)."""
    slopes = Slopes(product[:, :T, T:], product[:, T:, :T].mT, product[:, T:, T:], product)
    return _go_back(parameters, slopes, T, delay)


def make_links(parameters: Sequence[Tensor], T: int) -> tuple[Tensor, ...]:
    """The first T steps of K (d, T), M_in and M_out (d, T, s) and A^T (d, s, s), transposed."""
    given = unpack(parameters)
    into, out = (given.like.new_empty((given.d, T, 2 * given.n)) for _ in range(2))
    K = given.like.new_empty(given.d, T)
    return K, into, out, _make_power(given, T, False, K, into, out, None)


def link_gradients(parameters: Sequence[Tensor], g: Sequence[Tensor]) -> list[Tensor]:
    K, into, out, power = (t.float().contiguous() for t in g)
    return _go_back(parameters, Slopes(into, out, power, K=K), K.shape[1], False)


def response(parameters: Sequence[Tensor], length: int) -> tuple[Tensor, tuple[Tensor, ...]]:
    """K (d, length) in float32, with D = 0, and the tensors saved for its gradients.

    K_{iT+j} = (C A^j) (A^{iT} B): T steps of the rows, and a state carried from block to block, starting from B.
    """
    given, T = unpack(parameters), cut(length)
    d, s, m = given.d, 2 * given.n, -(-length // T)
    into, out = (given.like.new_empty((d, T, s)) for _ in range(2))
    power = _make_power(given, T, True, None, into, out, None)
    states = given.like.new_empty(d, m, s)
    carry_dense(
        power, given.like.new_zeros(d, m, s), into[:, T - 1].contiguous(), states, None, 1, back=False, exact=True
    )
    K = torch.bmm(states, out.mT).view(d, m * T)[:, :length]
    if given.D is not None:
        K[:, 0] += given.D
    return K, (out, power, states)


def response_gradients(parameters: Sequence[Tensor], g: Tensor, kept: Sequence[Tensor]) -> list[Tensor]:
    out, power, states = kept
    (d, T, s), m = out.shape, states.shape[1]
    G = torch.nn.functional.pad(g.float(), (0, m * T - g.shape[1])).view(d, m, T)
    back, into = torch.empty_like(states), torch.zeros_like(out)
    first = out.new_empty(d, s)
    carry_dense(power, torch.bmm(G, out), None, back, first, 1, back=True, exact=True)
    into[:, T - 1] = first
    slopes = Slopes(into, torch.bmm(G.mT, states), torch.bmm(states.mT, back), K=out.new_zeros(d, T))
    found = _go_back(parameters[:6], slopes, T, True)
    return found if len(parameters) < 7 else [*found, g[:, 0]]


def cut(length: int) -> int:
    """Steps of a block of a response: the power of two nearest to the root of the length."""
    return max(1, 1 << -(-(length - 1).bit_length() // 2))


def _make_power(
    given: Given,
    T: int,
    delay: bool,
    K: Tensor | None,
    into: Tensor,
    out: Tensor,
    matrices: tuple[Tensor, Tensor] | None,
) -> Tensor:
    """A^T, while K, M_in and M_out are written, and the Toeplitz matrices if requested."""
    (d, n), like = (given.d, given.n), given.like
    rows, whole = like.new_empty(d, given.cols, T, n, 2), like.new_empty(d, n, 2)
    power = like.new_empty(d, 2 * n, 2 * n)
    _run_rows(given, T, delay, rows, K, into, out, whole)
    BS = max(16, triton.next_power_of_2(2 * n))
    BA = min(BS, WIDE)
    toeplitz, turned = (None, None) if matrices is None else matrices
    with on_device(like):
        kernels.tables_kernel[(d, triton.cdiv(2 * n, BA))](
            rows, whole, K, toeplitz, turned, power, n, T, given.cols, 0 if toeplitz is None else toeplitz.stride(1),
            RANK=given.rank, DELAY=int(delay), BA=BA, BS=BS, BT=max(16, triton.next_power_of_2(T)), STEP=STEP,
            num_warps=4,
        )  # fmt: skip
    return power


def _run_rows(
    given: Given, T: int, delay: bool, rows: Tensor, K: Tensor | None = None, into: Tensor | None = None,
    out: Tensor | None = None, whole: Tensor | None = None,
) -> None:  # fmt: skip
    strides = (0, 0, 0, 0) if into is None or out is None else (*into.stride()[:2], *out.stride()[:2])
    with on_device(given.like):
        kernels.rows_kernel[(given.d, given.cols)](
            *given.own, given.D, rows, K, into, out, whole, given.shared, given.n, T, given.cols, *strides,
            given.margin, DELAY=int(delay), **given.sizes(),
        )  # fmt: skip


def _go_back(parameters: Sequence[Tensor], g: Slopes, T: int, delay: bool) -> list[Tensor]:
    """Recompute the rows, then their gradients, and from these those of the parameters."""
    given = unpack(parameters, delay)
    d, n, rank, like = given.d, given.n, given.rank, given.like
    rows, slopes = (like.new_empty(d, given.cols, T, n, 2) for _ in range(2))
    K = like.new_empty(d, T) if g.K is None else g.K
    sums = like.new_empty(d, given.cols, 3 + 2 * rank, 2, n, dtype=torch.float64)
    each = (n, n, 2 * n * rank, 2 * n)
    found, dt, C = like.new_empty(d, sum(each)), like.new_empty(d), torch.empty_like(like)
    _run_rows(given, T, delay, rows)
    with on_device(like):
        kernels.spread_kernel[(d, triton.cdiv(T, STEP))](
            rows, g.toeplitz, g.into, g.out, g.power, slopes, K, n, T, given.cols,
            *g.into.stride()[:2], *g.out.stride(), *g.power.stride()[:2],
            RANK=rank, DELAY=int(delay), BS=max(16, triton.next_power_of_2(2 * n)), PART=STEP, STEP=STEP, num_warps=4,
        )  # fmt: skip
        kernels.back_kernel[(d, given.cols)](
            *given.own, rows, slopes, K, sums, given.shared, n, T, given.cols, given.margin,
            DELAY=int(delay), **given.sizes(),
        )  # fmt: skip
        kernels.gradient_kernel[(d,)](
            *given.own[:5], sums, g.power, *found.split(each, 1), dt, C, given.shared, n, sum(each), T,
            given.cols, *g.power.stride()[:2], given.margin, BJ=4 * rank, **given.sizes(4 * rank),
        )  # fmt: skip
    if given.shared > 1:
        found = found.view(-1, given.shared, sum(each)).sum(1)
    made = [t.reshape(p.shape) for t, p in zip(found.split(each, 1), given.own, strict=False)]
    return [*made, dt, C, *([] if given.D is None else [K[:, 0]])]
