"""Linear state-space maths on tensors: systems, HiPPO matrices, discretisation, kernels, causal convolution."""

from resolvent.ssm.discretise import diagonal_step, discretise, expm1_over
from resolvent.ssm.hippo import dplr, hippo, nplr
from resolvent.ssm.system import DPLR, Dense, Diagonal, System, conjugate_closed

__all__ = [
    "DPLR",
    "Dense",
    "Diagonal",
    "System",
    "conjugate_closed",
    "diagonal_step",
    "discretise",
    "dplr",
    "expm1_over",
    "hippo",
    "nplr",
]
