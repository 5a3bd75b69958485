"""A result of AutoAttack as a few lines of text."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from resolvent.attacks.autoattack.flags import Flag
    from resolvent.attacks.autoattack.outcome import AutoAttackResult


def summary(result: AutoAttackResult, flags: tuple[Flag, ...]) -> str:
    """Accuracy after each attack with its time, the cost, the flags."""
    threat, bounds = result.threat, show_bounds(result.threat["bounds"])
    lines = [
        f"AutoAttack {result.preset}: {threat['norm']}, eps {show_eps(threat['eps'])}{show_shape(threat)}, {bounds}, "
        f"{len(result)} samples, seed {result.seed}"
    ]
    details = ["", *(_settings(attack) for attack in result.attacks)]
    width = max(len(name) for name in result.stages)
    for (name, accuracy), more in zip(result.table.items(), details, strict=True):
        lines.append(f"  {name:<{width}}  {_stage(result, name, accuracy)}   {more}".rstrip())
    lines.append(verdict(result))
    lines.append(
        f"{int(result.queries.sum()):,} forward and {int(result.gradients.sum()):,} backward passes of one sample; "
        f"largest perturbation {_short(float(result.norm.max()))}"
    )
    lines += [f"note: {note}" for note in result.notes]
    lines += [f"flag {flag}" for flag in flags] or ["no flags"]
    return "\n".join(lines)


def verdict(result: AutoAttackResult) -> str:
    """One number with its standard error, or the bracket left by a time limit."""
    low, high = result.bracket
    open_ = int(result.undecided.sum())
    if not open_:
        return f"robust accuracy {100 * low:.2f} % (standard error {100 * result.deviation:.2f})"
    return (
        f"robust accuracy between {100 * low:.2f} % and {100 * high:.2f} %: time ran out with {open_} of {len(result)} "
        "samples undecided (not broken so far, attacks still to come)"
    )


def curve_table(results: Sequence[AutoAttackResult]) -> str:
    """A line per size: the accuracy with its standard error, or the bracket if samples are undecided."""
    first = results[0]
    head = (
        f"AutoAttack {first.preset}: {first.threat['norm']}{show_shape(first.threat)}, "
        f"{show_bounds(first.threat['bounds'])}, "
        f"{len(first)} samples, seed {first.seed}; clean accuracy {100 * first.clean_accuracy:.2f} %"
    )
    names = [show_eps(result.threat["eps"]) for result in results]
    width = max(len(name) for name in ("eps", *names))
    lines = [head, f"  {'eps':<{width}}  robust accuracy"]
    for name, result in zip(names, results, strict=True):
        lines.append(f"  {name:<{width}}  {_point(result)}")
    return "\n".join(lines)


def _point(result: AutoAttackResult) -> str:
    low, high = result.bracket
    if bool(result.undecided.any()):
        return f"{100 * low:6.2f} to {100 * high:.2f} %   {int(result.undecided.sum())} samples undecided"
    return f"{100 * low:6.2f} %   standard error {100 * result.deviation:.2f}"


def _stage(result: AutoAttackResult, name: str, accuracy: float) -> str:
    """The accuracy after an attack; for one cut off by time, the number of samples attacked."""
    if name == result.stages[0]:
        return f"{100 * accuracy:6.2f} %"
    had, of = result.done.get(name, (0, int(result.undecided.sum())))
    if had == of:
        return f"{100 * accuracy:6.2f} %"
    return f"{'not run' if not had else f'on {had} of {of}':>8}"


def show_bounds(bounds: Any) -> str:
    return "no bounds" if bounds is None else "bounds {} to {}".format(*map(_format_value, bounds))


def show_shape(threat: dict[str, Any]) -> str:
    """A budget of time steps or a band, if there is one."""
    if threat.get("steps") is not None:
        return f", {threat['steps']} time steps"
    band = threat.get("band")
    if band is None:
        return ""
    whole = f", band {_format_value(band).replace(',', ' to ')} cycles a step"
    return whole if isinstance(band, list) else ", frequency mask"


def show_eps(eps: Any) -> str:
    """0.0313725 as "8/255", as entered; several channels are separated by commas."""
    near = Fraction(eps).limit_denominator(255) if isinstance(eps, float) else Fraction(0)
    return f"{near} ({_short(eps)})" if near.denominator == 255 and float(near) == eps else _format_value(eps)


# settings irrelevant to an attack's strength; `result.attacks` and records have them all
_TUNING = (
    "name", "class", "at_once", "stop", "rho", "momentum", "larger_eps", "passes", "minimal", "alpha_max", "eta",
    "beta", "upstream", "p_init", "loss", "stretch", "form",
)  # fmt: skip
_USUAL = {"restarts": 1, "targets": 0}


def _settings(attack: dict[str, Any]) -> str:
    shown = {k: v for k, v in attack.items() if k not in _TUNING and v is not None and v != _USUAL.get(k)}
    return ", ".join(f"{key} {_short(value)}" for key, value in shown.items())


def _format_value(value: Any) -> str:
    return ",".join(map(_short, value)) if isinstance(value, list | tuple) else _short(value)


def _short(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
