"""Lower the rate when the loss stays where it is: torch's ReduceLROnPlateau as a function of the losses so far.

Without a state of its own a resumed run has the same rate. The settings are the generalisation study's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

FACTOR, PATIENCE, THRESHOLD = 0.9, 5, 0.01


def plateau(losses: Iterable[float]) -> float:
    """The factor after epochs of these mean losses: times 0.9 after more than five in a row that are not 1 % better.

    A value counts as better when it is below (1 - 0.01) times the best so far.
    """
    best, waited, factor = math.inf, 0, 1.0
    for loss in losses:
        if loss < best * (1 - THRESHOLD):
            best, waited = loss, 0
        else:
            waited += 1
        if waited > PATIENCE:
            factor, waited = factor * FACTOR, 0
    return factor
