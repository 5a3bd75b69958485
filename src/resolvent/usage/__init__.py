"""Handling user requests: classes by name, output paths, and errors with advice."""

from resolvent.usage.error import UsageError

__all__ = ["UsageError"]
