"""The scan of RG-LRU with its gates, fused."""

from resolvent.ops.gated_scan.operation import gated_scan
from resolvent.ops.gated_scan.projection import project, project_in_one
from resolvent.ops.gated_scan.reference import gates

__all__ = ["gated_scan", "gates", "project", "project_in_one"]
