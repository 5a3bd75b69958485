"""Distances between the features of a perturbed input and of the clean one: two per sample.

The study of deep SSMs under adversarial training, section 4.2, for feature sequences f, f' of T steps and d channels:

    mse     (1/T) ||f' - f||^2, the squares summed over steps and channels
    kl      KL(S(f) || S(f')), S the softmax over time of each channel, clean first; summed over time and averaged over
            channels (unspecified in the paper)

Both are computed in float64 for features of any dtype; steps beyond a sample's length are excluded.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

Lengths = Tensor | None


def feature_mse(f: Tensor, f_adv: Tensor, lengths: Lengths = None) -> Tensor:
    """(1/T) ||f' - f||^2 of each sample: features (b, l, d) -> (b,).

    Examples:
        >>> f = torch.zeros(2, 10, 4)
        >>> rv.analysis.feature_mse(f, f + 0.5)
        tensor([1., 1.], dtype=torch.float64)
    """
    _check("feature_mse", f, f_adv, lengths)
    error = (f_adv.double() - f.double()).square().sum(-1)  # (b, l)
    valid = steps(f, lengths)
    return error.masked_fill(~valid, 0).sum(1) / valid.sum(1)


def feature_kl(f: Tensor, f_adv: Tensor, lengths: Lengths = None) -> Tensor:
    """KL(S(f) || S(f')), S the softmax over time, mean over channels: features (b, l, d) -> (b,).

    Examples:
        >>> f = torch.randn(2, 10, 4)
        >>> rv.analysis.feature_kl(f, f).abs().max() < 1e-6
        tensor(True)
    """
    _check("feature_kl", f, f_adv, lengths)
    padding = ~steps(f, lengths)[..., None]  # (b, l, 1)
    log_p, log_q = (g.double().masked_fill(padding, -math.inf).log_softmax(1) for g in (f, f_adv))
    terms = log_p.exp() * (log_p - log_q)  # (b, l, d)
    return terms.masked_fill(padding, 0).sum(1).mean(-1).clamp_min(0)


def rounding(f: Tensor, f_adv: Tensor, lengths: Lengths = None) -> tuple[Tensor, Tensor]:
    """Both distances of features that differ by one rounding of their dtype: indistinguishable from zero. (b,) each.

    The rounding is that of the larger of |f| and |f'|, with alternating signs so that it affects the softmax too; the
    divergence adds the cancellation of its own float64 logarithms.
    """
    wide = f.double()
    size = torch.maximum(wide.abs(), f_adv.double().abs()).masked_fill(~steps(f, lengths)[..., None], 0)
    sign = 1.0 - 2.0 * (torch.arange(f.shape[1], device=f.device) % 2)  # (l,)
    moved = wide + torch.finfo(f.dtype).eps * sign.double()[:, None] * size
    logarithms = torch.finfo(torch.float64).eps * (4 + 4 * size.amax((1, 2)) + 4 * math.log(f.shape[1]))
    return feature_mse(wide, moved, lengths), feature_kl(wide, moved, lengths) + logarithms


def steps(f: Tensor, lengths: Lengths) -> Tensor:
    """Which steps of f (b, l, d) are valid: (b, l) bool."""
    time = torch.arange(f.shape[1], device=f.device)
    if lengths is None:
        return torch.ones(f.shape[:2], dtype=torch.bool, device=f.device)
    return time < lengths.to(f.device)[:, None]


def _check(where: str, f: Tensor, f_adv: Tensor, lengths: Lengths) -> None:
    if f.shape != f_adv.shape or f.dim() != 3 or 0 in f.shape:
        raise ValueError(
            f"{where}: expected clean and perturbed features of one shape (batch, length, channels), none of them "
            f"zero, got {tuple(f.shape)} and {tuple(f_adv.shape)}; put time on the second axis."
        )
    if not (f.is_floating_point() and f_adv.is_floating_point()):
        raise TypeError(f"{where}: expected real features, got {f.dtype} and {f_adv.dtype}; take the real part first.")
    if lengths is not None and (lengths.shape != f.shape[:1] or not _within(lengths, f.shape[1])):
        raise ValueError(
            f"{where}: expected lengths of shape ({f.shape[0]},) within 1..{f.shape[1]}, got {tuple(lengths.shape)} "
            f"holding {lengths.tolist()[:8]}."
        )


def _within(lengths: Tensor, longest: int) -> bool:
    return bool(((lengths >= 1) & (lengths <= longest)).all())
