"""A bank of diagonal or dense systems over (b, l, d) on a GPU: from a layer's parameters and input to its output."""

from resolvent.ops.bank_scan.dense import dense_bank_scan, serves_dense, steps_of
from resolvent.ops.bank_scan.operation import bank_scan, serves

__all__ = ["bank_scan", "dense_bank_scan", "serves", "serves_dense", "steps_of"]
