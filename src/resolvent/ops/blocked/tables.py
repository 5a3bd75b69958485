"""The tables of `blocked` for diagonal and for dense banks.

They are small, so they are computed in float64 and rounded once: in float32 an angle dt Im(lam) of a hundred radians is
wrong in its fifth digit, and its powers more so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from resolvent.ops.blocked.carry import as_reals, form_states
from resolvent.ops.blocked.operation import Blocks, DenseCarry, DiagonalCarry
from resolvent.ops.pairs import Number, Pair
from resolvent.runtime.transforms import by_graph_only, gradients_by_graph, is_untransformed, outside_autocast

COMPLEX = {torch.float32: torch.complex64, torch.float64: torch.complex128}  # the compiler cannot trace to_complex()
FINE = 8  # a power is a product of one of the first eight and a power of the eighth


@dataclass(frozen=True)
class DiagonalBank:
    """d systems h_k = lam h_{k-1} + gain u_k, y_k = Re(weight h_k) + D u_k, all in float64 or complex128.

    gain None means ones: the state is then the paper's x divided by B_bar, and weight is C B_bar (2 C B_bar
    if one of each conjugate pair is kept).
    """

    lam: Number  # (d, n)
    weight: Number  # (d, n)
    D: Tensor | None = None  # (d,)
    gain: Number | None = None  # (d, n)


@dataclass(frozen=True)
class DenseBank:
    """d real systems x_k = A x_{k-1} + B u_k, y_k = C x_k + D u_k, in float64."""

    A: Tensor  # (d, s, s)
    B: Tensor  # (d, s)
    C: Tensor  # (d, s)
    D: Tensor | None = None  # (d,)


def narrow(x: Any, dtype: torch.dtype) -> Any:
    """x in the real `dtype`, or in the complex one of that precision."""
    return x.to(dtype) if isinstance(x, Pair) else x.to(COMPLEX[dtype] if x.is_complex() else dtype)


def largest(dtype: torch.dtype) -> float:
    """The largest allowed modulus: below one by a margin that survives rounding to `dtype`."""
    return 1 - 4 * torch.finfo(dtype).eps


def inside(lam_bar: Any, dtype: torch.dtype) -> Any:
    """lam_bar with its modulus limited below one."""
    return lam_bar.mul((largest(dtype) / lam_bar.abs().clamp(min=0.5)).clamp(max=1))


def diagonal_blocks(
    bank: DiagonalBank, T: int, dtype: torch.dtype, delay: bool = False, by_hand: bool | None = None
) -> Blocks:
    """Tables in the real `dtype`; with `delay` the output reads the previous state, without D.

    `by_hand`: use hand-written gradients, valid only without transforms; None checks.
    """
    by_hand = is_untransformed() if by_hand is None else by_hand
    toeplitz, M_in, M_out, *powers = make_tables(bank, first_number(bank, delay).to(dtype), T, delay, by_hand)
    return Blocks(toeplitz, M_in, M_out, DiagonalCarry(*powers))


def make_tables(bank: DiagonalBank, now: Tensor, T: int, delay: bool, by_hand: bool) -> tuple[Tensor, ...]:
    """`diagonal_tables`, with hand-written gradients if asked."""
    if T == 1 or not by_hand:
        return diagonal_tables(bank, now, T, delay)
    made: tuple[Tensor, ...] = _Tables.apply(bank.lam, bank.weight, now, bank.gain, T, delay)
    return made


def first_number(bank: DiagonalBank, delay: bool) -> Tensor:
    """K_0 (d, 1): the immediate response to a unit input."""
    weight = bank.weight if bank.gain is None else bank.weight * bank.gain
    now: Tensor = weight.real.sum(-1, keepdim=True) * (0 if delay else 1)
    return now if bank.D is None or delay else now + bank.D[:, None]


def diagonal_tables(bank: DiagonalBank, now: Tensor, T: int, delay: bool = False) -> tuple[Tensor, ...]:
    """Toeplitz, M_in, M_out, lam^1 .. lam^T (d, T, n) and lam^T (d, n), in the dtype of now (d, 1): K_0."""
    M_in, M_out, powers, whole = _ends(bank, T, now.dtype, delay)
    past = _response(M_out, bank)[:, :-1]  # (d, T - 1): K_1 .., or K_0 .. with delay
    return _toeplitz(torch.cat([now, past], 1)), M_in, M_out, powers, whole


def _ends(bank: DiagonalBank, T: int, dtype: torch.dtype, delay: bool = False) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """M_in and M_out (d, T, s), lam^1 .. lam^T (d, T, n) and lam^T (d, n)."""
    powers, whole = geometric(bank.lam, T, dtype)
    lower = torch.cat([torch.ones_like(powers[:, :1]), powers[:, :-1]], 1)  # lam^0 .. lam^{T-1}
    M_out = _read_out(narrow(bank.weight, dtype)[:, None] * (lower if delay else powers))
    M_in = lower.flip(1) if bank.gain is None else narrow(bank.gain, dtype)[:, None] * lower.flip(1)
    return as_reals(M_in), M_out, powers, whole


def links(bank: DiagonalBank | DenseBank, T: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """The matrices linking blocks of T steps: M_in, M_out and A^T, without the Toeplitz matrix."""
    if isinstance(bank, DiagonalBank):
        M_in, M_out, _, whole = _ends(bank, T, dtype)
        return M_in, M_out, whole
    doublings, into, M_out = _double(bank, T)
    return into.flip(1).to(dtype), M_out.to(dtype), _power(doublings, T).to(dtype)


class _Tables(torch.autograd.Function):
    """`diagonal_tables` with its gradients in fewer passes over the tables than autograd."""

    @staticmethod
    def forward(
        ctx: Any, lam: Tensor, weight: Tensor, now: Tensor, gain: Tensor | None, T: int, delay: bool
    ) -> tuple[Tensor, ...]:
        made = diagonal_tables(DiagonalBank(lam, weight, gain=gain), now, T, delay)
        ctx.save_for_backward(lam, weight, now, gain, made[3])
        ctx.shapes, ctx.delay = [x.shape for x in made], delay
        ctx.set_materialize_grads(False)
        return made

    @staticmethod
    @outside_autocast
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        lam, weight, now, gain, powers = ctx.saved_tensors
        kinds = (now, now, now, powers, powers)
        g = [
            like.new_zeros(()).expand(shape) if g is None else g
            for g, like, shape in zip(gradients, kinds, ctx.shapes, strict=True)
        ]
        if by_graph_only(*g):
            inputs, T = (lam, weight, now, gain), powers.shape[1]

            def again(lam: Tensor, weight: Tensor, now: Tensor, gain: Tensor | None) -> tuple[Tensor, ...]:
                return diagonal_tables(DiagonalBank(lam, weight, gain=gain), now, T, ctx.delay)

            return *gradients_by_graph(again, inputs, g, ctx.needs_input_grad[:4]), None, None
        asked = [*g[:3], gradients[3], g[4]]
        return *table_gradients(DiagonalBank(lam, weight, gain=gain), powers, asked, ctx.delay), None, None


def table_gradients(
    bank: DiagonalBank, powers: Tensor, g: Sequence[Any], delay: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """The gradients of lam, weight, now and gain, from those of the tables (that of the powers may be None).

    With M_out's w lam^e (e = 1 .. T, or 0 .. T-1 with delay), M_in's gain lam^k (k = T-1 .. 0), Q and R their
    gradients (Q conjugate, with what the kernel adds), and ‾ the conjugate,

        ∂w = ‾(sum lam^e Q),    ∂lam = ‾(w sum e lam^(e-1) Q) + sum ‾(gain k lam^(k-1)) R
        ∂gain = ‾(sum w lam^e ∂K) + sum ‾lam^k R
    """
    g_toeplitz, g_in, g_out, g_powers, g_whole = g
    lam, weight, gain, T = bank.lam, bank.weight, bank.gain, powers.shape[1]
    kernel = _toeplitz_gradient(g_toeplitz)  # (d, T)
    lower = torch.cat([torch.ones_like(powers[:, :1]), powers[:, :-1]], 1)  # lam^0 .. lam^(T-1)
    slope = lower * torch.arange(1, T + 1, dtype=kernel.dtype, device=kernel.device)[:, None]  # k lam^(k-1), k = 1 ..
    Q = form_states(g_out, lam).clone()  # (d, T, n), conjugate, as it enters w lam^e, which saves a copy
    if gain is not None:
        Q[:, :-1] += gain[:, None].to(Q.dtype) * kernel[:, 1:, None]
    else:
        (torch.view_as_real(Q)[..., 0] if Q.is_complex() else Q)[:, :-1] += kernel[:, 1:, None]
    R = form_states(g_in, lam).flip(1)  # k = 0 .. T-1
    read, steep = (lower[:, 1:], slope[:, :-1]) if delay else (powers, slope)
    own = Q[:, 1:] if delay else Q  # at e = 0 nothing depends on lam
    g_lam = (weight * (steep * own).sum(1)).conj()
    into = (slope[:, :-1].conj() * R[:, 1:]).sum(1)
    g_lam = g_lam + (into if gain is None else gain.conj() * into) + slope[:, -1].conj() * g_whole
    if g_powers is not None:
        g_lam = g_lam + (slope.conj() * g_powers).sum(1)
    g_weight = (read * own).sum(1) + (Q[:, 0] if delay else 0)
    g_gain = None
    if gain is not None:
        rows = (lower if delay else powers)[:, :-1]
        g_gain = (weight * (rows * kernel[:, 1:, None]).sum(1)).conj() + (lower.conj() * R).sum(1)
        g_gain = g_gain.to(gain.dtype)
    return g_lam, g_weight.conj().to(weight.dtype), kernel[:, :1], g_gain


def _toeplitz_gradient(g: Tensor) -> Tensor:
    """(d, T, T) -> (d, T): the sums along the diagonals. In rows of 2T a diagonal is a column of stride 2T + 1."""
    d, T, _ = g.shape
    rows = torch.nn.functional.pad(g, (0, T))
    return rows.as_strided((d, T, T), (2 * T * T, 2 * T + 1, 1)).sum(1)


def dense_blocks(bank: DenseBank, T: int, dtype: torch.dtype, delay: bool = False) -> Blocks:
    """The same for dense banks."""
    doublings, into, M_out = _double(bank, T, delay)
    kernel = (into @ bank.C[..., None])[..., 0]  # (d, T)
    carry = DenseCarry(tuple(P.to(dtype) for P in doublings), _power(doublings, T).to(dtype))
    toeplitz = _toeplitz(_first_column(kernel, bank.D, delay).to(dtype))
    return Blocks(toeplitz, into.flip(1).to(dtype), M_out.to(dtype), carry)


def _double(bank: DenseBank, T: int, delay: bool = False) -> tuple[list[Tensor], Tensor, Tensor]:
    """The transposes of A, A^2, A^4, ... up to A^T, and (d, T, s) each, A^i B and C A^{i+1}, or with delay C A^i.

    By doubling: A^{2k} = A^k A^k reaches T in log2(T) products.
    """
    doublings = [bank.A.mT]  # transposed: states are rows
    into = bank.B[:, None]  # (d, k, s): rows A^i B, i = 0 .. k-1
    M_out = bank.C[:, None] if delay else bank.C[:, None] @ bank.A  # (d, k, s): rows C A^i, or C A^{i+1}
    while (k := into.shape[1]) < T:
        P = doublings[-1]
        into = torch.cat([into, into[:, : T - k] @ P], 1)
        M_out = torch.cat([M_out, M_out[:, : T - k] @ P.mT], 1)
        if 2 * k <= T:
            doublings.append(P @ P)
    return doublings, into, M_out


def _response(M_out: Tensor, bank: DiagonalBank) -> Tensor:
    """The output of each row of M_out (d, T, s) for the state after a unit input, (d, T)."""
    if bank.gain is not None:
        return (M_out @ as_reals(bank.gain).to(M_out.dtype)[..., None])[..., 0]
    return (M_out[..., ::2] if bank.lam.is_complex() else M_out).sum(-1)  # the state is 1 + 0i


def _power(doublings: list[Tensor], T: int) -> Tensor:
    """P^T from P, P^2, P^4, ..."""
    factors = [P for k, P in enumerate(doublings) if (T >> k) & 1]
    product = factors[0]
    for factor in factors[1:]:
        product = product @ factor
    return product


def geometric(lam: Tensor, count: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """lam^1, ..., lam^count of lam (d, n) along a new axis 1, in the precision of `dtype`, and lam^count.

    Each power is one product of two exact ones, lam^i lam^(8j), so the large table is made and differentiated once. The
    last power, the only one applied repeatedly, is rounded from the exact one.
    """
    fine = _chain(lam, min(count, FINE))  # (d, 8, n)
    rows = -(-count // FINE)
    if rows == 1:
        return narrow(fine, dtype), narrow(fine[:, -1], dtype)
    coarse = torch.cat([torch.ones_like(fine[:, :1]), _chain(fine[:, -1], rows - 1)], 1)  # (d, rows, n)
    table = (narrow(coarse, dtype)[:, :, None] * narrow(fine, dtype)[:, None]).flatten(1, 2)[:, :count]
    return table, narrow(coarse[:, -1] * fine[:, (count - 1) % FINE], dtype)


def _chain(lam: Tensor, count: int) -> Tensor:
    """lam^1, ..., lam^count by doubling."""
    powers = lam[:, None]
    while powers.shape[1] < count:
        powers = torch.cat([powers, powers[:, : count - powers.shape[1]] * powers[:, -1:]], 1)
    return powers


def as_state(end: Tensor, whole: Tensor) -> Tensor:
    """Reals (b, d, s) as a layer's complex or real state; `whole` is A^T of its carry."""
    return deinterleave(end) if whole.dim() == 3 or whole.is_complex() else end


def deinterleave(reals: Tensor) -> Tensor:
    """Reals (..., 2n) as complex numbers (..., n): a copy, since the compiler does not accept a complex view of a real
    tensor as an input."""
    return torch.view_as_complex(reals.contiguous().unflatten(-1, (-1, 2))).clone()


def _read_out(weight: Tensor) -> Tensor:
    """The real row w with w . reals(h) = Re(weight h)."""
    return as_reals(weight.conj())


def _first_column(kernel: Tensor, D: Tensor | None, delay: bool) -> Tensor:
    """The impulse response of one block: the kernel with D at lag zero, or with delay shifted by one step without D."""
    if delay:
        return torch.nn.functional.pad(kernel[:, :-1], (1, 0))
    return kernel if D is None else torch.cat([kernel[:, :1] + D[:, None], kernel[:, 1:]], 1)


def _toeplitz(kernel: Tensor) -> Tensor:
    """(d, T) -> (d, T, T) with K_{j-i} in row i, column j >= i, and zero below the diagonal."""
    T = kernel.shape[-1]
    return torch.nn.functional.pad(kernel, (T - 1, 0)).unfold(-1, T, 1).flip(1)
