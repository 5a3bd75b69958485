"""The layer under test and its inputs; all random numbers come from one seed."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

JITTER = 0.05  # moves parameters off special initial values (a zero bias hides a missing bias)


@dataclass(frozen=True)
class Traits:
    """Optional properties of a layer, given by the table of cases; the defaults suit an unknown layer.

    streams       accepts chunks, steps and a state
    stable        guarantees |lambda| < 1 for every parameter value
    grows         its state grows with the sequence (a cache), so endless streaming is not possible
    additive      when bidirectional: y = (causal part) + (part that looks ahead)
    unidirectional  builds the same layer without its second direction
    open_lengths  its traced graph does not depend on the length: one graph for many, dynamic exports
    refuses       settings that the constructor must refuse

    Examples:
        >>> rv.conformance.Traits(stable=True).streams
        True
    """

    streams: bool = True
    stable: bool = False
    grows: bool = False
    additive: bool = True
    unidirectional: Callable[[], nn.Module] | None = None
    open_lengths: bool = False
    refuses: tuple[Callable[[], Any], ...] = ()


@dataclass(frozen=True)
class Subject:
    """A way to build a layer, with the sizes, dtype and device of the check."""

    make: Callable[[], nn.Module]
    d_model: int
    dtype: torch.dtype = torch.float64
    seed: int = 0
    full: bool = False
    length: int = 131  # longer than one block of every fast path, and no power of two
    batch: int = 3
    traits: Traits = field(default_factory=Traits)
    device: str = "cpu"

    @property
    def working(self) -> torch.dtype:
        """The dtype of parameters: half inputs go to a float32 layer."""
        return torch.float32 if self.dtype in (torch.bfloat16, torch.float16) else self.dtype

    @property
    def short(self) -> int:
        """A length for the costly properties."""
        return min(self.length, 19)

    def build(self, dtype: torch.dtype | None = None, seed: int = 0) -> nn.Module:
        """The layer with slightly perturbed parameters, in evaluation mode: the same numbers for the same seed."""
        torch.manual_seed(self.seed + seed)
        layer = self.make().eval()
        generator = self.generator(7 + seed)
        with torch.no_grad():
            for p in layer.parameters():
                if p.is_floating_point():
                    p.add_(JITTER * torch.randn(p.shape, generator=generator).to(p.dtype))
        return layer.to(self.device, dtype or self.working)

    def generator(self, salt: int = 0) -> torch.Generator:
        return torch.Generator().manual_seed(1000 * self.seed + salt)

    def input(self, length: int | None = None, batch: int | None = None, salt: int = 1) -> Tensor:
        """Normal numbers (b, l, d) in the dtype under test."""
        shape = (batch or self.batch, self.length if length is None else length, self.d_model)
        return torch.randn(shape, generator=self.generator(salt), dtype=torch.float64).to(self.device, self.dtype)

    def like(self, t: Tensor, salt: int = 2) -> Tensor:
        """Pseudo-random numbers of t's shape and dtype by a formula, since vmap forbids random draws inside."""
        k = torch.arange(t.numel(), dtype=torch.float64, device=t.device).reshape(t.shape)
        real = 1.4 * torch.cos(0.37 * k * (k + salt) + salt + self.seed)
        imaginary = 1.4 * torch.sin(0.53 * k * (k + salt))
        return torch.complex(real, imaginary).to(t.dtype) if t.is_complex() else real.to(t.dtype)


def widen(layer: nn.Module) -> nn.Module:
    """The same numbers in float64."""
    return copy.deepcopy(layer).double()
