"""How a model does on corrupted data: each corruption in five severities, and one number over all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from resolvent.attacks.checks import gather
from resolvent.attacks.corruptions.corruption import CORRUPTIONS, SEVERITIES, Corruption, Scene
from resolvent.attacks.draws import Draws
from resolvent.attacks.regression.objective import root_mean_square
from resolvent.attacks.threat.channels import spread
from resolvent.attacks.threat.checks import check_bounds
from resolvent.attacks.victim import Victim
from resolvent.usage.numbers import Counted, check_count

SILENT = ("channels",)  # with one channel nothing would be left


@dataclass(frozen=True)
class CorruptionSettings(Counted):
    """the seed and a sample's index determine its corruption; `only` names corruptions, default all.

    Examples:
        >>> rv.attacks.CorruptionSettings(only=("noise",)).only
        ('noise',)
    """

    least: ClassVar[dict[str, int]] = {"seed": 0, "batch_size": 1, "samples": 1}
    seed: int = 0
    batch_size: int = 256
    samples: int | None = None
    only: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        known = [each.name for each in CORRUPTIONS]
        wrong = [name for name in self.only if name not in known]
        if wrong:
            raise ValueError(f"CorruptionSettings: known corruptions are {', '.join(known)}; got {wrong[0]!r}.")

    def chosen(self, channels: int) -> tuple[Corruption, ...]:
        """The selected ones; with a single channel, those that silence channels only if named."""
        if self.only:
            return tuple(each for each in CORRUPTIONS if each.name in self.only)
        return tuple(each for each in CORRUPTIONS if channels > 1 or each.name not in SILENT)


@dataclass(frozen=True)
class CorruptionReport:
    """Errors: the share of misclassified samples, or for real targets the mean of the samples' root mean square errors.

    Examples:
        >>> rv.attacks.CorruptionReport(0.1, {"noise": (0.1, 0.2)}, samples=10, regression=False).mean_error
        0.15000000000000002
    """

    clean: float
    errors: dict[str, tuple[float, ...]]  # by name: one for each severity
    samples: int
    regression: bool

    @property
    def mean_error(self) -> float:
        """Mean corruption error."""
        return _mean([_mean(row) for row in self.errors.values()])

    @property
    def by_severity(self) -> tuple[float, ...]:
        """The mean over corruptions at each severity."""
        return tuple(_mean(column) for column in zip(*self.errors.values(), strict=True))

    def relative_error(self, baseline: CorruptionReport) -> float:
        """Mean over corruptions of this model's error over the other's, which must be positive for each."""
        if set(self.errors) != set(baseline.errors):
            raise ValueError("relative_error: both reports must be of the same corruptions.")
        silent = [name for name, row in baseline.errors.items() if not sum(row)]
        if silent:
            raise ValueError(f"relative_error: the baseline makes no error under {silent[0]}: nothing to divide by.")
        return _mean([sum(row) / sum(baseline.errors[name]) for name, row in self.errors.items()])

    def to_dict(self) -> dict[str, Any]:
        return {
            "clean": self.clean, "errors": {name: list(row) for name, row in self.errors.items()},
            "mean_error": self.mean_error, "by_severity": list(self.by_severity), "samples": self.samples,
            "regression": self.regression,
        }  # fmt: skip

    def __str__(self) -> str:
        width = max(map(len, self.errors))
        head = "  ".join(f"{s:>8}" for s in SEVERITIES)
        lines = [f"{self.samples} samples, clean error {self._format(self.clean)}"]
        lines.append(f"  {'':<{width}}  {head}      mean")
        for name, row in self.errors.items():
            cells = "  ".join(f"{self._format(v):>8}" for v in (*row, _mean(row)))
            lines.append(f"  {name:<{width}}  {cells}")
        return "\n".join([*lines, f"mean corruption error {self._format(self.mean_error)}"])

    def _format(self, value: float) -> str:
        return f"{value:.4g}" if self.regression else f"{value:.1%}"


def evaluate_corruptions(
    f: Callable[..., Tensor],
    data: Any,
    *,
    bounds: Any = None,
    flags: int = 0,
    settings: CorruptionSettings | None = None,
    listener: Callable[[str, int, int], None] | None = None,
) -> CorruptionReport:
    """f on data (x, y) or (x, y, lengths), or a loader of such, with x (n, l, c) real; values are kept within `bounds`.

    flags   this many last channels are missing-value flags, which are not corrupted

    Examples:
        >>> f = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(8, 2))
        >>> data = torch.rand(4, 8, 1), torch.tensor([0, 1, 0, 1])
        >>> 0 <= rv.attacks.evaluate_corruptions(f, data).mean_error <= 1
        True
    """
    how = settings or CorruptionSettings()
    check_bounds(bounds)
    x, y, lengths = gather("evaluate_corruptions", data, how.samples)
    if not x.is_floating_point() or x.dim() != 3 or not x.numel():
        raise ValueError(
            f"evaluate_corruptions: expected real sequences x (n, l, c), got {x.dtype} {tuple(x.shape)}; tokens "
            "have no noise: see substitute."
        )
    if not bool(torch.isfinite(x).all()):
        raise ValueError("evaluate_corruptions: x holds NaN or infinity; clean the input first.")
    wide = x if x.dtype in (torch.float32, torch.float64) else x.float()  # half types lack quantiles and precision
    check_count("evaluate_corruptions", 0, flags=flags)
    real = x.shape[2] - flags
    if real < 1:
        raise ValueError(f"evaluate_corruptions: {flags} of {x.shape[2]} channels are flags: nothing is left.")
    wide, still = wide[..., :real], x[..., real:]
    limits = bounds if bounds is None or not flags else tuple(_cut(bound, real) for bound in bounds)
    mean, deviation = _statistics(wide, lengths)
    victim, errors = Victim(f, how.batch_size), {}
    chosen = how.chosen(real)
    with victim.attacked():
        clean = _error(victim, x, y, lengths)
        for number, each in enumerate(chosen):
            row = []
            for severity, size in zip(SEVERITIES, each.sizes, strict=True):
                draws = Draws.of(x, how.seed).fold(each.name).fold(severity)
                own = torch.full((len(x),), x.shape[1], device=x.device) if lengths is None else lengths
                moved = corrupt(Scene(wide, own, mean, deviation, draws), each, size, limits)
                row.append(_error(victim, torch.cat([moved.to(x.dtype), still], 2), y, lengths))
                if listener is not None:
                    listener("corruptions", number * len(SEVERITIES) + severity, len(chosen) * len(SEVERITIES))
            errors[each.name] = tuple(row)
    return CorruptionReport(clean, errors, len(x), y.is_floating_point())


def corrupt(scene: Scene, how: Corruption, size: float, bounds: Any = None) -> Tensor:
    """The samples corrupted, within bounds and with unchanged padding: (b, l, c)."""
    x = scene.x
    moved = how.run(scene, size).to(x.dtype)
    if bounds is not None:
        low, high = (spread(bound, x, x.dtype) for bound in bounds)
        moved = moved.clamp(torch.minimum(low, x), torch.maximum(high, x))
    inside = (scene.times < scene.lengths[:, None])[:, :, None]
    return torch.where(inside, moved, x)


def _statistics(x: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
    """Mean and deviation of each channel over all valid steps: (c,) each."""
    if lengths is None:
        held = x.reshape(-1, x.shape[2])
    else:
        held = x[torch.arange(x.shape[1], device=x.device) < lengths[:, None]]
    return held.mean(0), held.std(0, unbiased=False)


def _error(victim: Victim, x: Tensor, y: Tensor, lengths: Tensor | None) -> float:
    output = victim.forward(x, lengths)
    if y.is_floating_point():
        return float(root_mean_square(output, y).mean())
    if output.dim() != 2:
        raise ValueError(f"evaluate_corruptions: expected logits (n, classes), got {tuple(output.shape)}.")
    wrong = (output > 0).squeeze(1).long() != y if output.shape[1] == 1 else output.argmax(1) != y
    return float(wrong.double().mean())


def _cut(bound: Any, real: int) -> Any:
    """The bounds of the first channels; a common bound is unchanged."""
    if isinstance(bound, Tensor) and bound.dim() and bound.shape[-1] > 1:
        return bound[..., :real]
    return bound[:real] if isinstance(bound, tuple) else bound


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
