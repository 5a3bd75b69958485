"""Scans: h_t = a_t h_{t-1} + b_t, and those of Mamba and RG-LRU fused, with the fastest backend that works here."""

from resolvent.ops.gated_scan import gated_scan
from resolvent.ops.linear_scan import linear_scan, packed_starts
from resolvent.ops.selective_scan import selective_scan
from resolvent.runtime.dispatch import use

__all__ = ["gated_scan", "linear_scan", "packed_starts", "selective_scan", "use"]


def __dir__() -> list[str]:
    return sorted(__all__)
