"""Attention under the layer contract, its reach, and `attend` on given queries, keys and values."""

from resolvent.layers.attention.layer import Attention

__all__ = ["Attention"]
