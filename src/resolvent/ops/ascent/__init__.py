"""Compiled steps of attacks: the update of x once gradients or queries are known."""

from resolvent.ops.ascent.reference import sign_step

__all__ = ["LEFT", "LEFT_2", "SIGNS", "TOP", "TOP_2", "TURN", "sign_step"]

# Columns of a query's random numbers in Square; then follow the signs of the channels, and their ranks.
TOP, LEFT, TOP_2, LEFT_2, TURN, SIGNS = range(6)
