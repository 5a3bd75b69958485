"""Certify predictions against all perturbations in an Linf ball, by intervals or by linear bounds.

    found = certify_linf(stages, x, y, 0.01, LinfSettings(bounds=(0, 1)))
    found.certified            # (b,) bool
    linf_radius(stages, x, y)  # (b,) the largest eps that could be certified, by bisection

interval   boxes from stage to stage (exact through each recurrence); the last affine map is merged with the
           differences of logits, which is free and tighter
linear     CROWN (Zhang et al. 2018): a linear lower bound of each difference of logits, pulled back through the network
           with the boxes' linear relaxations, then minimised over the ball. The better of both bounds is used
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from resolvent.analysis.certificates.interval import Box
from resolvent.analysis.certificates.interval_stages import (
    Affine,
    Arithmetic,
    Memory,
    Stage,
    boxes,
    least,
    pull_back,
    run,
)
from resolvent.analysis.certificates.precision import eps_of
from resolvent.attacks.checks import check_data, check_logits
from resolvent.usage.numbers import check_choice, check_count

Method = Literal["interval", "linear"]
ROUNDING = 1e-9  # of the logits' scale: a certified margin must exceed it


@dataclass(frozen=True)
class LinfSettings:
    """bounds: the valid range of an input value, kept by perturbations.

    rows   neurons per sample up to which "linear" bounds the input of a pointwise function over the whole network
           before it, not by its box alone: much tighter, at the cost of two backward passes per neuron

    Examples:
        >>> rv.analysis.LinfSettings().method
        'linear'
    """

    bounds: tuple[Any, Any] | None = None  # numbers, or an entry per channel
    method: Method = "linear"
    rows: int = 256

    def __post_init__(self) -> None:
        check_choice("LinfSettings", "method", self.method, get_args(Method))
        check_count("LinfSettings", 0, rows=self.rows)
        low, high = (torch.as_tensor(v) for v in self.bounds or (0, 1))
        if not bool((low < high).all()):
            raise ValueError(f"LinfSettings: bounds must be (low, high) with low < high, got {self.bounds}.")


@dataclass(frozen=True, eq=False)
class LinfCertificate:
    """Per sample: the least margin z_y - max_j z_j over the ball, and whether it is positive.

    Examples:
        >>> stages = [rv.analysis.Affine(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))]
        >>> x, y = torch.tensor([[1.0, 0.0]]), torch.tensor([0])
        >>> rv.analysis.certify_linf(stages, x, y, eps=0.1).certified
        tensor([True])
    """

    margin: Tensor  # (b,) a lower bound of it
    certified: Tensor  # (b,) bool
    eps: Tensor  # (b,) or ()
    method: Method

    @property
    def accuracy(self) -> float:
        return float(self.certified.double().mean())

    def as_dict(self) -> dict[str, Any]:
        return {
            "norm": "linf", "method": self.method, "eps": self.eps.reshape(-1).tolist(), "accuracy": self.accuracy,
            "margin": self.margin.tolist(), "certified": self.certified.tolist(),
        }  # fmt: skip


def certify_linf(
    stages: Sequence[Stage],
    x: Tensor,
    y: Tensor,
    eps: float | Tensor,
    settings: LinfSettings | None = None,
    *,
    lengths: Tensor | None = None,
) -> LinfCertificate:
    """Certify argmax = y for all inputs within eps of x (b, ...) in every entry.

    eps      one number, or one for each sample (b,)
    lengths  steps beyond a sequence's length are not perturbed

    x must have the dtype in which the network runs: its float32 rounding is part of the bounds.

    Examples:
        >>> stages = [rv.analysis.Affine(torch.eye(2))]
        >>> rv.analysis.certify_linf(stages, torch.tensor([[1.0, 0.0]]), torch.tensor([0]), eps=0.6).certified
        tensor([False])
    """
    settings = settings or LinfSettings()
    _check(stages, x, y)
    box = Box.around(x, eps, settings.bounds, lengths)
    info = torch.finfo(x.dtype)
    memory = Memory(
        box, settings.rows if settings.method == "linear" else 0, Arithmetic(eps_of(x), info.tiny, info.max)
    )
    margin = _least_margin(stages, memory, y.long(), settings)
    margin = torch.where(torch.isfinite(margin), margin, -math.inf)
    scale = run(stages, x).abs().amax(1)
    return LinfCertificate(margin, margin > ROUNDING * scale, torch.as_tensor(eps), settings.method)


def linf_radius(
    stages: Sequence[Stage],
    x: Tensor,
    y: Tensor,
    settings: LinfSettings | None = None,
    *,
    lengths: Tensor | None = None,
    largest: float = 1.0,
    steps: int = 20,
) -> Tensor:
    """(b,) the largest eps up to `largest` at which each sample is certified, found by bisection; 0 if there is none.

    Examples:
        >>> stages = [rv.analysis.Affine(torch.eye(2))]
        >>> round(float(rv.analysis.linf_radius(stages, torch.tensor([[1.0, 0.0]]), torch.tensor([0]))), 2)
        0.5
    """
    if not 0 < largest < math.inf:
        raise ValueError(f"linf_radius: largest must be positive and finite, got {largest}.")
    low = torch.zeros(x.shape[0], dtype=torch.float64, device=x.device)
    high = torch.full_like(low, 2 * largest)
    for _ in range(steps):
        middle = ((low + high) / 2).clamp_max(largest)
        found = certify_linf(stages, x, y, middle, settings, lengths=lengths).certified
        low, high = torch.where(found, middle, low), torch.where(found, high, middle)
    return low


def _least_margin(stages: Sequence[Stage], memory: Memory, y: Tensor, settings: LinfSettings) -> Tensor:
    last, box = stages[-1], memory.root
    assert isinstance(last, Affine)
    inner = boxes(stages[:-1], box, memory)
    memory.rounded(last, inner, last.box(inner, memory))
    a, offset = pull_back([last], _differences(y, last.W.shape[0]), memory)  # of (b, k - 1, k)
    margins = least(a, inner) + offset
    if settings.method == "linear":
        a, more = pull_back(stages[:-1], a, memory)
        margins = torch.maximum(margins, least(a, box) + offset + more)
    return margins.amin(1)


def _differences(y: Tensor, classes: int) -> Tensor:
    """e_y - e_j for all j != y: (b, classes - 1, classes)."""
    eye = torch.eye(classes, dtype=torch.float64, device=y.device)
    others = (y[:, None] + 1 + torch.arange(classes - 1, device=y.device)) % classes  # (b, k - 1)
    return eye[y][:, None] - eye[others]


def _check(stages: Sequence[Stage], x: Tensor, y: Tensor) -> None:
    if not stages or not isinstance(stages[-1], Affine):
        raise ValueError("certify_linf: the last stage must be the Affine map to the logits.")
    check_data("certify_linf", x, y)
    check_logits("certify_linf", run(stages, x[:1]), y)
