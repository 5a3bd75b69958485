"""x_k = A x_{k-1} + v_k of a full matrix A."""

from resolvent.ops.dense_scan.krylov import krylov
from resolvent.ops.dense_scan.linear import linear
from resolvent.ops.dense_scan.operation import dense_scan

__all__ = ["dense_scan", "krylov", "linear"]
