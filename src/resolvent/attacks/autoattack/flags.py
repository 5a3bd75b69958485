"""Reasons to doubt an evaluation, as values: the kind, its size, and an explanation.

The checks of AutoAttack (Croce & Hein 2020) that upstream prints to a log, and those of Carlini et al. 2019 for masked
gradients. A flag changes no number; it says how far the number can be trusted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Kind = Literal[
    "random_outputs",
    "softmax_outputs",
    "zero_gradients",
    "non_finite",
    "square_wins",
    "larger_eps",
    "transfer_wins",
    "borderline",
    "nothing_right",
]
SQUARE_POINTS = 0.002  # AutoAttack's own threshold: 0.2 points of accuracy
ERRORS = 2.0  # standard errors by which a share must exceed its reference
SOFTMAX_ERROR = 1e-5
LEAST = 8  # samples, of which one should be right by chance
RANDOM_ERROR = 1e-4


@dataclass(frozen=True)
class Flag:
    """One reason for doubt: `value` is the measurement, `samples` the number of samples concerned, if applicable.

    Examples:
        >>> rv.attacks.Flag("zero_gradients", "gradients vanish").kind
        'zero_gradients'
    """

    kind: Kind
    explanation: str
    value: float | None = None
    samples: int | None = None

    def __str__(self) -> str:
        return f"{self.kind}: {self.explanation}"


def present(flags: Iterable[Flag | None]) -> tuple[Flag, ...]:
    """The raised flags."""
    return tuple(flag for flag in flags if flag is not None)


def beyond(share: float, n: int, least: float = SQUARE_POINTS) -> bool:
    """Whether a share of n samples exceeds `least` by more than its sampling error: one sample never suffices."""
    return n > 0 and share - ERRORS * math.sqrt(max(share * (1 - share), 0.0) / n) > least


def random_outputs(outputs: list[Tensor]) -> Flag | None:
    """`outputs`: logits (b, k) of the same inputs, computed repeatedly."""
    first = outputs[0]
    scale = torch.linalg.vector_norm(first, dim=1).clamp_min(1e-10)  # (b,)
    apart = [(torch.linalg.vector_norm(other - first, dim=1) / scale) for other in outputs[1:]]
    worst = torch.stack(apart).amax(0) if apart else torch.zeros_like(scale)
    count = int((worst > RANDOM_ERROR).sum())
    if not count:
        return None
    return Flag(
        "random_outputs",
        f"the same input gives outputs that differ by up to {float(worst.max()):.1e} of their size: the model is "
        "random (or depends on the batch). Evaluate with preset='rand', which averages gradients over many passes.",
        float(worst.max()),
        count,
    )


def softmax_outputs(logits: Tensor) -> Flag | None:
    """Probabilities instead of logits: rows in [0, 1] that sum to 1."""
    if not logits.numel():
        return None
    sums = (logits.sum(1) - 1).abs().max() < SOFTMAX_ERROR
    if not (sums and logits.min() > -SOFTMAX_ERROR and logits.max() < 1 + SOFTMAX_ERROR):
        return None
    return Flag(
        "softmax_outputs",
        "the outputs are probabilities: cross-entropy then takes a softmax of a softmax and its gradients vanish. "
        "Hand over logits, e.g. the model without its last softmax, or lambda x: model(x).clamp_min(1e-30).log().",
        float(logits.max()),
        logits.shape[0],
    )


def zero_gradients(where: Tensor) -> Flag | None:
    """`where` (b,): the first gradient of a white-box attack was exactly zero."""
    text = (
        "{} attacked samples have a gradient of exactly zero: white-box attacks cannot move them. Look for saturated "
        "activations, rounding, argmax or detach() in the model."
    )
    return _share(where, "zero_gradients", text)


def non_finite(where: Tensor) -> Flag | None:
    """`where` (b,): an output or gradient near the sample had NaN or infinity."""
    text = (
        "near {} attacked samples the model gave NaN or infinite outputs or gradients. Such points are never counted "
        "as adversarial, so the accuracy may be too high."
    )
    return _share(where, "non_finite", text)


def _share(where: Tensor, kind: Kind, text: str) -> Flag | None:
    """A doubt about the samples at `where` (b,), if there are any; the text says "3 of 10"."""
    count, of = int(where.sum()), where.numel()
    return Flag(kind, text.format(f"{count} of {of}"), count / of, count) if count else None


def square_wins(table: Mapping[str, float], n: int) -> Flag | None:
    """`table`: accuracy of n samples after each attack in the order of running, "clean" first."""
    names = list(table)
    at = next((i for i, name in enumerate(names) if name.startswith("square")), 0)
    if at < 2:  # no gradient attack ran before it
        return None
    gain = table[names[at - 1]] - table[names[at]]
    if not beyond(gain, n):
        return None
    return Flag(
        "square_wins",
        f"Square, which sees no gradient, lowers the accuracy by another {100 * gain:.2f} points after the white-box "
        "attacks: gradients may be masked. Run more of Square (queries, restarts) or an attack adapted to this model.",
        gain,
    )


def larger_eps(accuracy: float, at_larger: float, times: float, n: int) -> Flag | None:
    """The same attack on the same n samples with `times` the radius; a larger ball must break more, if any is left.

    A few unbroken samples prove nothing: their share must exceed zero by more than its sampling error.
    """
    if not beyond(accuracy, n, 0.0) or at_larger < accuracy:
        return None
    return Flag(
        "larger_eps",
        f"with {times:g} times the radius the same attack leaves {100 * at_larger:.1f}% standing where it left "
        f"{100 * accuracy:.1f}%: a ball that contains the other cannot be safer, so the gradients mislead the attack, "
        "or the model gives the same answer everywhere.",
        at_larger - accuracy,
    )


def transfer_wins(by_transfer: float, by_white_box: float, n: int) -> Flag | None:
    """Share of n samples broken by points found on another model, against points found on this one by the same attack.

    On the same samples the difference has at most the sampling error of a share of its size.
    """
    if not beyond(by_transfer - by_white_box, n):
        return None
    return Flag(
        "transfer_wins",
        f"points found on the surrogate break {100 * by_transfer:.1f}% of the samples, those found on the model itself "
        f"{100 * by_white_box:.1f}%: its own gradients are worse than a stranger's, so they are masked.",
        by_transfer - by_white_box,
    )


def nothing_right(table: Mapping[str, float], n: int) -> Flag | None:
    """`table`: accuracy of n samples after each attack, "clean" first."""
    if n < LEAST or next(iter(table.values()), 1.0) > 0:
        return None
    return Flag(
        "nothing_right",
        f"none of {n} samples is answered correctly even without an attack: check that labels count from 0, that x is "
        "scaled as in training, and that the weights are loaded.",
        0.0,
        n,
    )


def borderline(count: int, n: int) -> Flag | None:
    """The samples whose verdict depends on the last bits of the logits, or on a random model's next output."""
    if not beyond(count / max(n, 1), n):
        return None
    message = (
        f"computed again, {count} perturbed samples get another verdict: they lie within rounding of the decision "
        "boundary, or the model is random. They count as broken."
    )
    return Flag("borderline", message, samples=count)
