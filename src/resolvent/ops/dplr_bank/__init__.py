"""A bank of S4's systems, diagonal minus low rank, from a layer's parameters to tables and outputs on a GPU."""

from resolvent.ops.dplr_bank.operation import dplr_scan, kernels_of, load, serves

__all__ = ["dplr_scan", "kernels_of", "load", "serves"]
