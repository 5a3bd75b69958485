"""A reservoir from data: random systems, levels at quantiles of their outputs, a ridge read-out."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from scipy.optimize import minimize_scalar
from torch import Tensor, nn

from resolvent.blocks.levels import LevelReadout
from resolvent.init import reservoir
from resolvent.layers import S4D
from resolvent.layers.checks import check_lengths
from resolvent.models.config import LevelsConfig
from resolvent.models.model import Model
from resolvent.models.reservoir.config import MODES, reservoir_config
from resolvent.models.reservoir.ridge import fit_ridge
from resolvent.usage.numbers import check_not_negative

ROWS, STEPS = 30, 64  # samples, and steps of each, from which levels are taken
MOST = 9  # channels that one system reads at most
SHARPEST = 1e-6  # softness that stands for 0
WORK = 2**22  # numbers in the activations of the samples that pass through the model at once
ALPHAS = tuple(10 ** (2 * k / 3 - 3) for k in range(10))  # 0.001 to 1,000


@torch.no_grad()
def learn_reservoir(
    model: Model,
    x: Tensor,
    y: Tensor,
    lengths: Tensor | None = None,
    *,
    softness: float = 0.1,
    generator: torch.Generator | None = None,
) -> None:
    """Set all weights but the time steps of a `reservoir_config`: x (n, l, c), classes y (n,), lengths (n,) or None.

    softness   width of the ramp at a level, in standard deviations of the system's output: with 0.1 the shares hardly
               differ from counts of the steps above the level, with 1 the model answers more smoothly

    Examples:
        >>> model = rv.build_model(rv.models.reservoir_config(2, 3, systems=20))
        >>> rv.models.learn_reservoir(model, torch.randn(12, 30, 2), torch.arange(12) % 3)
        >>> model(torch.randn(4, 30, 2)).shape
        torch.Size([4, 3])
    """
    check_not_negative("learn_reservoir", softness=softness)
    _check(model, x, y, lengths)
    d, head = model.config.d_model, cast(LevelReadout, model.head)
    x = x.to(next(model.parameters()))
    if not bool(x.isfinite().all()):
        raise ValueError("learn_reservoir: x holds NaN or infinity (in the model's type): clean or scale the data.")
    _draw(model, x.shape[1], generator)
    lengths = None if lengths is None else lengths.to(x.device)
    with model.frozen():
        head.levels.set(_sample_outputs(model, x, lengths, generator), max(softness, SHARPEST), generator)
        parts = torch.arange(len(x)).split(max(1, WORK // max(1, x.shape[1] * d)))
        rows = [(x[i], None if lengths is None else lengths[i]) for i in parts]
        shares = torch.cat([head.levels.shares(_outputs(model, part), end) for part, end in rows])
    _solve(head.out, shares.double(), y.to(x.device).long())


def _check(model: Model, x: Tensor, y: Tensor, lengths: Tensor | None) -> None:
    """Refuse what would fail, or leave NaN, after weights have been replaced."""
    if len(x.shape) != 3 or 0 in x.shape:
        raise ValueError(f"learn_reservoir: expected x (n, l, c), n, l and c at least 1, got shape {tuple(x.shape)}.")
    config: Any = getattr(model, "config", None)
    how, c = getattr(config, "head", None), x.shape[2]
    if not isinstance(how, LevelsConfig) or config != reservoir_config(c, how.classes, config.d_model, how.levels):
        raise ValueError(f"learn_reservoir: expected a model of `reservoir_config` with the {c} channels of x.")
    if y.shape != x.shape[:1] or y.is_floating_point() or int(y.min()) < 0 or int(y.max()) >= how.classes:
        raise ValueError(
            f"learn_reservoir: expected one whole number from 0 to {how.classes - 1} for each of the {len(x)} samples, "
            f"got y of {y.dtype}, shape {tuple(y.shape)}, from {y.min():g} to {y.max():g}."
        )
    if lengths is not None:
        check_lengths("learn_reservoir", lengths, len(x), x.shape[1])


def _draw(model: Model, length: int, generator: torch.Generator | None) -> None:
    """Random systems, each of which reads a few channels with random signs: one channel more often than many."""
    entry, layer = cast(nn.Linear, model.tower.entry).weight, cast(S4D, model.tower.body.blocks[0].layer)
    d, c = entry.shape
    lam_bar, C = (t.to(entry.device) for t in reservoir(d, MODES, length, generator))
    layer.set_modes(lam_bar, torch.ones_like(lam_bar)[..., None], C[:, None])
    most = min(c, MOST)
    rand = partial(torch.rand, dtype=torch.float32, generator=generator)  # the same under any default type
    count = (2 ** (rand(d, 1) * math.log2(most + 1))).floor().clamp(1, most)
    place = rand(d, c).argsort(1).argsort(1)
    sign = torch.randint(0, 2, (d, c), generator=generator) * 2.0 - 1
    entry.copy_(torch.where(place < count, sign, 0.0))


def _sample_outputs(model: Model, x: Tensor, lengths: Tensor | None, generator: torch.Generator | None) -> Tensor:
    """Outputs (m, d) at no more than STEPS evenly spaced steps of each of ROWS samples."""
    seen = []
    for i in torch.randperm(len(x), generator=generator)[:ROWS].tolist():
        one = _outputs(model, x[i : i + 1, : None if lengths is None else lengths[i]])[0]
        seen.append(one[torch.linspace(0, len(one) - 1, min(STEPS, len(one))).long()])
    return torch.cat(seen)


def _outputs(model: Model, x: Tensor) -> Tensor:
    """Of all systems, (b, l, d)."""
    return model.tower.features(model.embed(x), None)[0]


def _solve(out: nn.Linear, shares: Tensor, y: Tensor) -> None:
    """Ridge regression to 1 for the own class and -1 for others, on shares scaled to unit deviation.

    Its answers become logits by the factor that fits best to its leave-one-out predictions.
    """
    spread = shares.std(0, correction=0)
    spread = torch.where(spread > 0, spread, 1)
    found = fit_ridge(shares / spread, 2 * F.one_hot(y, out.out_features).to(shares) - 1, ALPHAS)
    factor = _temper(found.left_out, y)
    out.weight.copy_(factor * (found.weight / spread[:, None]).mT)
    out.bias.copy_(factor * found.bias)


def _temper(answers: Tensor, y: Tensor) -> float:
    """The factor of the answers with the best log-likelihood; one part in n + 2 of each label is spread over all
    classes (Laplace), so that a separable problem has a finite factor."""
    doubt = 1 / (len(y) + 2)

    def loss(log_factor: float) -> float:
        return float(F.cross_entropy(math.exp(log_factor) * answers, y, label_smoothing=doubt))

    return math.exp(minimize_scalar(loss, bounds=(-3.0, 5.0), method="bounded").x)
