"""The selective scan of Mamba, discretisation and read-out fused."""

from resolvent.ops.selective_scan.operation import selective_scan
from resolvent.ops.selective_scan.selection import Given, selected_scan

__all__ = ["Given", "selected_scan", "selective_scan"]
