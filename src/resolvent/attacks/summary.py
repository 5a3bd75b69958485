"""A result of AutoAttack as a few lines of text."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from resolvent.attacks.autoattack import AutoAttackResult
    from resolvent.attacks.flags import Flag


def summary(result: AutoAttackResult, flags: tuple[Flag, ...]) -> str:
    """Accuracy after each attack with its settings, the cost, the flags."""
    threat = result.threat
    bounds = "no bounds" if threat["bounds"] is None else "bounds {} to {}".format(*threat["bounds"])
    lines = [
        f"AutoAttack {result.preset}: {threat['norm']}, eps {_fraction(threat['eps'])}, {bounds}, "
        f"{len(result)} samples, seed {result.seed}"
    ]
    told = ["", *(_settings(attack) for attack in result.attacks)]
    width = max(len(name) for name in result.stages)
    for (name, accuracy), more in zip(result.table.items(), told, strict=True):
        lines.append(f"  {name:<{width}}  {100 * accuracy:6.2f} %   {more}".rstrip())
    lines.append(f"robust accuracy {100 * result.accuracy:.2f} % (standard error {100 * result.deviation:.2f})")
    lines.append(
        f"{int(result.queries.sum()):,} forward and {int(result.gradients.sum()):,} backward passes of one sample; "
        f"largest perturbation {_short(float(result.norm.max()))}"
    )
    lines += [f"flag {flag}" for flag in flags] or ["no flags"]
    return "\n".join(lines)


def _settings(attack: dict[str, Any]) -> str:
    shown = {k: v for k, v in attack.items() if k not in ("name", "class") and v is not None}
    return ", ".join(f"{key} {_short(value)}" for key, value in shown.items())


def _fraction(eps: Any) -> str:
    """0.0313725 as "8/255", which is what was meant."""
    near = Fraction(eps).limit_denominator(255) if isinstance(eps, float) else Fraction(0)
    return f"{near} ({_short(eps)})" if near.denominator == 255 and float(near) == eps else _short(eps)


def _short(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
