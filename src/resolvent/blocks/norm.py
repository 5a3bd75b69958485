"""Normalisation over channels or over batch and time, all called as `norm(x, lengths)` with x (b, l, d) or (b, d)."""

from __future__ import annotations

from typing import Literal

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from resolvent.layers.checks import padding_mask
from resolvent.usage.numbers import check_choice

NormKind = Literal["layer", "batch", "rms", "scale", "none"]


def make_norm(kind: NormKind, d_model: int, eps: float | None = None) -> nn.Module:
    """`eps` is added to the mean square or variance; None: 1e-6 for "rms" and "scale", 1e-5 for "layer" and "batch".

    Examples:
        >>> rv.blocks.make_norm("rms", 4)(torch.randn(2, 10, 4)).shape
        torch.Size([2, 10, 4])
    """
    table = {"layer": LayerNorm, "batch": BatchNorm, "rms": RMSNorm, "scale": ScaleNorm, "none": NoNorm}
    check_choice("make_norm", "kind", kind, table)
    return table[kind](d_model) if eps is None or kind == "none" else table[kind](d_model, eps)


class NoNorm(nn.Module):
    def __init__(self, d_model: int) -> None:
        super().__init__()

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        return x


class LayerNorm(nn.Module):
    """torch's LayerNorm over the channels, (..., d) -> (..., d).

    Examples:
        >>> rv.blocks.LayerNorm(4)(torch.randn(2, 10, 4)).shape
        torch.Size([2, 10, 4])
    """

    def __init__(self, d_model: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(d_model))
        self.bias = nn.Parameter(torch.zeros(d_model))

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


def divide_by_rms(x: Tensor, eps: float, dim: int = -1) -> Tensor:
    return x * torch.rsqrt(x.square().mean(dim, keepdim=True) + eps)


class RMSNorm(nn.Module):
    """x / rms(x) * (1 + scale), scale initialised to zero: Griffin's form.

    Examples:
        >>> rv.blocks.RMSNorm(4)(torch.ones(1, 4)).round(decimals=3)
        tensor([[1., 1., 1., 1.]], grad_fn=...)
    """

    def __init__(self, d_model: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.scale = nn.Parameter(torch.zeros(d_model))

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        return divide_by_rms(x, self.eps) * (1 + self.scale)


class ScaleNorm(nn.Module):
    """x / rms(x) times one learned number: used by Mega on text.

    Examples:
        >>> rv.blocks.ScaleNorm(4)(torch.randn(2, 10, 4)).shape
        torch.Size([2, 10, 4])
    """

    def __init__(self, d_model: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        return divide_by_rms(x, self.eps) * self.scale


class BatchNorm(nn.Module):
    """Per-channel statistics over batch and time; padding is excluded.

    In training mode a single step has no statistics of its own sequence, so streaming needs `eval()`.

    Examples:
        >>> rv.blocks.BatchNorm(4)(torch.randn(2, 10, 4)).shape
        torch.Size([2, 10, 4])
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, d_model: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__()
        self.eps = eps
        self.momentum = momentum
        self.weight = nn.Parameter(torch.ones(d_model))
        self.bias = nn.Parameter(torch.zeros(d_model))
        self.register_buffer("running_mean", torch.zeros(d_model))
        self.register_buffer("running_var", torch.ones(d_model))

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        if not self.training:
            return self._normalise(x, self.running_mean, self.running_var)
        if x.dim() == 2:
            raise ValueError(
                "BatchNorm: a step in training mode has no statistics of its sequence; call eval() before streaming, "
                "or train on whole sequences."
            )
        mean, var, count = shared_statistics(*self._statistics(x, lengths))
        self._remember(mean.detach(), var.detach(), count)
        return self._normalise(x, mean, var)

    def _normalise(self, x: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        scale = self.weight * torch.rsqrt(var + self.eps)  # (d,)
        return x * scale + (self.bias - mean * scale)

    def _statistics(self, x: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor, Tensor | int]:
        mask = padding_mask(x, lengths)  # (b, l, 1)
        if mask is None or lengths is None:
            var, mean = torch.var_mean(x, dim=(0, 1), correction=0)
            return mean, var, x.shape[0] * x.shape[1]
        count = lengths.sum().to(x.dtype)  # dividing by an integer would give the default dtype
        mean = x.masked_fill(mask, 0).sum((0, 1)) / count
        var = (x - mean).masked_fill(mask, 0).square().sum((0, 1)) / count
        return mean, var, count

    @torch.no_grad()
    def _remember(self, mean: Tensor, var: Tensor, count: Tensor | int) -> None:
        """Running averages; the variance unbiased, as torch.nn.BatchNorm1d keeps it."""
        bessel = count / (count - 1).clamp(min=1) if isinstance(count, Tensor) else count / max(count - 1, 1)
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), self.momentum)
        self.running_var.lerp_((var * bessel).to(self.running_var.dtype), self.momentum)


def shared_statistics(mean: Tensor, var: Tensor, count: Tensor | int) -> tuple[Tensor, Tensor, Tensor | int]:
    """Statistics over the rows of all processes of a distributed run; unchanged in a single process."""
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return mean, var, count
    from torch.distributed.nn.functional import all_reduce

    own = torch.as_tensor(count, dtype=mean.dtype, device=mean.device)
    total = all_reduce(own.clone())
    whole = all_reduce(mean * (own / total))
    spread = all_reduce((var + (mean - whole).square()) * (own / total))
    return whole, spread, total
