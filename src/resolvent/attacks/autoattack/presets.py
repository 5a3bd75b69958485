"""Lists of attacks under the names used in papers; each is a function from the norm to a tuple of settings.

One name, two lists: the paper of 2020 and many that follow it write "APGD-CE, APGD-DLR, FAB, Square"; the released code
runs the targeted list below as `standard`. Both are here, and a result always prints the exact list.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

from resolvent.attacks.apgd.attack import APGD
from resolvent.attacks.fab.attack import FAB
from resolvent.attacks.hop_skip_jump.attack import HopSkipJump
from resolvent.attacks.objective.objective import cross_entropy, dlr, margin, targeted_dlr
from resolvent.attacks.pgd import PGD
from resolvent.attacks.result import Attack
from resolvent.attacks.sparse_steps import SparseSteps
from resolvent.attacks.square.attack import Square
from resolvent.attacks.threat.threat import Norm, Threat
from resolvent.usage.numbers import check_choice

PresetName = Literal["standard", "qi2024", "plus", "rand", "fast", "decision"]
Preset = PresetName | str | tuple[Attack, ...]


def standard(norm: Norm = "linf") -> tuple[Attack, ...]:
    """AutoAttack as released: 100 iterations, 9 targets, 5000 queries; L1: APGD-CE 5 restarts, APGD-T 5 targets."""
    restarts, targets = (5, 5) if norm == "l1" else (1, 9)
    return (
        APGD(cross_entropy, restarts=restarts),
        APGD(targeted_dlr, targets=targets),
        FAB(targets=9),
        Square(n_queries=5000, stretch=False),
    )


def qi2024(norm: Norm = "linf") -> tuple[Attack, ...]:
    """The untargeted list of Croce & Hein 2020, which Qi et al. 2024 name: APGD-CE, APGD-DLR, FAB, Square."""
    restarts = 5 if norm == "l1" else 1
    return (
        APGD(cross_entropy, restarts=restarts),
        APGD(dlr, restarts=restarts),
        FAB(),
        Square(n_queries=5000, stretch=False),
    )


def plus(norm: Norm = "linf") -> tuple[Attack, ...]:
    """AutoAttack+: untargeted attacks with 5 restarts, then Square, then the targeted ones; the same for every norm."""
    return (
        APGD(cross_entropy, restarts=5),
        APGD(dlr, restarts=5),
        FAB(restarts=5),
        Square(n_queries=5000, stretch=False),
        APGD(targeted_dlr, targets=9),
        FAB(targets=9),
    )


def rand(norm: Norm = "linf") -> tuple[Attack, ...]:
    """For models with random outputs: APGD-CE and APGD-DLR with gradients averaged over 20 passes."""
    return (APGD(cross_entropy, passes=20), APGD(dlr, passes=20))


def fast(norm: Norm = "linf") -> tuple[Attack, ...]:
    """For a laptop: APGD-CE and APGD-T (3 targets) with 50 iterations, Square with 500 queries.

    About 700 forward passes for a robust sample instead of 7,900. It drops FAB-T, six of nine targets, half of the
    iterations and nine tenths of the queries: its accuracy is an upper bound on that of `standard`, and the flag for
    masked gradients based on Square is weaker.
    """
    return (APGD(cross_entropy, steps=50), APGD(targeted_dlr, steps=50, targets=3), Square(n_queries=500))


def decision(norm: Norm = "linf") -> tuple[Attack, ...]:
    """For models that return only a class: HopSkipJump."""
    return (HopSkipJump(),)


def few_steps(thorough: bool) -> tuple[Attack, ...]:
    """For a budget of time steps: the sparse search, by two objectives; FAB and Square support only plain balls."""
    if not thorough:
        return (SparseSteps(swaps=5),)
    return SparseSteps(), SparseSteps(objective=margin, restarts=2), APGD(cross_entropy)


def in_band(thorough: bool) -> tuple[Attack, ...]:
    """For a band of frequencies: APGD as in `standard`, and PGD from several starts instead of FAB and Square."""
    if not thorough:
        return (APGD(cross_entropy, steps=50), APGD(targeted_dlr, steps=50, targets=3))
    return (APGD(cross_entropy), APGD(targeted_dlr, targets=9), PGD(steps=100, restarts=5, stop=True))


def choose_attacks(preset: Any, threat: Threat) -> tuple[Attack, ...]:
    """The attacks of a preset name, or the given ones."""
    if isinstance(preset, str):
        check_preset(preset)
        if threat.shaped and preset not in ("rand", "decision"):
            return (few_steps if threat.steps is not None else in_band)(preset != "fast")
        functions = {
            "standard": standard, "qi2024": qi2024, "plus": plus, "rand": rand, "fast": fast, "decision": decision,
        }  # fmt: skip
        return functions[preset](threat.norm)
    attacks = tuple(preset) if isinstance(preset, tuple | list) else (preset,)
    for attack in attacks:
        if not callable(attack) or not isinstance(getattr(attack, "name", None), str):
            raise TypeError(
                f"preset must be one of {_list_presets()}, or a tuple of attacks such as (PGD(steps=20), Square()); "
                f"got {attack!r}."
            )
    if not attacks:
        raise ValueError(f"preset: the tuple of attacks is empty; give at least one, or one of {_list_presets()}.")
    return attacks


def check_preset(name: str) -> None:
    check_choice("autoattack", "preset", name, get_args(PresetName))


def _list_presets() -> str:
    return ", ".join(repr(name) for name in get_args(PresetName))
