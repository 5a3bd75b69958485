"""Which GPUs run the kernels of blocks and Toeplitz products."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from resolvent.runtime.chip import lacking


@pytest.mark.parametrize(
    ("major", "minor", "held", "word"),
    [
        (9, 0, 227, None),  # H100, H200
        (10, 0, 227, None),  # B200
        (8, 0, 163, None),  # A100
        (8, 6, 99, None),
        (7, 5, 64, "compute capability 7.5"),
        (12, 0, 99, None),
        (8, 0, 48, "48 KiB on chip"),
    ],
)
def test_devices(major: int, minor: int, held: int, word: str | None) -> None:
    missing = lacking(SimpleNamespace(major=major, minor=minor, shared_memory_per_block_optin=held << 10), None)
    assert missing is None if word is None else word in str(missing)


def test_other_makers_and_older_versions_of_torch() -> None:
    assert "NVIDIA" in str(lacking(SimpleNamespace(major=9, minor=4), "6.2"))
    assert lacking(SimpleNamespace(major=9, minor=0), None) is None
    assert lacking(SimpleNamespace(major=12, minor=0), None) is None  # known without being told
    assert "0 KiB" in str(lacking(SimpleNamespace(major=13, minor=7), None))
