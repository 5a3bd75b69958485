"""Errors that the user can fix."""

from __future__ import annotations


class UsageError(ValueError):
    """The request cannot be carried out; the message says what can."""
