"""Attention under the layer contract, and how it reaches back: `attend` on given queries, keys and values."""

from resolvent.layers.attention.layer import Attention

__all__ = ["Attention"]
