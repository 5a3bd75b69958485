"""A bank of diagonal systems over (b, l, d) on a GPU: from a layer's parameters and its input to its output."""

from resolvent.ops.bank_scan.operation import bank_scan, serves

__all__ = ["bank_scan", "serves"]
