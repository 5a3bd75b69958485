"""Attention over columns: channels first, scores never stored."""

from resolvent.ops.attention.column_attention import bias_line
from resolvent.ops.attention.gated_block import Weights, gated_block

__all__ = ["Weights", "bias_line", "gated_block"]
