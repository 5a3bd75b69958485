"""p complex recurrences between two products over (b, l, d) on a GPU: the pass of S5 and LRU."""

from resolvent.ops.mimo_scan.operation import mimo_scan, serves

__all__ = ["mimo_scan", "serves"]
