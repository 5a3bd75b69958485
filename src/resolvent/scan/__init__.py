"""Scans: h_t = a_t h_{t-1} + b_t, and those of Mamba and RG-LRU fused, with the fastest backend that works here."""

from resolvent.scan.dispatch import use
from resolvent.scan.gated import gated_scan
from resolvent.scan.linear import linear_scan
from resolvent.scan.packed import packed_starts
from resolvent.scan.selective import selective_scan

__all__ = ["gated_scan", "linear_scan", "packed_starts", "selective_scan", "use"]
