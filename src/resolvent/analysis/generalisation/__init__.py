"""Bounds on the generalisation error of selective models."""
