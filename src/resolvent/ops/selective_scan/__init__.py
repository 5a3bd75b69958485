"""The selective scan of Mamba, discretisation and read-out fused."""

from resolvent.ops.selective_scan.operation import selective_scan

__all__ = ["selective_scan"]
