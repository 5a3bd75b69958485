"""Weights of other projects: their names and shapes, and how each tensor maps to ours."""
