"""Triton kernels on the CPU, one numpy operation after another (`conftest` says so to Triton).

On a machine with a GPU the kernels are compiled, for the whole process, and `tests/gpu` runs them.

What is amiss in its versions is repaired here. With newer numpy a scalar, which the interpreter keeps as an array of
one element, no longer turns into the bound of a loop by itself. From 3.7 on a constant times a tensor is a constant
that no operation takes; in 3.9 a condition on scalars, spread out, is whole numbers, which are no mask.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch

if torch.cuda.is_available():
    pytest.skip("here the kernels run compiled, in tests/gpu", allow_module_level=True)
interpreter = pytest.importorskip("triton.runtime.interpreter", reason="needs triton, which no extra of ours brings")
semantic = pytest.importorskip("triton.language.semantic").TritonSemantic
_patch = interpreter._patch_lang_tensor


def _with_index(tensor: Any, scope: Any) -> None:
    _patch(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))


interpreter._patch_lang_tensor = _with_index
_to_tensor, _splat = semantic.to_tensor, interpreter.InterpreterBuilder.create_splat


def _open_constant(self: Any, x: Any, check_type: bool = True) -> Any:
    return _to_tensor(self, x.value if isinstance(x, interpreter.tl.constexpr) else x, check_type)


def _splat_condition(self: Any, kind: Any, x: Any) -> Any:
    spread = _splat(self, kind, x)
    spread.data = spread.data.astype(bool) if x.data.dtype == bool else spread.data
    return spread


semantic.to_tensor, interpreter.InterpreterBuilder.create_splat = _open_constant, _splat_condition


def refused(monkeypatch: pytest.MonkeyPatch, *places: tuple[ModuleType, str]) -> None:
    """Each of these functions fails as a kernel does that a device has no room for; nothing was refused before."""
    from triton.runtime.errors import OutOfResources

    from resolvent.runtime import launch

    def refuse(*_: Any) -> None:
        raise OutOfResources(300_000, 232_448, "shared memory")

    monkeypatch.setattr(launch, "_refused", set())
    for module, name in places:
        monkeypatch.setattr(module, name, refuse)


def cut_in_three(monkeypatch: pytest.MonkeyPatch) -> None:
    """The backward pass of a selective scan over 161 steps goes in three segments, two parts of each."""
    from resolvent.ops.selective_scan import triton as selective_triton

    monkeypatch.setattr(selective_triton, "FULL", 10**6)
    cut = selective_triton.backward_cut(1, 161, 2, 2)
    assert (cut.segments, cut.length, cut.parts) == (3, 2, 2)
