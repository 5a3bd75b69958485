"""Devices named by the user."""

from __future__ import annotations

import torch

from resolvent.usage.error import UsageError


def require_device(name: str) -> torch.device:
    """The device of that name, checked to be usable."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()  # check that values can be read back
    except (RuntimeError, AssertionError) as wrong:  # torch without CUDA asserts
        raise UsageError(f"--device {name!r} cannot be used here: {str(wrong).splitlines()[0]}") from None
    return device
