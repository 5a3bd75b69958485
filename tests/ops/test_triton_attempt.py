"""What becomes of a kernel that cannot be compiled."""

from __future__ import annotations

import logging

import pytest
import triton_interpreter  # noqa: F401  (first: it switches the interpreter on)

from resolvent.runtime.launch import attempt


def test_without_a_compiler_torch_takes_over_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    def fails() -> int:
        raise RuntimeError("Failed to find C compiler. Please specify via CC environment variable.")

    with caplog.at_level(logging.WARNING):
        assert [attempt("no compiler", fails, lambda: 3) for _ in range(3)] == [3, 3, 3]
    assert caplog.text.count("torch takes over") == 1


def test_other_errors_are_not_hidden() -> None:
    def fails() -> int:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    with pytest.raises(RuntimeError, match="illegal memory"):
        attempt("broken", fails, lambda: 3)
