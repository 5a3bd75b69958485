"""Resolvent: state-space sequence models whose robustness is measured and proven.

    import resolvent as rv
    layer = rv.S4D(d_model=64)
    y, state = layer(x)                # x (batch, length, 64); state carries on to the next chunk

Names are loaded when they are first used, so the import itself costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_PARTS = (
    "analysis", "attacks", "blocks", "conformance", "data", "experiments", "init", "layers", "models", "report", "scan",
    "ssm", "training",
)  # fmt: skip
_NAMES = {
    "attacks": "PGD Threat autoattack evaluate",
    "blocks": "Mamba",
    "data": "from_file load_task",
    "deployment": "export",
    "experiments": "run",
    "layers": "Attention DSS EMA L2RU LRU RGLRU S4 S4D S5 S6 ShortConv frozen",
    "models": "ModelConfig build_model load_model save_model",
    "predictor": "Predictor ReservoirClassifier SequenceClassifier from_hub load push_to_hub",
    "report": "write_report",
    "scan": "gated_scan linear_scan packed_starts selective_scan",
    "ssm": "System",
    "training": "fit pgd_at trades",
}
_HOME = {name: part for part, names in _NAMES.items() for name in names.split()}

__all__ = [
    "DSS", "EMA", "L2RU", "LRU", "PGD", "RGLRU", "S4", "S4D", "S5", "S6", "Attention", "Mamba", "ModelConfig",
    "Predictor", "ReservoirClassifier", "SequenceClassifier", "ShortConv", "System", "Threat", "__version__",
    "analysis", "attacks",     "autoattack", "blocks", "build_model", "conformance", "data", "evaluate", "experiments",
    "export", "fit",     "from_file", "from_hub", "frozen", "gated_scan", "init", "layers", "linear_scan", "load",
    "load_model", "load_task",     "models", "packed_starts", "pgd_at", "push_to_hub", "report", "run", "save_model",
    "scan", "selective_scan", "ssm",     "trades", "training", "write_report",
]  # fmt: skip

if TYPE_CHECKING:
    from resolvent import (
        analysis,
        attacks,
        blocks,
        conformance,
        data,
        experiments,
        init,
        layers,
        models,
        report,
        scan,
        ssm,
        training,
    )
    from resolvent.attacks import PGD, Threat, autoattack, evaluate
    from resolvent.blocks import Mamba
    from resolvent.data import from_file, load_task
    from resolvent.deployment.write import export
    from resolvent.experiments import run
    from resolvent.layers import DSS, EMA, L2RU, LRU, RGLRU, S4, S4D, S5, S6, Attention, ShortConv, frozen
    from resolvent.models import ModelConfig, build_model, load_model, save_model
    from resolvent.predictor import Predictor, ReservoirClassifier, SequenceClassifier, from_hub, load, push_to_hub
    from resolvent.report import write_report
    from resolvent.scan import gated_scan, linear_scan, packed_starts, selective_scan
    from resolvent.ssm import System
    from resolvent.training import fit, pgd_at, trades


def __getattr__(name: str) -> Any:
    if name in _PARTS:
        return import_module(f"resolvent.{name}")
    if name in _HOME:
        return getattr(import_module(f"resolvent.{_HOME[name]}"), name)
    raise AttributeError(f"module 'resolvent' has no attribute {name!r}; public names: {', '.join(__all__)}")


def __dir__() -> list[str]:
    return sorted(__all__)
