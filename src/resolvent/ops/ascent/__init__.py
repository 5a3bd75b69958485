"""Compiled steps of attacks: what a step does to x once gradients or queries are known."""

TINY = 1e-12  # keeps the ratio of DLR finite where the largest logits tie
