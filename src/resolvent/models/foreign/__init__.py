"""Weights of other projects: their names and shapes, and what each of their tensors is here."""
