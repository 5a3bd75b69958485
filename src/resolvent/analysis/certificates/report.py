"""A certificate as a record: certified lower bound <= true robust accuracy <= the attack's upper bound.

The two bounds come from different code, so each checks the other: a sample certified at eps and broken by an
attack within eps is a contradiction, and no accuracy is reported then.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from resolvent.analysis.certificates.certificate import NORMS, Certificate, Norm, certify
from resolvent.analysis.certificates.gain import Gain, certified_gain
from resolvent.analysis.certificates.smoothing import SmoothingSettings, smooth
from resolvent.attacks.victim import Victim
from resolvent.ssm.part import Part
from resolvent.usage.numbers import check_choice, check_not_negative

NAMED = 5  # samples named in an error message


class Crossed(ValueError):
    """A certified sample was broken by an attack: one of the two is wrong.

    Examples:
        >>> issubclass(rv.analysis.Crossed, Exception)
        True
    """


@dataclass(frozen=True)
class Sandwich:
    """certified <= true robust accuracy <= attacked, at eps in `norm`; attacked is None if no attack was run.

    Examples:
        >>> held = torch.tensor([True, False])
        >>> found = rv.analysis.check_sandwich(held, torch.tensor([True, True]), torch.tensor([True, True]), eps=0.1)
        >>> found.certified, found.attacked
        (0.5, 1.0)
    """

    norm: str
    eps: float
    clean: float
    certified: float
    attacked: float | None
    samples: int

    def __str__(self) -> str:
        above = (
            f"{self.clean:.1%} (clean; no attack was run)" if self.attacked is None else f"{self.attacked:.1%} (attack)"
        )
        return f"{self.norm} eps {self.eps:g}: {self.certified:.1%} (certified) <= robust accuracy <= {above}"

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def check_sandwich(
    certified: Tensor, robust: Tensor | None, correct: Tensor, *, norm: str = "l2", eps: float = math.nan
) -> Sandwich:
    """The two bounds, (b,) bool each: certified at eps, and still correct after the attack within eps.

    A sample certified but broken, or certified but misclassified, raises `Crossed`, which names it.

    Examples:
        >>> held, robust = torch.tensor([True, False]), torch.tensor([True, True])
        >>> rv.analysis.check_sandwich(held, robust, robust).certified
        0.5
    """
    flags = {"certified": certified, "correct": correct} | ({} if robust is None else {"robust": robust})
    for name, flag in flags.items():
        if flag.dtype != torch.bool or flag.shape != certified.shape or flag.dim() != 1:
            raise TypeError(f"check_sandwich: {name} must be bool (b,), got {flag.dtype} {tuple(flag.shape)}.")
    flags = {name: flag.cpu() for name, flag in flags.items()}
    for name, words in (("robust", f"broken by the attack within {eps:g}"), ("correct", "misclassified as they are")):
        if name in flags:
            _check_uncrossed(flags["certified"] & ~flags[name], words, norm, eps)
    means = {name: float(flag.double().mean()) for name, flag in flags.items()}
    return Sandwich(norm, eps, means["correct"], means["certified"], means.get("robust"), len(certified))


@dataclass(frozen=True)
class CertifySettings:
    """Settings of a certificate report.

    grid       of the certified-accuracy curve; default 50 points up to the largest radius
    smoothing  certify the smoothed model as well (L2 only); it is another classifier, so the attack on f is not
               compared with it

    Examples:
        >>> rv.analysis.CertifySettings(eps=0.5).norm
        'l2'
    """

    eps: float
    norm: Norm = "l2"
    grid: tuple[float, ...] | None = None
    smoothing: SmoothingSettings | None = None

    def __post_init__(self) -> None:
        check_not_negative("CertifySettings", eps=self.eps)
        check_choice("CertifySettings", "norm", self.norm, NORMS)
        if self.smoothing is not None and self.norm != "l2":
            raise ValueError(f"CertifySettings: smoothing with normal noise certifies l2, not {self.norm!r}.")


def certificate_report(
    f: Callable[..., Tensor] | Victim,
    parts: Sequence[Part] | Gain,
    x: Tensor,
    y: Tensor,
    settings: CertifySettings,
    *,
    robust: Tensor | None = None,
    lengths: Tensor | None = None,
) -> dict[str, Any]:
    """The report of `resolvent certify`, as plain data.

    parts    the model's components, e.g. model.gain_parts(length), or a result of certified_gain
    robust   (b,) bool from an attack within eps in the same norm, e.g. autoattack(...).robust
    lengths  (b,) of padded x (b, l, ...): f is called as f(x, lengths)

    A model without a finite bound gives {"status": "refused", "reason": ..., ...} and no radius.

    Examples:
        >>> f = torch.nn.Linear(3, 2)
        >>> parts = [rv.ssm.Part("map", "linear", float(torch.linalg.matrix_norm(f.weight.detach(), 2)))]
        >>> settings = rv.analysis.CertifySettings(eps=0.1)
        >>> x, y = torch.randn(4, 3), torch.zeros(4, dtype=torch.long)
        >>> found = rv.analysis.certificate_report(f, parts, x, y, settings)
        >>> "certified" in str(found)
        True
    """
    gain = parts if isinstance(parts, Gain) else certified_gain(parts)
    norm, eps = settings.norm, settings.eps
    record: dict[str, Any] = {"norm": norm, "eps": eps, "samples": len(y), "gain": gain.as_dict()}
    if settings.smoothing is not None:
        record["smoothing"] = _report_smoothing(f, x, y, settings.smoothing, eps, lengths)
    if gain.value is None:
        return record | {"status": "refused", "reason": f"no finite Lipschitz constant: {gain.explanation}"}
    found = certify(f, x, y, gain, norm=norm, lengths=lengths)
    bounds = check_sandwich(found.certified(eps), robust, found.correct, norm=norm, eps=eps)
    points = list(settings.grid or default_grid(found))
    return record | {
        "status": "certified", "sandwich": bounds.as_dict(), "text": str(bounds), "certificate": found.as_dict(),
        "curve": {"eps": points, "certified_accuracy": found.curve(points)},
    }  # fmt: skip


def default_grid(found: Certificate, points: int = 50) -> list[float]:
    """From 0 to the largest certified radius."""
    top = float(found.radius.max()) if found.radius.numel() else 0.0
    return [top * (i / (points - 1)) for i in range(points)] if top > 0 else [0.0]


def _report_smoothing(
    f: Callable[..., Tensor] | Victim,
    x: Tensor,
    y: Tensor,
    settings: SmoothingSettings,
    eps: float,
    lengths: Tensor | None,
) -> dict[str, Any]:
    found = smooth(f, x, y, settings, lengths=lengths)
    return found.as_dict() | {"eps": eps, "certified": float(found.certified(eps).double().mean())}


def _check_uncrossed(crossed: Tensor, words: str, norm: str, eps: float) -> None:
    if not bool(crossed.any()):
        return
    which = crossed.nonzero()[:, 0].tolist()
    more = f" and {len(which) - NAMED} more" if len(which) > NAMED else ""
    raise Crossed(
        f"check_sandwich: {len(which)} samples are certified at {norm} eps {eps:g} and {words}: "
        f"{', '.join(map(str, which[:NAMED]))}{more}. One side is wrong: look at the attack's eps and norm, and at the "
        "Lipschitz constant; nothing is reported."
    )
