"""h_t = a_t h_{t-1} + b_t: real or complex, any leading axes, packed documents."""

from resolvent.ops.linear_scan.operation import linear_scan
from resolvent.ops.linear_scan.packed import packed_starts

__all__ = ["linear_scan", "packed_starts"]
