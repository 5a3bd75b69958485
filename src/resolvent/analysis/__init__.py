"""What models do, measured: it is handed modules, tensors or systems, never a class of this library's own layers."""

from resolvent.analysis.attribution import attribution
from resolvent.analysis.change import Attribution, Change, Changes, Component
from resolvent.analysis.feature_distance import feature_kl, feature_mse

__all__ = ["Attribution", "Change", "Changes", "Component", "attribution", "feature_kl", "feature_mse"]
