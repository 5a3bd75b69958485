"""Attacks on any callable from x (b, ...) to logits: what the attacker may do, how he searches, and what was found."""

from resolvent.attacks.apgd import APGD, apgd
from resolvent.attacks.autoattack import AutoAttackResult, autoattack
from resolvent.attacks.draws import Draws
from resolvent.attacks.evaluate import Evaluation, EvaluationSettings, evaluate
from resolvent.attacks.fab import FAB, fab
from resolvent.attacks.fgsm import FGSM, fgsm
from resolvent.attacks.flags import Flag
from resolvent.attacks.fourier import FourierPoint, FourierSettings, FourierSweep, fourier_sweep
from resolvent.attacks.fourier_noise import FourierNoise, noises
from resolvent.attacks.fourier_site import Site, disturbed
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
from resolvent.attacks.square import Square, square
from resolvent.attacks.threat import Threat

__all__ = [
    "APGD",
    "FAB",
    "FGSM",
    "PGD",
    "Attack",
    "AttackResult",
    "AutoAttackResult",
    "Draws",
    "Evaluation",
    "EvaluationSettings",
    "Flag",
    "FourierNoise",
    "FourierPoint",
    "FourierSettings",
    "FourierSweep",
    "Site",
    "Square",
    "Threat",
    "Victim",
    "apgd",
    "ascend",
    "autoattack",
    "cross_entropy",
    "disturbed",
    "dlr",
    "evaluate",
    "fab",
    "fgsm",
    "fourier_sweep",
    "kl",
    "margin",
    "noises",
    "pgd",
    "square",
    "squared_deviation",
    "targeted_cross_entropy",
    "targeted_dlr",
    "targeted_margin",
]
