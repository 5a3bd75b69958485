"""Shared by layers of independent single-input channels: S4D, DSS and EMA run a diagonal bank, S4 a dense one.

A layer passes a function that makes its bank from its parameters; `frozen()` keeps the tables made from it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from resolvent.layers.contract import Layer
from resolvent.ops import blocked, dplr_bank
from resolvent.ops.bank_scan import bank_scan, dense_bank_scan, serves, serves_dense, steps_of
from resolvent.ops.bank_scan import traced as bank_traced
from resolvent.ops.blocked import DenseBank, DiagonalBank, as_state, deinterleave, narrow, reals
from resolvent.ops.blocked import traced as blocked_traced
from resolvent.ops.modes import DenseSource, Kind, Source
from resolvent.ops.pairs import parts, tensor_of
from resolvent.ops.step import Step, bank_step, is_unwatched
from resolvent.runtime.transforms import half_products, half_products_traced, is_traced, is_untransformed

Bank = DiagonalBank | DenseBank
MakeBank = Callable[[], Bank] | Source  # a Source can also make tables directly from parameters


def sequence(
    layer: Layer, bank: MakeBank, x: Tensor, h: Tensor | None, lengths: Tensor | None = None, key: str = ""
) -> tuple[Tensor, Tensor]:
    """The causal pass over x (b, l, d) from the state h (b, d, n); None is zero. Returns y (b, l, d) and the state at
    each sequence's end.

    `key` names the bank where a layer has several.
    """
    start = None if h is None else reals(h)
    if (found := _scan(layer, bank, x, start, lengths, False, key)) is not None:
        real = isinstance(bank, Source) and bank.modes.kind is Kind.EMA
        return found[0], found[1] if real else deinterleave(found[1])
    blocks, run = _blocks(layer, bank, x, False, key)
    y, end = run(blocks, x, start, lengths)
    return y, as_state(end, blocks.carry.whole)


def backward_sequence(layer: Layer, bank: MakeBank, x: Tensor, delay: bool, key: str = "") -> Tensor:
    """The backward direction over a reversed x: y alone. With `delay` a step sees only its strict future."""
    if (found := _scan(layer, bank, x, None, None, delay, f"backward {key}")) is not None:
        return found[0]
    blocks, run = _blocks(layer, bank, x, delay, f"backward {key}")
    y: Tensor = run(blocks, x, None)[0]
    return y


def _scan(
    layer: Layer, bank: MakeBank, x: Tensor, h: Tensor | None, lengths: Tensor | None, delay: bool, key: str
) -> tuple[Tensor, Tensor] | None:
    """y and the last states (b, d, s) by the GPU kernels; None where they do not apply."""
    asked = x.device.type in bank_traced.DEVICES and not layer.is_frozen
    if asked and isinstance(bank, Source) and bank_traced.serves_traced(bank, x, h):
        return bank_traced.traced_scan(bank, x, lengths, delay, half_products_traced(x))
    if not x.is_cuda:
        return None
    dtype = torch.bfloat16 if half_products(x) else torch.float32

    def keep(name: str, make: Callable[[], Any]) -> Any:
        return layer.cached(f"{name} {key}", make) if layer.is_frozen else None

    if isinstance(bank, Source) and serves(bank, x, h):
        return bank_scan(bank, x, h, lengths, delay, dtype, keep)
    if isinstance(bank, DenseSource) and dplr_bank.serves(bank, x, h):
        return dplr_bank.dplr_scan(bank, x, h, lengths, delay, dtype, keep)
    if isinstance(bank, DenseSource) and serves_dense(x, h, bank.states):
        T = steps_of(x, h)
        blocks = layer.cached(f"dense {T} {key}", lambda: bank.blocks(T, delay))
        return dense_bank_scan(blocks, x, h, lengths, dtype)
    return None


def output(bank: Bank, x: Tensor, dtype: torch.dtype, delay: bool = False) -> Tensor:
    """y (b, l, d) of x from the zero state, with tables made for this call alone."""
    way = blocked_traced if is_traced(x) else blocked
    y: Tensor = way.run(tables(bank, way.block_length(x.shape[1]), dtype, delay), x, None)[0]
    return y


def _blocks(layer: Layer, bank: MakeBank, x: Tensor, delay: bool, key: str) -> tuple[blocked.Blocks, Any]:
    """The tables for x, cached in `frozen()`, and the function that runs them; transforms are checked here, once."""
    dtype, l = layer.dtype, x.shape[1]
    if is_traced(x):
        T = blocked_traced.block_length(l)
        made = layer.cached(f"traced {T} {key}", lambda: _tables(bank, T, dtype, delay, True, False))
        return made, blocked_traced.run
    by_hand, opaque = is_untransformed(), x.is_cuda
    T = blocked.block_length(l)
    made = layer.cached(f"blocks {T} {key}", lambda: _tables(bank, T, dtype, delay, opaque, by_hand))
    return made, partial(blocked.run, by_hand=by_hand)


def _tables(bank: MakeBank, T: int, dtype: torch.dtype, delay: bool, opaque: bool, by_hand: bool) -> blocked.Blocks:
    """With `opaque`, make them directly from parameters where the bank supports it."""
    if isinstance(bank, Source | DenseSource) and opaque:
        return bank.blocks(T, delay)
    if not isinstance(bank, Source):
        return tables(bank(), T, dtype, delay)
    own = bank.modes.bank(bank.parameters, bank.option, torch.complex)
    return blocked.diagonal_blocks(own, T, dtype, delay, by_hand)


def tables(bank: Bank, T: int, dtype: torch.dtype, delay: bool = False) -> blocked.Blocks:
    if isinstance(bank, DenseBank):
        return blocked.dense_blocks(bank, T, dtype, delay)
    make = blocked_traced.diagonal_blocks if is_traced(bank.D, *parts(bank.lam)[:1]) else blocked.diagonal_blocks
    return make(bank, T, dtype, delay)


def end_state(bank: Bank, x: Tensor, dtype: torch.dtype) -> Tensor:
    """The state after x (b, l, d) from the zero state, with tables made for this call alone."""
    blocks = tables(bank, blocked.block_length(x.shape[1]), dtype)
    return as_state(blocked.run(blocks, x, None)[1], blocks.carry.whole)


def step(layer: Layer, bank: Callable[[], DiagonalBank], x_t: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """h = lam h + gain u, y = Re(weight h) + D u for x_t (b, d) and h (b, d, n)."""
    lam, row, D, gain = layer.cached("step", lambda: _step_table(bank(), layer.dtype))
    if gain is None and is_unwatched(x_t, h, lam, row):
        return bank_step(lam, row, D)(x_t, h)
    drive = x_t[..., None] if gain is None else gain * x_t[..., None]
    h = lam * h + drive
    y = (reals(h) * row).sum(-1)
    return (y if D is None else torch.addcmul(y, D, x_t)), h


def stepper(layer: Layer, bank: Callable[[], DiagonalBank]) -> Step | None:
    """`step` on raw tensors with its tables precomputed; None for a bank with gains."""
    lam, row, D, gain = layer.cached("step", lambda: _step_table(bank(), layer.dtype))
    return bank_step(lam, row, D) if gain is None else None


def _step_table(bank: DiagonalBank, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    D, gain = (None if t is None else narrow(tensor_of(t), dtype) for t in (bank.D, bank.gain))
    return narrow(tensor_of(bank.lam), dtype), narrow(reals(bank.weight.conj()), dtype), D, gain


def pairs(z: Tensor) -> nn.Parameter:
    """A parameter from z, a complex one as real pairs (..., 2), in torch's default dtype and on its default device."""
    z = torch.view_as_real(z.resolve_conj()) if z.is_complex() else z
    return nn.Parameter(z.to(torch.get_default_device(), torch.get_default_dtype()).contiguous())


def complex_normal(*shape: int) -> Tensor:
    """Complex normal numbers of unit variance."""
    return torch.randn(*shape, dtype=torch.complex128)


def in_basis(V: Tensor, d: int, factor: Tensor | None = None) -> nn.Parameter:
    """C_0 V as real pairs (d, k, 2) for normal C_0 (d, n) and a basis V (n, k), times `factor` (k,) if given."""
    C_0 = torch.randn(d, V.shape[0], dtype=torch.float64)
    C = C_0.to(V.dtype) @ V.to(C_0.device)
    return pairs(C if factor is None else C * factor.to(C.device))
