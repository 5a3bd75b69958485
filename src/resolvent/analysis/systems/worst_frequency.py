"""The frequency that a system amplifies most, from its transfer function, without a search by attacks.

    worst_frequency({name: layer.system() for name, layer in ...})      largest gain of all systems
    worst_frequency(system, reference)                                  largest deviation from a reference

A diagonal model initialised from LegS has the gain of LegS at w = 0 and, near N^2 / pi, a spike that LegS lacks:
against the reference the spike is found for any read-out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from resolvent.analysis import checks
from resolvent.analysis.systems.difference import difference
from resolvent.analysis.systems.hinf import hinf_norm
from resolvent.ssm import System


@dataclass(frozen=True)
class WorstFrequency:
    """The largest gain and its frequency.

    frequency   radians per unit of time; for a discrete system its radians per step divided by its dt
    per_step    radians per step; None for a continuous system
    gain        |G|, or |G - G_reference|; infinite for an unstable system
    name        of the system among those given
    channel     its index in the bank

    Examples:
        >>> found = rv.analysis.worst_frequency(rv.LRU(2, 4).system())
        >>> found.gain > 0
        True
    """

    frequency: float
    per_step: float | None
    gain: float
    name: str
    channel: int


def worst_frequency(
    systems: System | Mapping[str, System], reference: System | None = None, rtol: float = 1e-6
) -> WorstFrequency:
    """The frequency of the largest gain over all systems and their banks, by `hinf_norm`.

    Examples:
        >>> found = rv.analysis.worst_frequency({"first": rv.S4D(1, 8).system()})
        >>> found.name
        'first'
    """
    given = {"": systems} if isinstance(systems, System) else dict(systems)
    if not given:
        raise ValueError("worst_frequency: there is no system; a model without time-invariant layers has none.")
    found = [_of(name, system, reference, rtol) for name, system in given.items()]
    return max(found, key=lambda each: each.gain)


def _of(name: str, system: System, reference: System | None, rtol: float) -> WorstFrequency:
    checks.check_system("worst_frequency", system)
    norm = hinf_norm(system if reference is None else difference(system, reference), rtol)
    gains = norm.value.reshape(-1)
    channel = int(gains.nan_to_num(math.inf).argmax())
    angle = abs(float(norm.frequency.reshape(-1)[channel]))
    if system.dt is None:
        return WorstFrequency(angle, None, float(gains[channel]), name, channel)
    return WorstFrequency(angle / _step(system, channel), angle, float(gains[channel]), name, channel)


def _step(system: System, channel: int) -> float:
    """dt of one system of the bank."""
    if not isinstance(system.dt, Tensor):
        return float(system.dt or 1.0)
    return float(torch.broadcast_to(system.dt.detach(), system.bank).reshape(-1)[channel])
