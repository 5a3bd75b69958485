"""What the user can mend."""

from __future__ import annotations


class UsageError(ValueError):
    """What the user asked for cannot be done; the message says what can."""
