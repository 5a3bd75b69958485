"""What layers of independent single-input channels share: S4D, DSS and EMA run one diagonal bank, S4 a dense one.

A layer hands over a function that makes its bank from its parameters; the tables made from it are kept in `frozen()`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from resolvent.layers.contract import Layer
from resolvent.scan.step import Step, bank_step, unwatched
from resolvent.ssm import blocked
from resolvent.ssm.block_tables import DenseBank, DiagonalBank, dense_blocks, diagonal_blocks, narrow, reals

Bank = DiagonalBank | DenseBank


def sequence(
    layer: Layer, bank: Callable[[], Bank], x: Tensor, h: Tensor, lengths: Tensor | None = None, key: str = ""
) -> tuple[Tensor, Tensor]:
    """The causal pass over x (b, l, d) from the state h (b, d, n): y (b, l, d) and the state at each sequence's end.

    `key` names the bank where a layer has more than one.
    """
    T = blocked.block_length(x.shape[1])
    blocks = layer.cached(f"blocks {T} {key}", lambda: tables(bank(), T, layer.dtype))
    y, end = blocked.run(blocks, x, reals(h), lengths)
    # a value of its own: the compiler takes no complex view of a real tensor as an input
    return y, as_complex(end.unflatten(-1, (-1, 2))).clone() if h.is_complex() else end


def backward_sequence(layer: Layer, bank: Callable[[], Bank], x: Tensor, delay: bool, key: str = "") -> Tensor:
    """The other direction over a reversed x: y alone. With `delay` a step sees its strict future only."""
    T = blocked.block_length(x.shape[1])
    blocks = layer.cached(f"backward blocks {T} {key}", lambda: tables(bank(), T, layer.dtype, delay))
    return _from_zero(blocks, x)


def output(bank: Bank, x: Tensor, dtype: torch.dtype, delay: bool = False) -> Tensor:
    """y (b, l, d) of x from the zero state, with tables that serve this call alone."""
    return _from_zero(tables(bank, blocked.block_length(x.shape[1]), dtype, delay), x)


def _from_zero(blocks: blocked.Blocks, x: Tensor) -> Tensor:
    return blocked.run(blocks, x, x.new_zeros(x.shape[0], x.shape[2], blocks.M_in.shape[-1]))[0]


def tables(bank: Bank, T: int, dtype: torch.dtype, delay: bool = False) -> blocked.Blocks:
    make: Any = diagonal_blocks if isinstance(bank, DiagonalBank) else dense_blocks
    return make(bank, T, dtype, delay)


def step(layer: Layer, bank: Callable[[], DiagonalBank], x_t: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """h = lam h + gain u, y = Re(weight h) + D u for x_t (b, d) and h (b, d, n)."""
    lam, row, D, gain = layer.cached("step", lambda: _step_table(bank(), layer.dtype))
    if gain is None and unwatched(x_t, h, lam, row):
        return bank_step(lam, row, D)(x_t, h)
    drive = x_t[..., None] if gain is None else gain * x_t[..., None]
    h = lam * h + drive
    y = (reals(h) * row).sum(-1)
    return (y if D is None else torch.addcmul(y, D, x_t)), h


def stepper(layer: Layer, bank: Callable[[], DiagonalBank]) -> Step | None:
    """`step` for plain values, its tables prepared; None for a bank with gains."""
    lam, row, D, gain = layer.cached("step", lambda: _step_table(bank(), layer.dtype))
    return bank_step(lam, row, D) if gain is None else None


def _step_table(bank: DiagonalBank, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    D, gain = (None if t is None else narrow(t, dtype) for t in (bank.D, bank.gain))
    return narrow(bank.lam, dtype), narrow(reals(bank.weight.conj()), dtype), D, gain


def pairs(z: Tensor) -> nn.Parameter:
    """A parameter from z: complex ones as real pairs (..., 2), in torch's default dtype and on its default device."""
    z = torch.view_as_real(z.resolve_conj()) if z.is_complex() else z
    return nn.Parameter(z.to(torch.get_default_device(), torch.get_default_dtype()).contiguous())


def as_complex(p: Tensor) -> Tensor:
    """Real pairs (..., 2) as a complex tensor (...)."""
    return torch.view_as_complex(p.contiguous())


def complex_normal(*shape: int) -> Tensor:
    """Complex normal numbers of unit variance."""
    return torch.randn(*shape, dtype=torch.complex128)


def in_basis(V: Tensor, d: int, factor: Tensor | None = None) -> nn.Parameter:
    """C_0 V as real pairs (d, k, 2) for normal C_0 (d, n) and a basis V (n, k), times `factor` (k,) where given."""
    C_0 = torch.randn(d, V.shape[0], dtype=torch.float64)
    C = C_0.to(V.dtype) @ V.to(C_0.device)
    return pairs(C if factor is None else C * factor.to(C.device))


def optim_overrides(names: tuple[str, ...], lr: float | None) -> dict[str, dict[str, Any]]:
    """The papers' rule for state parameters: an own learning rate and no weight decay."""
    own: dict[str, Any] = {"weight_decay": 0.0} if lr is None else {"lr": lr, "weight_decay": 0.0}
    return dict.fromkeys(names, own)


def check_one_direction(layer: Layer) -> None:
    if layer.bidirectional:
        raise ValueError(
            f"{type(layer).__name__}.system: a bidirectional layer is not one causal system; "
            "build it with bidirectional=False to get its system."
        )
