"""Linear state-space maths on tensors: systems, HiPPO matrices, discretisation, kernels, causal convolution."""

from resolvent.ops.filter import causal_conv, direct_conv, fft_conv, toeplitz_conv
from resolvent.ssm.bounded_real import BoundedReal, bounded_real
from resolvent.ssm.discretise import diagonal_step, discretise, expm1_over
from resolvent.ssm.foreign import as_system
from resolvent.ssm.hippo import dplr, hippo, nplr
from resolvent.ssm.kernel import (
    cauchy_kernel,
    cauchy_kernel_continuous,
    dense_kernel,
    kernel,
    krylov_kernel,
    vandermonde_kernel,
)
from resolvent.ssm.part import Part, chained
from resolvent.ssm.system import DPLR, Dense, Diagonal, System, conjugate_closed

__all__ = [
    "DPLR", "BoundedReal", "Dense", "Diagonal", "Part", "System", "as_system", "bounded_real", "cauchy_kernel",
    "cauchy_kernel_continuous", "causal_conv", "chained", "conjugate_closed", "dense_kernel", "diagonal_step",
    "direct_conv", "discretise", "dplr", "expm1_over", "fft_conv", "hippo", "kernel", "krylov_kernel", "nplr",
    "toeplitz_conv", "vandermonde_kernel",
]  # fmt: skip


def __dir__() -> list[str]:
    return sorted(__all__)
