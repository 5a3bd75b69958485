"""Files that are whole or absent: the lowest part, which knows neither tensors nor models."""

from resolvent.disk.whole import replace

__all__ = ["replace"]
