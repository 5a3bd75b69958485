"""Objectives that attacks maximise: functions (output, *references) -> (b,), one value per sample, larger is worse.

A targeted objective takes the label and the target; `kl` and `squared_deviation` take the clean output instead.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

Objective = Callable[..., Tensor]
TINY = 1e-12  # keeps the ratio of DLR finite where the largest logits tie


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """-log softmax(z)_y.

    Examples:
        >>> rv.attacks.cross_entropy(torch.zeros(1, 2), torch.tensor([0]))
        tensor([0.6931])
    """
    return F.cross_entropy(logits, y, reduction="none")


def targeted_cross_entropy(logits: Tensor, y: Tensor, target: Tensor) -> Tensor:
    """log softmax(z)_target: grows as the target wins; y is not used.

    Examples:
        >>> rv.attacks.targeted_cross_entropy(torch.zeros(1, 2), torch.tensor([0]), torch.tensor([1]))
        tensor([-0.6931])
    """
    return -F.cross_entropy(logits, target, reduction="none")


def margin(logits: Tensor, y: Tensor) -> Tensor:
    """max_{j != y} z_j - z_y: positive when the sample is misclassified, negative when it is not.

    Examples:
        >>> rv.attacks.margin(torch.tensor([[3.0, 1.0]]), torch.tensor([0]))
        tensor([-2.])
    """
    return logits.scatter(1, y[:, None], -torch.inf).amax(1) - pick(logits, y)


def targeted_margin(logits: Tensor, y: Tensor, target: Tensor) -> Tensor:
    """z_target - z_y.

    Examples:
        >>> rv.attacks.targeted_margin(torch.tensor([[3.0, 1.0]]), torch.tensor([0]), torch.tensor([1]))
        tensor([-2.])
    """
    return pick(logits, target) - pick(logits, y)


def dlr(logits: Tensor, y: Tensor) -> Tensor:
    """Difference of logits ratio (Croce & Hein 2020): -(z_y - max_{j != y} z_j) / (z_(1) - z_(3)), z_(1) largest.

    Examples:
        >>> rv.attacks.dlr(torch.tensor([[3.0, 1.0, 0.0]]), torch.tensor([0])).round(decimals=3)
        tensor([-0.6670])
    """
    top = logits.topk(3, dim=1).values  # (b, 3)
    return margin(logits, y) / (top[:, 0] - top[:, 2] + TINY)


def targeted_dlr(logits: Tensor, y: Tensor, target: Tensor) -> Tensor:
    """Targeted DLR (Croce & Hein 2020): -(z_y - z_t) / (z_(1) - (z_(3) + z_(4)) / 2).

    Examples:
        >>> rv.attacks.targeted_dlr(torch.tensor([[3.0, 2.0, 1.0, 0.0]]), torch.tensor([0]), torch.tensor([1]))
        tensor([-0.4000])
    """
    top = logits.topk(4, dim=1).values  # (b, 4)
    return targeted_margin(logits, y, target) / (top[:, 0] - (top[:, 2] + top[:, 3]) / 2 + TINY)


def kl(logits: Tensor, clean_logits: Tensor) -> Tensor:
    """KL(softmax(clean) || softmax(logits)), the inner objective of TRADES; one logit (b, 1) counts as (0, z).

    Computed from log-probabilities: one that underflows gives 0, not NaN, in the value and both gradients.

    Examples:
        >>> rv.attacks.kl(torch.zeros(1, 2), torch.zeros(1, 2))
        tensor([0.])
    """
    log_q, log_p = ((F.pad(z, (1, 0)) if z.shape[-1] == 1 else z).log_softmax(-1) for z in (logits, clean_logits))
    return F.kl_div(log_q, log_p, reduction="none", log_target=True).sum(-1)


def squared_deviation(output: Tensor, clean: Tensor) -> Tensor:
    """||f(x') - f(x)||^2 over all axes but the batch: regression, or any model without classes.

    Examples:
        >>> rv.attacks.squared_deviation(torch.ones(1, 3), torch.zeros(1, 3))
        tensor([3.])
    """
    return (output - clean).square().flatten(1).sum(1) if output.dim() > 1 else (output - clean).square()


def fallback(objective: Objective, classes: int) -> tuple[Objective, str | None]:
    """The objective to use with this number of classes, and a note if it is a replacement.

    DLR divides by a gap to the third logit and targeted DLR to the fourth: below 3 and 4 classes the plain (targeted)
    margin replaces them. Both have the sign of the original, so success means the same.
    """
    if objective is dlr and classes < 3:
        return margin, f"DLR needs at least 3 classes, the model has {classes}: margin used."
    if objective is targeted_dlr and classes < 4:
        return targeted_margin, f"Targeted DLR needs at least 4 classes, the model has {classes}: targeted margin used."
    return objective, None


def pick(logits: Tensor, y: Tensor) -> Tensor:
    """The logit of each sample's class: (b,)."""
    return logits.gather(1, y[:, None]).squeeze(1)


def rank_wrong_classes(logits: Tensor, y: Tensor) -> Tensor:
    """Every class but y, likeliest first: (b, classes - 1)."""
    own = F.one_hot(y, logits.shape[1]).bool()
    least = torch.finfo(logits.dtype).min  # above -inf, so that y alone comes last
    scores = logits.nan_to_num(nan=least, neginf=least).masked_fill(own, -torch.inf)
    return scores.sort(dim=1, descending=True, stable=True).indices[:, :-1]
