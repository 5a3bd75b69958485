"""Robust accuracy as a function of eps: one evaluation for each eps, smallest first, sharing their work.

A ball holds every smaller one, so a sample broken at one eps is broken at all larger ones and is not attacked again:
the curve never rises.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from torch import Tensor

from resolvent.attacks.autoattack.evaluation import Evaluation
from resolvent.attacks.autoattack.flags import Flag
from resolvent.attacks.autoattack.outcome import AutoAttackResult
from resolvent.attacks.autoattack.summary import curve_table, show_eps
from resolvent.attacks.threat.checks import check_eps, from_numpy
from resolvent.attacks.threat.threat import Sizes


@dataclass(frozen=True, eq=False)
class Curve:
    """One evaluation for each eps, smallest first.

    Examples:
        >>> f, x, y = torch.nn.Linear(3, 5), torch.rand(4, 3), torch.tensor([0, 1, 0, 1])
        >>> threat = rv.Threat("linf", 0.1, bounds=(0, 1))
        >>> curve = rv.evaluate(f, (x, y), threat, "fast", eps=[0.05, 0.1])
        >>> len(curve.evaluations)
        2
    """

    evaluations: tuple[Evaluation, ...]

    @property
    def eps(self) -> tuple[Any, ...]:
        """Numbers, or lists with one number per channel."""
        return tuple(e.result.threat["eps"] for e in self.evaluations)

    @property
    def accuracy(self) -> tuple[float, ...]:
        """Robust accuracy at each eps; the lower end of `bracket` if time ran out."""
        return tuple(e.accuracy for e in self.evaluations)

    @property
    def bracket(self) -> tuple[tuple[float, float], ...]:
        """(lower, upper) at each eps: counting undecided samples as broken, and as robust."""
        return tuple(e.bracket for e in self.evaluations)

    @property
    def clean_accuracy(self) -> float:
        return self.evaluations[0].clean_accuracy

    @property
    def flags(self) -> tuple[Flag, ...]:
        return tuple(dict.fromkeys(flag for e in self.evaluations for flag in e.flags))

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON: the curve, and the record of every evaluation."""
        first = self.evaluations[0].result
        return {
            "preset": first.preset,
            "norm": first.threat["norm"],
            "seed": first.seed,
            "samples": len(first),
            "clean_accuracy": self.clean_accuracy,
            "curve": [_point(e.result) for e in self.evaluations],
            "flags": [asdict(flag) for flag in self.flags],
            "evaluations": [e.to_dict() for e in self.evaluations],
        }

    def __str__(self) -> str:
        lines = [curve_table([e.result for e in self.evaluations])]
        lines += [f"note: {note}" for note in dict.fromkeys(n for e in self.evaluations for n in e.result.notes)]
        flags = []
        for eps, evaluation in zip(self.eps, self.evaluations, strict=True):
            flags += [f"flag at eps {show_eps(eps)}: {flag}" for flag in evaluation.flags]
        return "\n".join([*lines, *(flags or ["no flags"])])

    @staticmethod
    def joined(parts: list[Curve]) -> Curve:
        """The shards of several processes as one."""
        sizes = zip(*(part.evaluations for part in parts), strict=True)
        return Curve(tuple(Evaluation.joined(list(each)) for each in sizes))


def _point(result: AutoAttackResult) -> dict[str, Any]:
    lower, upper = result.bracket
    return {
        "eps": result.threat["eps"],
        "accuracy": result.accuracy,
        "standard_error": result.deviation,
        "lower": lower,
        "upper": upper,
        "undecided": int(result.undecided.sum()),
    }


def ascending(sizes: Sequence[Sizes]) -> tuple[Sizes, ...]:
    """The sizes, each once, smallest first; sizes that are not nested are refused."""
    if not isinstance(sizes, list | tuple) or not sizes:
        raise TypeError(f"evaluate: eps must be a list of sizes such as [1 / 255, 2 / 255], got {sizes!r}.")
    sizes = [from_numpy(size) for size in sizes]
    for size in sizes:
        if isinstance(size, Tensor) and size.dim():
            raise TypeError(
                "evaluate: each eps in the list must be a number, or a tuple with one for each channel; got a tensor "
                f"{tuple(size.shape)}."
            )
        check_eps(size)
    lines = {_line(size) for size in sizes}
    counts = {len(line) for line in lines} - {1}
    if len(counts) > 1:
        raise ValueError(f"evaluate: eps holds sizes for {sorted(counts)} channels; give one for each channel of x.")
    ordered = sorted(lines, key=lambda line: line * max(counts, default=1) if len(line) == 1 else line)
    for small, large in pairwise(ordered):
        if not _within(small, large):
            raise ValueError(
                f"evaluate: of the sizes {small} and {large} neither ball holds the other; give sizes that grow in "
                "every channel."
            )
    return tuple(line[0] if len(line) == 1 else line for line in ordered)


def place_of(size: Sizes) -> str:
    """The name of the folder of one size."""
    name = "_".join(f"{e:.10g}" for e in _line(size))
    return f"eps-{name}" if len(name) <= 60 else f"eps-{hashlib.sha256(name.encode()).hexdigest()[:16]}"


def _line(size: Sizes) -> tuple[float, ...]:
    line = size.item() if isinstance(size, Tensor) else size
    return tuple(map(float, line)) if isinstance(line, tuple) else (float(line),)


def _within(small: tuple[float, ...], large: tuple[float, ...]) -> bool:
    """Whether one ball contains the other; a single number applies to every channel."""
    count = max(len(small), len(large))
    small, large = (line * count if len(line) == 1 else line for line in (small, large))
    return all(a <= b for a, b in zip(small, large, strict=True))
