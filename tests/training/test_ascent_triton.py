"""The kernel that takes a step of an attack, on the CPU in the interpreter."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "ops"))
import triton_interpreter  # noqa: F401
from test_ascent import compare

from resolvent.ops.ascent import step_triton


@pytest.mark.parametrize(("b", "shape"), [(5, (7, 3)), (1, (1, 1)), (4, (1025, 2))])
def test_the_kernel_takes_the_same_step(b: int, shape: tuple[int, ...]) -> None:
    compare(step_triton._step, b, shape)
