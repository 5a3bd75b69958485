"""Blocks around layers, under the layers' own contract: a block maps (b, l, d) to (b, l, d) and streams."""

from importlib import import_module
from typing import Any

from resolvent.blocks.ads import AdS
from resolvent.blocks.block import Block, merged_groups
from resolvent.blocks.certified.gate import Gate
from resolvent.blocks.certified.normalised import NormalisedLRU
from resolvent.blocks.certified.residual import LipschitzResidual
from resolvent.blocks.certified.sandwich import Sandwich, SandwichMLP
from resolvent.blocks.certified.spectral import Spectral
from resolvent.blocks.certified.state_pool import StatePool
from resolvent.blocks.gru import GRU
from resolvent.blocks.h3 import H3
from resolvent.blocks.hawk import Hawk
from resolvent.blocks.levels import LevelReadout, Levels
from resolvent.blocks.mamba import Mamba
from resolvent.blocks.mega import GatedAttention
from resolvent.blocks.mixer import MLP, GatedMLP, Mixer
from resolvent.blocks.norm import BatchNorm, LayerNorm, RMSNorm, ScaleNorm, make_norm
from resolvent.blocks.pointwise import Pointwise
from resolvent.blocks.projection import Projection
from resolvent.blocks.residual import Residual
from resolvent.blocks.stack import Stack

__all__ = [
    "GRU", "H3", "MLP", "AdS", "BatchNorm", "Block", "Gate", "GatedAttention", "GatedMLP", "Hawk", "LayerNorm",
    "LevelReadout", "Levels", "LipschitzResidual", "Mamba", "Mixer", "NormalisedLRU", "Pointwise", "Projection",
    "RMSNorm", "Residual", "Sandwich", "SandwichMLP", "ScaleNorm", "Spectral", "Stack", "StatePool", "make_norm",
    "merged_groups", "parts_of",
]  # fmt: skip


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    """Lazy: `parts_of` reads blocks, and is imported above them."""
    if name == "parts_of":
        return import_module("resolvent.lowering.parts").parts_of
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
