"""Scaffolds around layers, under the layers' own contract: a block takes and returns (b, l, d) and streams."""

from resolvent.blocks.ads import AdS
from resolvent.blocks.block import Block, merged_groups
from resolvent.blocks.gate import Gate
from resolvent.blocks.h3 import H3
from resolvent.blocks.hawk import Hawk
from resolvent.blocks.lipschitz import LipschitzResidual
from resolvent.blocks.mamba import Mamba
from resolvent.blocks.mega import GatedAttention
from resolvent.blocks.mixer import MLP, GatedMLP, Mixer
from resolvent.blocks.norm import BatchNorm, LayerNorm, RMSNorm, ScaleNorm, make_norm
from resolvent.blocks.normalised import NormalisedLRU
from resolvent.blocks.parts import parts_of
from resolvent.blocks.pointwise import Pointwise
from resolvent.blocks.projection import Projection
from resolvent.blocks.residual import Residual
from resolvent.blocks.sandwich import Sandwich, SandwichMLP
from resolvent.blocks.spectral import Spectral
from resolvent.blocks.stack import Stack
from resolvent.blocks.state_pool import StatePool

__all__ = [
    "H3",
    "MLP",
    "AdS",
    "BatchNorm",
    "Block",
    "Gate",
    "GatedAttention",
    "GatedMLP",
    "Hawk",
    "LayerNorm",
    "LipschitzResidual",
    "Mamba",
    "Mixer",
    "NormalisedLRU",
    "Pointwise",
    "Projection",
    "RMSNorm",
    "Residual",
    "Sandwich",
    "SandwichMLP",
    "ScaleNorm",
    "Spectral",
    "Stack",
    "StatePool",
    "make_norm",
    "merged_groups",
    "parts_of",
]
