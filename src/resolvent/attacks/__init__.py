"""Attacks on any callable from x (b, ...) to logits: what the attacker may do, how he searches, and what was found."""

from resolvent.attacks.apgd import APGD, apgd
from resolvent.attacks.draws import Draws
from resolvent.attacks.fgsm import FGSM, fgsm
from resolvent.attacks.model import Victim
from resolvent.attacks.objective import (
    cross_entropy,
    dlr,
    kl,
    margin,
    squared_deviation,
    targeted_cross_entropy,
    targeted_dlr,
    targeted_margin,
)
from resolvent.attacks.pgd import PGD, ascend, pgd
from resolvent.attacks.result import Attack, AttackResult
from resolvent.attacks.threat import Threat

__all__ = [
    "APGD",
    "FGSM",
    "PGD",
    "Attack",
    "AttackResult",
    "Draws",
    "Threat",
    "Victim",
    "apgd",
    "ascend",
    "cross_entropy",
    "dlr",
    "fgsm",
    "kl",
    "margin",
    "pgd",
    "squared_deviation",
    "targeted_cross_entropy",
    "targeted_dlr",
    "targeted_margin",
]
