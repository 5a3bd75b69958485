"""The kernels of `feed_forward`: those of its two pointwise parts."""

from resolvent.ops.pointwise.biased_silu_triton import backward as biased_silu_backward
from resolvent.ops.pointwise.biased_silu_triton import forward as biased_silu
from resolvent.ops.pointwise.skip_norm_triton import backward as close_backward
from resolvent.ops.pointwise.skip_norm_triton import forward as close

__all__ = ["biased_silu", "biased_silu_backward", "close", "close_backward"]
