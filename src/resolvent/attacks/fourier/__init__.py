"""Tones at chosen frequencies added to the input or inside a model."""
