"""The pointwise parts of the residual scaffold with channels first: x (d, b, l) -> (d, b, l).

In this layout a map over channels is one plain product W x and a causal convolution one batched product
(`ssm.toeplitz`), so nothing is transposed between the two. Each function reads a module of `blocks` and computes what
that module does, in the dtype of x, norms in float32 at least.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from resolvent.blocks.ads import AdS
from resolvent.blocks.mixer import Mixer
from resolvent.blocks.norm import LayerNorm, NoNorm, RMSNorm, ScaleNorm
from resolvent.blocks.residual import Residual

NORMS = (LayerNorm, RMSNorm, ScaleNorm, NoNorm)


def covers(block: nn.Module) -> bool:
    """Whether the functions here say everything that this residual block does around its layer, in its present mode."""
    return (
        isinstance(block, Residual)
        and isinstance(block.norm, NORMS)
        and isinstance(block.ads, AdS | nn.Identity)
        and isinstance(block.mixer, Mixer | nn.Identity)
        and not (block.training and any(m.p > 0 for m in block.modules() if isinstance(m, nn.Dropout)))
    )


def linear(module: nn.Linear, x: Tensor) -> Tensor:
    W, flat = module.weight.to(x.dtype), x.flatten(1)
    y = W @ flat if module.bias is None else torch.addmm(module.bias.to(x.dtype)[:, None], W, flat)
    return y.view(-1, *x.shape[1:])


def norm(module: nn.Module, x: Tensor) -> Tensor:
    """Over the channels, axis 0."""
    if isinstance(module, NoNorm):
        return x
    z = x.float() if x.element_size() < 4 else x
    if isinstance(module, LayerNorm):
        var, mean = torch.var_mean(z, 0, correction=0, keepdim=True)
        z = torch.addcmul(_along(module.bias), (z - mean) * torch.rsqrt(var + module.eps), _along(module.weight))
    elif isinstance(module, RMSNorm | ScaleNorm):
        scale = 1 + _along(module.scale) if isinstance(module, RMSNorm) else module.scale
        z = z * torch.rsqrt(z.square().mean(0, keepdim=True) + module.eps) * scale
    return z.to(x.dtype)


def mixed(block: Residual, y: Tensor) -> Tensor:
    """mixer(ads(y))."""
    if isinstance(block.ads, AdS):
        y = _scaled(block.ads, y)
    return _mapped(block.mixer, y) if isinstance(block.mixer, Mixer) else y


def _along(p: Tensor) -> Tensor:
    return p[:, None, None]


def _scaled(ads: AdS, y: Tensor) -> Tensor:
    scaled = ads.sigma(linear(ads.scale, y)) * y
    return scaled if ads.shift is None else scaled + ads.sigma(linear(ads.shift, y))


def _mapped(mixer: Mixer, y: Tensor) -> Tensor:
    g = mixer.act(y)
    if mixer.linear is None:
        return g
    w = linear(mixer.linear, g)
    if mixer.kind == "glu":
        value, gate = w.chunk(2, 0)
        w = value * torch.sigmoid(gate)
    elif mixer.down is not None:
        w = linear(mixer.down, mixer.act(w))
    elif mixer.kind != "linear":
        w = (g if mixer.kind == "half_glu1" else y) * torch.sigmoid(w)
    return mixer.final(w)
