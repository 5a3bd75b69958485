"""What a user asked for: classes by name, places to write, and errors that say what can be done."""

from resolvent.usage.error import UsageError

__all__ = ["UsageError"]
