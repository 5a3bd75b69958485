"""Cells on many machines: each is a task of a Ray cluster."""
