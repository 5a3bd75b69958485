"""Which GPUs run the kernels with the largest tiles, and what becomes of a kernel that cannot be compiled."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
import triton_interpreter  # noqa: F401  (first: it switches the interpreter on)

from resolvent.scan import linear_triton
from resolvent.scan.chip import lacking


@pytest.mark.parametrize(
    ("major", "minor", "held", "word"),
    [
        (9, 0, 227, None),  # H100, H200
        (10, 0, 227, None),  # B200
        (8, 0, 163, "compute capability 8.0"),
        (12, 0, 99, "99 KiB on chip"),
    ],
)
def test_devices(major: int, minor: int, held: int, word: str | None) -> None:
    told = lacking(SimpleNamespace(major=major, minor=minor, shared_memory_per_block_optin=held << 10), None)
    assert told is None if word is None else word in str(told)


def test_other_makers_and_older_versions_of_torch() -> None:
    assert "NVIDIA" in str(lacking(SimpleNamespace(major=9, minor=4), "6.2"))
    assert lacking(SimpleNamespace(major=9, minor=0), None) is None
    assert "0 KiB" in str(lacking(SimpleNamespace(major=12, minor=0), None))


def test_without_a_compiler_torch_takes_over_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    def fails() -> int:
        raise RuntimeError("Failed to find C compiler. Please specify via CC environment variable.")

    with caplog.at_level(logging.WARNING):
        assert [linear_triton.tried("no compiler", fails, lambda: 3) for _ in range(3)] == [3, 3, 3]
    assert caplog.text.count("torch takes over") == 1


def test_other_errors_are_not_hidden() -> None:
    def fails() -> int:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    with pytest.raises(RuntimeError, match="illegal memory"):
        linear_triton.tried("broken", fails, lambda: 3)
