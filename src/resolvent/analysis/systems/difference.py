"""The difference of two systems on the same input: the error of an approximation."""

from __future__ import annotations

import torch
from torch import Tensor

from resolvent.analysis import checks
from resolvent.ssm import Dense, Diagonal, System
from resolvent.ssm.system import broadcast


def difference(first: System, second: System) -> System:
    """The system with the transfer function G_1 - G_2 and the states of both; diagonal if both are, else dense.

    `hinf_norm(difference(a, b))` is then the distance of two systems at their worst frequency. Both must be
    continuous, or discrete in the same form (with or without delay); steps dt are assumed to be equal.

    Examples:
        >>> first, second = rv.LRU(1, 4).system(), rv.LRU(1, 4).system()
        >>> rv.analysis.poles(rv.analysis.difference(first, second)).shape[-1]
        16
    """
    for system in (first, second):
        checks.check_system("difference", system)
    if (first.dt is None) != (second.dt is None) or first.delay != second.delay:
        raise ValueError(
            "difference: expected two continuous systems, or two discrete ones of the same form, got "
            f"{_kind(first)} and {_kind(second)}; use discretise(...) or .delayed()."
        )
    if (first.inputs, first.outputs) != (second.inputs, second.outputs):
        raise ValueError(
            f"difference: the systems map {first.inputs} inputs to {first.outputs} outputs and {second.inputs} to "
            f"{second.outputs}; they must agree."
        )
    bank = broadcast(first.bank, second.bank)
    A: Dense | Diagonal
    if isinstance(first.A, Diagonal) and isinstance(second.A, Diagonal):
        A = Diagonal(_join(first.A.lam[..., None], second.A.lam[..., None], bank, -2)[..., 0])
    else:
        A = Dense(_blocks(first.A.dense(), second.A.dense(), bank))
    B = _join(first.B, second.B, bank, -2)
    return System(A, B, _join(first.C, -second.C, bank, -1), first.D - second.D, first.dt, first.delay)


def _join(a: Tensor, b: Tensor, bank: torch.Size, axis: int) -> Tensor:
    dtype = torch.promote_types(a.dtype, b.dtype)
    return torch.cat([t.to(dtype).expand(*bank, *t.shape[-2:]) for t in (a, b)], axis)


def _blocks(a: Tensor, b: Tensor, bank: torch.Size) -> Tensor:
    """[[a, 0], [0, b]]."""
    n, k = a.shape[-1], b.shape[-1]
    top = torch.nn.functional.pad(a, (0, k))
    return _join(top, torch.nn.functional.pad(b, (n, 0)), bank, -2)


def _kind(system: System) -> str:
    if system.dt is None:
        return "a continuous one"
    return "a discrete one with delay" if system.delay else "a discrete one without delay"
