"""h_t = a_t h_{t-1} + b_t: real or complex, any leading axes, packed documents."""

from resolvent.ops.linear_scan.constant import constant_scan
from resolvent.ops.linear_scan.operation import linear_scan
from resolvent.ops.linear_scan.packed import documents_of, packed_starts
from resolvent.ops.linear_scan.pairs import pair_scan

__all__ = ["constant_scan", "documents_of", "linear_scan", "packed_starts", "pair_scan"]
