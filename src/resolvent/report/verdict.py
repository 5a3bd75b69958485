"""Claims judged by evidence: reproduced, partly, not reproduced, or not run; with seeds, mean and deviation.

A criterion holds if the mean over seeds is as claimed. `above` and `below` require more from three seeds on:
a difference of two standard errors. A claim is reproduced if every criterion holds, not reproduced if none
does, and partly if some do, some have not been run, or a seed diverged.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from resolvent.report.average import with_rows
from resolvent.report.claim import Claim, Criterion
from resolvent.report.evidence import Evidence

Outcome = Literal["reproduced", "partly", "not reproduced", "not run"]
OUTCOMES: tuple[Outcome, ...] = ("reproduced", "partly", "not reproduced", "not run")
ERRORS = 2.0  # standard errors for a significant sign


@dataclass(frozen=True)
class Finding:
    """One criterion with the numbers of its runs, one per seed."""

    test: Criterion
    values: tuple[float, ...]
    passed: bool
    diverged: int = 0  # number of diverged runs
    sources: tuple[str, ...] = ()  # files of all runs used, including subtracted and diverged ones

    @property
    def mean(self) -> float:
        return statistics.mean(self.values)

    @property
    def deviation(self) -> float | None:
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    def __str__(self) -> str:
        spread = "" if self.deviation is None else f" ± {_short(self.deviation)}"
        lost = f" ({self.diverged} diverged)" if self.diverged else ""
        if not self.values:
            return f"{self.test.label}: none{lost}"
        return f"{self.test.label}: {_short(self.mean)}{spread}{self.test.unit}{lost}"


@dataclass(frozen=True)
class Verdict:
    """A claim, its findings, and the verdict."""

    claim: Claim
    outcome: Outcome
    findings: tuple[Finding, ...]

    @property
    def seeds(self) -> int:
        """The fewest seeds of any criterion, including diverged ones; criteria without runs do not count."""
        return min((len(found.values) + found.diverged for found in self.findings), default=0)

    @property
    def ours(self) -> str:
        return ", ".join(map(str, self.findings))


def judge(claims: Sequence[Claim], evidence: Sequence[Evidence]) -> list[Verdict]:
    """Every claim with its verdict, in the order of the claims."""
    whole = with_rows(evidence)
    return [_judge(claim, whole) for claim in claims]


def _judge(claim: Claim, evidence: Sequence[Evidence]) -> Verdict:
    findings = [found for test in claim.tests if (found := _test_criterion(test, evidence)) is not None]
    right = sum(found.passed for found in findings)
    outcome: Outcome = "partly"
    if not findings:
        outcome = "not run"
    elif right == len(claim.tests) and not any(found.diverged for found in findings):
        outcome = "reproduced"
    elif right == 0:
        outcome = "not reproduced"
    return Verdict(claim, outcome, tuple(findings))


def _test_criterion(test: Criterion, evidence: Sequence[Evidence]) -> Finding | None:
    if test.epochs is not None:
        evidence = [e for e in evidence if e.values.get("epochs", test.epochs) == test.epochs]
    held = _collect_measured(evidence, test.recipe, test.tags, test.measure)
    if test.minus is not None or test.minus_measure is not None:
        tags, names = test.minus or test.tags, test.minus_measure or test.measure
        other = _collect_measured(evidence, test.recipe, tags, names)
        held = {seed: (held[seed][0] - less, f"{held[seed][1]} {file}")
                for seed, (less, file) in other.items() if seed in held}  # fmt: skip
    lost = [e for e in evidence if e.recipe == test.recipe and e.tags == test.tags and e.values.get("diverged") == 1]
    if not held and not lost:
        return None
    values = tuple(value for value, _ in held.values())
    files = (*(file for _, file in held.values()), *(e.source for e in lost))
    return Finding(test, values, bool(values) and _passes(test, values), len(lost), files)


def _collect_measured(
    evidence: Sequence[Evidence], recipe: str, tags: tuple[str, ...], names: tuple[str, ...]
) -> dict[int, tuple[float, str]]:
    """Number and file by seed, of runs with exactly these tags."""
    found: dict[int, tuple[float, str]] = {}
    for held in evidence:
        if held.recipe == recipe and held.tags == tags:
            value = next((held.values[name] for name in names if name in held.values), None)
            if value is not None:
                found[held.seed] = (value, held.source)
    return dict(sorted(found.items()))


def _passes(test: Criterion, values: tuple[float, ...]) -> bool:
    mean = statistics.mean(values)
    if test.near is not None:
        return abs(mean - test.near) <= test.within
    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 2 else 0.0
    if test.above is not None:
        return mean - ERRORS * error > test.above
    assert test.below is not None
    return mean + ERRORS * error < test.below


def _short(value: float) -> str:
    return f"{value:.1f}" if 10 <= abs(value) < 1e5 else f"{value:.3g}"
