"""Scans: h_t = a_t h_{t-1} + b_t, and the fused selective scan of Mamba, with the fastest backend that works here."""

from resolvent.scan.dispatch import use
from resolvent.scan.linear import linear_scan
from resolvent.scan.packed import packed_starts
from resolvent.scan.selective import selective_scan

__all__ = ["linear_scan", "packed_starts", "selective_scan", "use"]
