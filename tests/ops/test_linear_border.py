"""What linear_scan refuses, and with which words."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from resolvent.scan import linear_scan

B = torch.zeros(2, 5, 3)


@pytest.mark.parametrize(
    ("a", "b", "h0", "error", "words"),
    [
        (torch.ones(4), B, None, ValueError, r"broadcasts to the shape of b \(2, 5, 3\), got \(4,\)"),
        (torch.ones(2, 3), B, None, ValueError, r"got \(2, 3\).*\(l, n\)"),
        (torch.ones(1, 2, 5, 3), B, None, ValueError, r"got \(1, 2, 5, 3\).*enlarge b"),
        (torch.ones(3), torch.zeros(3), None, ValueError, r"expected b of shape \(..., l, n\), got \(3,\)"),
        (torch.ones(3), B, torch.zeros(5, 3), ValueError, r"h0 that broadcasts to \(2, 3\).*got \(5, 3\)"),
        (torch.ones(3), B, torch.zeros(2, 1, 3), ValueError, r"got \(2, 1, 3\).*final state"),
        (torch.ones(3), B.int(), None, TypeError, r"expected b in a floating-point.*got torch.int32.*\.float\(\)"),
        (torch.ones(3, dtype=torch.int64), B, None, TypeError, "expected a in a floating-point"),
        (torch.ones(3), B, torch.zeros(3, dtype=torch.bool), TypeError, "expected h0 in a floating-point"),
        (0.5, B, None, TypeError, "expected a to be a tensor, got float; use torch.as_tensor"),
        (torch.ones(3), [[1.0]], None, TypeError, "expected b to be a tensor, got list"),
        (torch.ones(3), B, 0, TypeError, "expected h0 to be a tensor, got int"),
        (
            torch.ones(3, device="meta"),
            B,
            None,
            ValueError,
            r"expected a on cpu where b is, got meta; use a.to\('cpu'\)",
        ),
        (torch.ones(3), B, torch.ones(3, device="meta"), ValueError, "expected h0 on cpu"),
    ],
)
def test_refusals(a: Any, b: Any, h0: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        linear_scan(a, b, h0)


def test_the_inputs_are_left_alone() -> None:
    a, b, h0 = torch.rand(2, 5, 3), torch.randn(2, 5, 3), torch.randn(2, 3)
    copies = a.clone(), b.clone(), h0.clone()
    h = linear_scan(a, b, h0)
    assert all(torch.equal(x, y) for x, y in zip((a, b, h0), copies, strict=True))
    assert h.data_ptr() != b.data_ptr()
