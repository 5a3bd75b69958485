"""The scan of S5 and LRU between its input and output maps, fused."""

from resolvent.ops.projected_scan.operation import fork_scan, projected_scan

__all__ = ["fork_scan", "projected_scan"]
