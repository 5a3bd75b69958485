"""Compiled steps of attacks: what a step does to x once gradients or queries are known."""

from resolvent.ops.ascent.reference import sign_step

__all__ = ["LEFT", "LEFT_2", "SIGNS", "TINY", "TOP", "TOP_2", "TURN", "sign_step"]

TINY = 1e-12  # keeps the ratio of DLR finite where the largest logits tie
# What the columns of a query's random numbers decide in Square; the signs of the channels follow, then their ranks.
TOP, LEFT, TOP_2, LEFT_2, TURN, SIGNS = range(6)
