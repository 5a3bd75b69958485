"""The scan of S5 and LRU between its input and output maps, fused."""

from resolvent.ops.projected_scan.operation import projected_scan

__all__ = ["projected_scan"]
