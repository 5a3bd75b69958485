"""Causal filters: convolution by FFT, by Toeplitz products, in blocks with a state between them."""

from resolvent.ops.filter.chained import make_chained
from resolvent.ops.filter.convolution import causal_conv, direct_conv, fast_length, fft_conv, toeplitz_conv
from resolvent.ops.filter.operation import Filter
from resolvent.ops.filter.taps import causal_taps
from resolvent.ops.filter.toeplitz import SLICE, is_served, tell, toeplitz
from resolvent.ops.filter.two_sided import TwoSided

__all__ = [
    "SLICE", "Filter", "TwoSided", "causal_conv", "causal_taps", "direct_conv", "fast_length", "fft_conv",
    "is_served", "make_chained", "tell", "toeplitz", "toeplitz_conv",
]  # fmt: skip
