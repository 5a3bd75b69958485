"""Robustness of a model with real outputs: several attacks, the worst error of each sample, a tolerance.

Every attack runs on every sample that still keeps to the tolerance (without one, on all), and the worst point counts.
APGD climbs the squared error from random starts and pushes outputs up and down; a random search that sees no gradients
comes last, and doing better than all of them casts doubt on the gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from resolvent.attacks.apgd.attack import APGD
from resolvent.attacks.autoattack.attack import describe_threat, settings
from resolvent.attacks.autoattack.rounds import Listener
from resolvent.attacks.autoattack.store import Store, digest
from resolvent.attacks.autoattack.summary import show_bounds, show_eps, show_shape
from resolvent.attacks.checks import gather
from resolvent.attacks.draws import Draws
from resolvent.attacks.objective.gradient_probe import where_rows
from resolvent.attacks.regression.objective import check_targets, pushes, root_mean_square, squared_error
from resolvent.attacks.result import Attack
from resolvent.attacks.rows import fit_threat
from resolvent.attacks.segment_search import SegmentSearch
from resolvent.attacks.threat.channels import working_dtype
from resolvent.attacks.threat.threat import Threat
from resolvent.attacks.victim import Victim
from resolvent.usage.numbers import Counted, check_positive

RECORD = "record.json"
_MASKED = 1.05  # times the error found by gradients: beyond this the random search raises a flag


@dataclass(frozen=True)
class RegressionSettings(Counted):
    """Settings of an evaluation; `thorough=False` takes fewer steps and no restarts.

    Examples:
        >>> rv.attacks.RegressionSettings(thorough=False).thorough
        False
    """

    least: ClassVar[dict[str, int]] = {"seed": 0, "batch_size": 1, "samples": 1}
    seed: int = 0
    batch_size: int = 256
    samples: int | None = None
    thorough: bool = True


@dataclass(frozen=True, eq=False)
class RegressionEvaluation:
    """Errors are root mean squares over the outputs of a sample.

    Examples:
        >>> f, x = torch.nn.Linear(3, 1), torch.rand(4, 3)
        >>> found = rv.attacks.evaluate_regression(f, (x, torch.zeros(4, 1)), rv.Threat("l2", 0.1))
        >>> bool((found.error >= found.clean).all())
        True
    """

    clean: Tensor  # (n,) float64: error at x
    error: Tensor  # (n,) float64: the largest found
    x_adv: Tensor  # (n, ...)
    worst_by: tuple[str, ...]  # the attack that found it
    table: dict[str, float]  # mean error, or share within the tolerance, after each attack
    tolerance: float | None
    threat: dict[str, Any]
    attacks: tuple[dict[str, Any], ...]
    flags: tuple[str, ...]

    @property
    def within(self) -> float | None:
        """The share of samples whose error stayed within the tolerance."""
        return None if self.tolerance is None else float((self.error <= self.tolerance).double().mean())

    def to_dict(self) -> dict[str, Any]:
        return {
            "tolerance": self.tolerance, "threat": self.threat, "attacks": list(self.attacks), "table": self.table,
            "samples": len(self.clean), "clean_error": float(self.clean.mean()), "error": float(self.error.mean()),
            "within": self.within, "flags": list(self.flags), "errors": self.error.tolist(),
            "clean_errors": self.clean.tolist(), "worst_by": list(self.worst_by),
        }  # fmt: skip

    def __str__(self) -> str:
        threat = self.threat
        lines = [
            f"real targets: {threat['norm']}, eps {show_eps(threat['eps'])}{show_shape(threat)}, "
            f"{show_bounds(threat['bounds'])}, {len(self.clean)} samples"
            + ("" if self.tolerance is None else f", tolerance {self.tolerance:g}")
        ]
        width = max(map(len, self.table))
        for name, value in self.table.items():
            message = f"mean error {value:.6g}" if self.tolerance is None else f"{value:7.2%} within"
            lines.append(f"  {name:<{width}}  {message}")
        lines.append(f"mean error {float(self.clean.mean()):.6g} clean, {float(self.error.mean()):.6g} at worst")
        return "\n".join([*lines, *(f"flag {flag}" for flag in self.flags)])


def evaluate_regression(
    f: Callable[..., Tensor],
    data: Any,
    threat: Threat,
    tolerance: float | None = None,
    *,
    settings: RegressionSettings | None = None,
    folder: str | Path | None = None,
    listener: Listener | None = None,
) -> RegressionEvaluation:
    """Attack f on data (x, y), (x, y, lengths), or a loader of such; y real, of the outputs' shape.

    `folder` stores every finished attack, so that a killed evaluation resumes there, and record.json at the end.

    Examples:
        >>> f, x, settings = torch.nn.Linear(3, 1), torch.rand(4, 3), rv.attacks.RegressionSettings(thorough=False)
        >>> found = rv.attacks.evaluate_regression(f, (x, f(x).detach()), rv.Threat("l2", 0.1), settings=settings)
        >>> found.error.shape
        torch.Size([4])
    """
    how = settings or RegressionSettings()
    if tolerance is not None:
        check_positive("evaluate_regression", tolerance=tolerance)
    x, y, lengths = gather("evaluate_regression", data, how.samples)
    if not isinstance(y, Tensor) or not y.is_floating_point():
        raise TypeError(f"evaluate_regression: y must hold real targets, got {y.dtype}; classes go to evaluate.")
    victim, x = Victim(f, how.batch_size), x.detach().to(working_dtype(x))
    job = _Job(victim, x, y.detach(), lengths, fit_threat(threat, x, lengths), how, tolerance)
    return job.run(describe_threat(threat), folder, listener)


def regression_attacks(outputs: int, thorough: bool) -> tuple[Attack, ...]:
    """APGD on the squared error, pushes up and down, and the random search."""
    steps, restarts = (100, 5) if thorough else (30, 1)
    climbs = tuple(APGD(push, steps=steps, stop=False) for push in pushes(outputs))
    search = SegmentSearch(squared_error, 1000 if thorough else 200)
    return (APGD(squared_error, steps=steps, restarts=restarts, stop=False), *climbs, search)


@dataclass(frozen=True, eq=False)
class _Job:
    victim: Victim
    x: Tensor
    y: Tensor
    lengths: Tensor | None
    threat: Threat  # fitted to x
    how: RegressionSettings
    tolerance: float | None

    def run(
        self, threat_values: dict[str, Any], folder: str | Path | None, listener: Listener | None
    ) -> RegressionEvaluation:
        with self.victim.attacked():
            output = self.victim.forward(self.x, self.lengths)
            check_targets("evaluate_regression", output, self.y)
            attacks = regression_attacks(output[0].numel(), self.how.thorough)
            store = None if folder is None else Store(folder, self._config(attacks, threat_values))
            clean = root_mean_square(output, self.y)
            worst, x_adv, by = clean.clone(), self.x.clone(), torch.zeros(len(clean), dtype=torch.int64)
            names = ["clean", *(attack.name for attack in attacks)]
            table, blind = {"clean": self._share(worst)}, torch.zeros_like(clean)
            for number, attack in enumerate(attacks, 1):
                points, error = self._found(number, attack, worst, store, listener)
                if number == len(attacks):
                    blind = error / worst.clamp_min(1e-300)
                better = error > worst
                worst, x_adv = torch.where(better, error, worst), where_rows(better, points, x_adv)
                by = torch.where(better.cpu(), number, by)
                table[attack.name] = self._share(worst)
        flags = _flag_masking(blind)
        found = RegressionEvaluation(
            clean.cpu(), worst.cpu(), x_adv, tuple(names[i] for i in by.tolist()), table, self.tolerance,
            threat_values,
            settings(attacks), flags,
        )  # fmt: skip
        if store is not None:
            store.write_json(RECORD, found.to_dict())
        return found

    def _found(
        self, number: int, attack: Attack, worst: Tensor, store: Store | None, listener: Listener | None
    ) -> tuple[Tensor, Tensor]:
        """Points and errors of one attack; samples beyond the tolerance keep x and their error."""
        open_ = torch.ones_like(worst, dtype=torch.bool) if self.tolerance is None else worst <= self.tolerance
        rows = open_.nonzero().squeeze(1)
        points, error = self.x.clone(), torch.full_like(worst, -math.inf)
        held = None if store is None else store.load(number, attack.name, 0)
        if held is not None and torch.equal(held[0]["rows"].to(rows.device), rows):
            points[rows] = held[0]["x_adv"].to(points)
        elif len(rows):
            done = 0
            for part in rows.split(self.how.batch_size):
                own = {} if self.lengths is None else {"lengths": self.lengths[part]}
                draws = Draws.of(self.x, self.how.seed).select(part)
                found = attack(self.victim, self.x[part], self.y[part], self.threat.select(part), draws=draws, **own)
                points[part] = found.x_adv.to(points.dtype)
                done += len(part)
                if listener is not None:
                    listener(attack.name, done, len(rows))
            if store is not None:
                store.save(number, attack.name, 0, {"rows": rows, "x_adv": points[rows]}, [])
        self._require_inside(attack.name, points)
        if len(rows):
            lengths = None if self.lengths is None else self.lengths[rows]
            error[rows] = root_mean_square(self.victim.forward(points[rows], lengths), self.y[rows])
        return points, torch.where(torch.isfinite(error), error, -math.inf)

    def _require_inside(self, name: str, points: Tensor) -> None:
        outside = ~self.threat.contains(points, self.x)
        if bool(outside.any()):
            raise RuntimeError(f"{name} returned {int(outside.sum())} points that break the threat.")

    def _share(self, worst: Tensor) -> float:
        return float(worst.mean()) if self.tolerance is None else float((worst <= self.tolerance).double().mean())

    def _config(self, attacks: tuple[Attack, ...], threat_values: dict[str, Any]) -> dict[str, Any]:
        held = {"x": digest(self.x), "y": digest(self.y), "threat": threat_values, "tolerance": self.tolerance}
        lengths = {} if self.lengths is None else {"lengths": digest(self.lengths)}
        return held | lengths | {"seed": self.how.seed, "attacks": list(settings(attacks)), "task": "regression"}


def _flag_masking(blind: Tensor) -> tuple[str, ...]:
    share = float((blind > _MASKED).double().mean())
    if share <= 0.05:
        return ()
    return (
        f"masked gradients: a random search without gradients found an error {_MASKED:g} times as large or more for "
        f"{share:.0%} of the samples",
    )
