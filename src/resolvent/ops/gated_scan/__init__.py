"""The scan of RG-LRU with its gates, fused."""

from resolvent.ops.gated_scan.operation import gated_scan

__all__ = ["gated_scan"]
