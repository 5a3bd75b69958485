"""Attacks on any callable from x (b, ...) to logits: threat models, attacks, evaluations and their results."""

from resolvent.attacks.apgd.attack import APGD, apgd
from resolvent.attacks.autoattack.attack import AutoAttackResult, autoattack
from resolvent.attacks.autoattack.curve import Curve
from resolvent.attacks.autoattack.evaluate import EvaluationSettings, evaluate
from resolvent.attacks.autoattack.evaluation import Evaluation
from resolvent.attacks.autoattack.flags import Flag
from resolvent.attacks.corruptions.evaluate import CorruptionReport, CorruptionSettings, evaluate_corruptions
from resolvent.attacks.draws import Draws
from resolvent.attacks.fab.attack import FAB, fab
from resolvent.attacks.fgsm import FGSM, fgsm
from resolvent.attacks.fourier.attack import FourierPoint, FourierSettings, FourierSweep, fourier_sweep
from resolvent.attacks.fourier.noise import FourierNoise, noises
from resolvent.attacks.fourier.site import Site, disturbed
from resolvent.attacks.hop_skip_jump.attack import HopSkipJump, answers_as_logits, hop_skip_jump
from resolvent.attacks.objective.objective import (
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
from resolvent.attacks.regression.evaluate import RegressionEvaluation, RegressionSettings, evaluate_regression
from resolvent.attacks.result import Attack, AttackResult
from resolvent.attacks.segment_search import SegmentSearch
from resolvent.attacks.sparse_steps import SparseSteps, sparse_steps
from resolvent.attacks.square.attack import Square, square
from resolvent.attacks.substitution.attack import Substitution, SubstitutionResult, substitute
from resolvent.attacks.threat.threat import Threat
from resolvent.attacks.universal import Universal, UniversalSettings, universal
from resolvent.attacks.victim import Victim

__all__ = [
    "APGD", "FAB", "FGSM", "PGD", "Attack", "AttackResult", "AutoAttackResult", "CorruptionReport",
    "CorruptionSettings", "Curve", "Draws", "Evaluation", "EvaluationSettings", "Flag", "FourierNoise", "FourierPoint",
    "FourierSettings", "FourierSweep", "HopSkipJump", "RegressionEvaluation", "RegressionSettings", "SegmentSearch",
    "Site", "SparseSteps", "Square", "Substitution", "SubstitutionResult", "Threat", "Universal", "UniversalSettings",
    "Victim", "answers_as_logits", "apgd", "ascend", "autoattack", "cross_entropy", "disturbed", "dlr", "evaluate",
    "evaluate_corruptions", "evaluate_regression", "fab", "fgsm", "fourier_sweep", "hop_skip_jump", "kl", "margin",
    "noises", "pgd", "sparse_steps", "square", "squared_deviation", "substitute", "targeted_cross_entropy",
    "targeted_dlr", "targeted_margin", "universal",
]  # fmt: skip


def __dir__() -> list[str]:
    return sorted(__all__)
