"""A residual block of S5 or LRU with channels first: a scan along time between two products, skip and norm.

    v = W_in x,    h = scan(lam, v),    y = W_out h + D x                       x, y (d, b, l), v, h (2p, b, l)

Where nothing stands between layer and skip, D x rides on the skip: norm(x + y) = norm((1 + D) x + W_out h).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from resolvent.blocks import columns
from resolvent.blocks.mixer import Mixer
from resolvent.blocks.norm import LayerNorm
from resolvent.blocks.residual import Residual
from resolvent.blocks.skip_norm import Ending, ending, skip_norm
from resolvent.layers.lru import LRU
from resolvent.layers.s5 import S5
from resolvent.scan.projected import projected_scan

AXIS = 0  # of the channels


class Weights(NamedTuple):
    lam: Tensor  # (p, 2)
    W_in: Tensor  # (2p, d)
    W_out: Tensor  # (d, 2p)
    D: Tensor | None  # (d, 1, 1), None where it rides on the skip
    end: Ending | None


def covers(block: nn.Module) -> bool:
    if not (columns.covers(block) and isinstance(block, Residual) and isinstance(block.layer, S5 | LRU)):
        return False
    return not (block.layer.bidirectional or block.layer.check_finite)


def weights(block: Residual, length: int, dtype: torch.dtype) -> Weights:
    """From the parameters as they are; differentiable where gradients are on."""
    layer = block.layer
    assert isinstance(layer, S5 | LRU)
    lam_bar, W_in, W_out, D = layer.tables()
    end = None
    if isinstance(block.norm, LayerNorm) and block.skip and not block.prenorm:
        end = ending(block.norm, 1 + D if _bare(block) else None)
    rides = end is not None and end.scale is not None
    return Weights(
        torch.view_as_real(lam_bar), W_in.to(dtype), W_out.to(dtype), None if rides else D.to(dtype)[:, None, None], end
    )


def run(block: Residual, x: Tensor, w: Weights) -> Tensor:
    """(d, b, l) -> (d, b, l)."""
    h = columns.norm(block.norm, x) if block.prenorm else x
    y = projected_scan(w.lam, w.W_in, w.W_out, h)
    if w.D is not None:
        y = columns.mixed(block, torch.addcmul(y, h, w.D))
    if w.end is not None:
        return skip_norm(x, y, w.end, AXIS)
    y = x + y if block.skip else y
    return y if block.prenorm else columns.norm(block.norm, y)


def _bare(block: Residual) -> bool:
    """Whether the layer's output goes to the skip as it is."""
    mixer = block.mixer
    plain = isinstance(mixer, nn.Identity) or (
        isinstance(mixer, Mixer) and mixer.linear is None and isinstance(mixer.act, nn.Identity)
    )
    return plain and isinstance(block.ads, nn.Identity)
