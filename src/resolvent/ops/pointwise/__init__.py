"""Operations on single steps, or a few adjacent ones: norms, gates, short convolutions."""

from resolvent.ops.pointwise.biased_silu import biased_silu
from resolvent.ops.pointwise.conv_silu import conv_silu
from resolvent.ops.pointwise.feed_forward import feed_forward, product
from resolvent.ops.pointwise.skip_norm import Ending, ending, skip_norm

__all__ = ["Ending", "biased_silu", "conv_silu", "ending", "feed_forward", "product", "skip_norm"]
