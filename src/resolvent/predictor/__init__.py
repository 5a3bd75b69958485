"""Trained models ready for use: weights, settings and preprocessing together."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from resolvent.predictor.card import card_of
from resolvent.predictor.hub import from_hub, push_to_hub
from resolvent.predictor.predictor import Predictor, load
from resolvent.predictor.reduction import ModelReduction, reduce_model

if TYPE_CHECKING:
    from resolvent.predictor.classifier import SequenceClassifier
    from resolvent.predictor.reservoir import ReservoirClassifier

__all__ = [
    "ModelReduction", "Predictor", "ReservoirClassifier", "SequenceClassifier", "card_of", "from_hub", "load",
    "push_to_hub", "reduce_model",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Lazy: only the classifiers need scikit-learn."""
    home = {"SequenceClassifier": "classifier", "ReservoirClassifier": "reservoir"}.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"resolvent.predictor.{home}"), name)
    except ModuleNotFoundError as missing:
        if missing.name != "sklearn":
            raise
        raise ImportError(f"{name} needs scikit-learn: pip install 'resolvent[sklearn]'.") from missing
