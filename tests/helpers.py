"""What tests share: the tolerance table, one comparison, a model that is not fresh.

The numbers live in `resolvent.conformance.tolerance` (float64 1e-10; float32 1e-5 for values and 1e-4 for gradients;
half types 2e-2), relative to the scale of the expected values. A test that needs another number passes `tolerance=`
and writes the reason beside it.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch

from resolvent.conformance.tolerance import GRADIENTS, VALUES, distance, leaves
from resolvent.lowering.describe import describe
from resolvent.models import ChannelsConfig, ClassifierConfig, ModelConfig, ResidualConfig, build_model
from resolvent.models.layer_config import LayerConfig
from resolvent.models.model import Model

__all__ = ["GRADIENTS", "VALUES", "assert_close", "distance", "filters", "random_cuts", "small_classifier", "stir",
           "stirred", "through_modules"]  # fmt: skip


def assert_close(
    got: Any, want: Any, *, dtype: torch.dtype | None = None, gradient: bool = False, tolerance: float | None = None
) -> None:
    """Compare tensors or nests of tensors; `dtype` is the coarsest one involved (that of `got` unless told)."""
    if tolerance is None:
        table = GRADIENTS if gradient else VALUES
        tolerance = table[dtype or _real(leaves(got)[0].dtype)]
    error = distance(got, want)
    assert error <= tolerance, f"differs by {error:.2e} of its scale, allowed {tolerance:.0e}"


def random_cuts(length: int, pieces: int, generator: torch.Generator) -> list[int]:
    """`pieces` chunk sizes that sum to `length`; some may be empty."""
    inner = torch.randint(0, length + 1, (pieces - 1,), generator=generator).sort().values.tolist()
    edges = [0, *inner, length]
    return [b - a for a, b in pairwise(edges)]


def _real(dtype: torch.dtype) -> torch.dtype:
    return {torch.complex128: torch.float64, torch.complex64: torch.float32}.get(dtype, dtype)


def small_classifier(layer: LayerConfig, channels: int, classes: int, d_model: int = 4) -> ModelConfig:
    """The settings of one residual block around a layer."""
    return ModelConfig(ChannelsConfig(channels), ResidualConfig(layer), ClassifierConfig(classes), d_model, layers=1)


def stir(model: torch.nn.Module, by: float) -> None:
    """Move every parameter and running mean from the symmetric values that they have when fresh."""
    means = [b for name, b in model.named_buffers() if name.endswith("running_mean")]
    with torch.no_grad():
        for t in [*model.parameters(), *means]:
            t.add_(by * torch.randn_like(t))


def stirred(settings: ModelConfig, by: float, dtype: torch.dtype = torch.float64) -> Model:
    """A model away from the symmetric values that it has when fresh."""
    torch.manual_seed(0)
    model = build_model(settings).to(dtype)
    stir(model, by)
    assert isinstance(model, Model)
    return model


def through_modules(model: Model, x: torch.Tensor) -> torch.Tensor:
    """The pass by modules, one after another: no kernel of a lowered form."""
    return model.from_embedding(model.embed(x))


def filters(*layers: torch.nn.Module) -> list[Any]:
    """The nodes of sequence layers."""
    return [node for layer in layers for node in describe(layer).chain]
