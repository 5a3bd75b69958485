"""Everything a result depends on besides its settings: versions, device, number of threads."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

import resolvent

PACKAGES = ("numpy", "scipy", "numba", "safetensors", "triton")


def provenance(device: torch.device) -> dict[str, Any]:
    """Versions and hardware in words."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    return {
        "resolvent": resolvent.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        **{package: found for package in PACKAGES if (found := _version(package))},
        "device": f"{device.type}: {name}",
        "threads": torch.get_num_threads(),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
