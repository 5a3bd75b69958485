"""Resolvent: state-space sequence models that stay steady.

    import resolvent as rv
    layer = rv.S4D(d_model=64)
    y, state = layer(x)                # x (batch, length, 64); state carries on to the next chunk

Names are loaded when they are first used, so the import itself costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_PARTS = ("attacks", "blocks", "conformance", "init", "layers", "models", "scan", "ssm")
_HOME = {
    "Attention": "layers",
    "DSS": "layers",
    "EMA": "layers",
    "LRU": "layers",
    "ModelConfig": "models",
    "RGLRU": "layers",
    "S4": "layers",
    "S4D": "layers",
    "S5": "layers",
    "S6": "layers",
    "ShortConv": "layers",
    "System": "ssm",
    "Threat": "attacks",
    "autoattack": "attacks",
    "build_model": "models",
    "causal_conv": "ssm",
    "discretise": "ssm",
    "frozen": "layers",
    "hippo": "ssm",
    "kernel": "ssm",
    "linear_scan": "scan",
    "selective_scan": "scan",
}

__all__ = [*_PARTS, *_HOME, "__version__"]  # noqa: PLE0604

if TYPE_CHECKING:
    from resolvent import attacks, blocks, conformance, init, layers, models, scan, ssm
    from resolvent.attacks import Threat, autoattack
    from resolvent.layers import DSS, EMA, LRU, RGLRU, S4, S4D, S5, S6, Attention, ShortConv, frozen
    from resolvent.models import ModelConfig, build_model
    from resolvent.scan import linear_scan, selective_scan
    from resolvent.ssm import System, causal_conv, discretise, hippo, kernel


def __getattr__(name: str) -> Any:
    if name in _PARTS:
        return import_module(f"resolvent.{name}")
    if name in _HOME:
        return getattr(import_module(f"resolvent.{_HOME[name]}"), name)
    raise AttributeError(f"module 'resolvent' has no attribute {name!r}; public names: {', '.join(__all__)}")


def __dir__() -> list[str]:
    return sorted(__all__)
