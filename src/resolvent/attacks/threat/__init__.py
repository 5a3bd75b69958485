"""Threat models: a norm, a size, a valid range, a mask."""
