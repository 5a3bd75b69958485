"""Results of system norms: one number per system of the bank, and a reason if it is infinite."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from resolvent.analysis.valued import Valued


@dataclass(frozen=True)
class HinfNorm(Valued):
    """The largest gain of each system over all frequencies: lower <= norm <= upper, all of the bank's shape.

    value      the gain found at `frequency` (radians per unit of time, or per step for a discrete system)
    reason     why a norm is infinite or a bracket wider than requested; empty otherwise

    Examples:
        >>> found = rv.analysis.hinf_norm(rv.LRU(2, 4).system())
        >>> bool(found.lower <= found.value) and bool(found.value <= found.upper)
        True
    """

    value: Tensor
    lower: Tensor
    upper: Tensor
    frequency: Tensor
    method: str
    reason: str = ""

    def __str__(self) -> str:
        if self.value.dim():
            return repr(self)
        bounds = f"between {float(self.lower):.6g} and {float(self.upper):.6g}"
        why = f"; {self.reason}" if self.reason else ""
        return f"H-infinity norm {float(self.value):.6g} at frequency {float(self.frequency):.6g}, {bounds}{why}"


@dataclass(frozen=True)
class H2Norm(Valued):
    """The H2 norm, the root of the energy of each system's impulse response: the bank's shape.

    Examples:
        >>> one = torch.ones(1, 1)
        >>> float(rv.analysis.h2_norm(rv.System(0 * one, one, one, 0 * one, dt=1.0)).value)
        1.0
    """

    value: Tensor
    reason: str = ""


def fill_bank(values: Sequence[float], bank: torch.Size) -> Tensor:
    return torch.tensor(values, dtype=torch.float64).reshape(bank)


def join_reasons(reasons: Sequence[str], bank: torch.Size) -> str:
    """One text for a bank: each distinct reason with its systems."""
    if not bank:
        return reasons[0]
    groups: dict[str, list[int]] = {}
    for i, reason in enumerate(reasons):
        if reason:
            groups.setdefault(reason, []).append(i)
    return "; ".join(f"{_systems(which)}: {reason}" for reason, which in groups.items())


def _systems(which: list[int]) -> str:
    shown = ", ".join(map(str, which[:8])) + (", ..." if len(which) > 8 else "")
    return f"system {shown}" if len(which) == 1 else f"systems {shown} ({len(which)} in all)"
