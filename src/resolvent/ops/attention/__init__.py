"""Attention over columns: channels first, scores never kept."""
