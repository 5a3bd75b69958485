"""What the tests of the linear scan share: the backends to run, and well-scaled multipliers."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch
from torch import Tensor

without_numba = pytest.mark.skipif(find_spec("numba") is None, reason="the numba backend needs the `cpu` extra")
every_backend = pytest.mark.parametrize("backend", [pytest.param("numba", marks=without_numba), "torch", "reference"])


def multiplier(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Random a with 0.3 <= |a| <= 1, of any sign or phase."""
    size = 0.3 + 0.7 * torch.rand(shape, dtype=torch.float64)
    phase = torch.polar(size, 6.3 * torch.rand(shape, dtype=torch.float64))
    return (phase if dtype.is_complex else size * phase.real.sign()).to(dtype)
