"""An LRU with a prescribed gain: its output times gamma / bound, where `bound` is never below its H-infinity norm.

With h = (I - z^-1 Lambda)^-1 B u and |(1 - z^-1 lam)^-1| <= 1 / (1 - |lam|) = r on the unit circle,

    |G| <= |D| + |C R^1/2| |R^1/2 B|,    R = diag(r)

in closed form and smooth in every parameter. It assumes that all modes peak at one frequency, so the layer's true
gain is lower: a certificate uses the exact H-infinity norm of the scaled system.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch
from torch import Tensor, nn

from resolvent.blocks.block import Block, State
from resolvent.layers import mimo
from resolvent.layers.l2ru.forms import LOG_LIMIT, prescribed_gain
from resolvent.layers.lru import LRU
from resolvent.ops.pairs import stack_parts
from resolvent.runtime.transforms import wide
from resolvent.ssm.contraction import norm_bound, rounding_margin, spectral_norm
from resolvent.ssm.system import System

LEAST = 1e-20  # smallest bound, for a layer that is nearly zero: gamma / LEAST is finite in float32


class NormalisedLRU(Block):
    """y = gamma LRU(u) / bound: the gain is at most gamma, fixed or trained, for any parameter values.

    Examples:
        >>> rv.blocks.NormalisedLRU(rv.LRU(4, 8), gamma=1.0)(torch.randn(2, 10, 4))[0].shape
        torch.Size([2, 10, 4])
    """

    def __init__(self, layer: LRU, gamma: float = 1.0, *, trainable_gamma: bool = False) -> None:
        super().__init__(layer.d_model)
        if layer.bidirectional:
            raise ValueError("NormalisedLRU: the bound is one of a causal LRU; build it with bidirectional=False.")
        if isinstance(gamma, bool) or not isinstance(gamma, int | float) or not 0 < gamma < math.exp(LOG_LIMIT):
            raise ValueError(
                f"NormalisedLRU: gamma, the gain, must be a positive number below {math.exp(LOG_LIMIT):.0e}, "
                f"got {gamma!r}."
            )
        self.layer = layer
        self.fixed_gamma = None if trainable_gamma else float(gamma)
        self.log_gamma = nn.Parameter(torch.tensor(math.log(gamma))) if trainable_gamma else None

    @property
    def gamma(self) -> Tensor:
        """The prescribed gain, a positive number."""
        return prescribed_gain(self.fixed_gamma, self.log_gamma, self.anchor)

    def scale(self) -> Tensor:
        """gamma / bound in the layer's dtype, rounded down."""
        found: Tensor = self.cached("scale", self._scale)
        return found

    def gain(self) -> float:
        """scale times the bound with exact spectral norms, from the weights in use: at most gamma."""
        tables = mimo.Tables(*(t.detach() for t in self.layer.tables()))
        into, out = _weight_tables(tables)
        bound = float(tables.D.double().abs().max()) + spectral_norm(out) * spectral_norm(into)
        return float(self.scale().detach().double()) * bound

    def system(self) -> System:
        """The scaled layer as one discrete system."""
        plain, scale = self.layer.system(), self.scale()
        return dataclasses.replace(plain, C=plain.C * scale, D=plain.D * scale)

    def optim_groups(self) -> list[dict[str, Any]]:
        """The LRU's own groups; gamma without weight decay."""
        own = [] if self.log_gamma is None else [{"params": [self.log_gamma], "weight_decay": 0.0}]
        return [*self.layer.optim_groups(), *own]

    def _scale(self) -> Tensor:
        keep = rounding_margin(self.d_model + 2 * self.layer.d_state)
        return (keep * self.gamma / lru_bound(self.layer.tables())).to(self.dtype)

    def _sequence(self, x: Tensor, state: State, lengths: Tensor | None) -> tuple[Tensor, State]:
        h, end = self.layer(x, state.get("layer"), lengths)
        return h * self.scale(), {"layer": end}

    def _step(self, x_t: Tensor, state: State) -> tuple[Tensor, State]:
        h, end = self.layer._step(x_t, state["layer"])
        return h * self.scale(), {"layer": end}


def lru_bound(tables: mimo.Tables) -> Tensor:
    """A smooth upper bound of the H-infinity norm of an LRU, in float64; positive also for a layer of zeros."""
    into, out = _weight_tables(tables)
    return (norm_bound(torch.diag(wide(tables.D))) + norm_bound(out) * norm_bound(into)).clamp_min(LEAST)


def _weight_tables(tables: mimo.Tables) -> tuple[Tensor, Tensor]:
    """R^1/2 B (2p, d) and C R^1/2 (d, 2p), real and imaginary parts side by side."""
    modulus = torch.linalg.vector_norm(wide(stack_parts(tables.lam_bar)), dim=-1)  # (p,), of pairs if traced
    root = (1 - modulus).rsqrt().repeat_interleave(2)  # (2p,)
    return root[:, None] * wide(tables.W_in), wide(tables.W_out) * root
