"""Whether a system forgets: the words for a pole on or beyond the edge of stability."""

from __future__ import annotations

import numpy as np

from resolvent.analysis.matrices.exact import Array, circle_gap


def instability(poles: Array, discrete: bool) -> tuple[str, float]:
    """Why the system is not stable ("" when it is), and the frequency of its worst pole."""
    if not poles.size:
        return "", 0.0
    margin = circle_gap(poles) if discrete else -np.real(poles)
    worst = int(np.argmin(margin))
    if margin[worst] > 0:
        return "", 0.0
    edge = "on" if margin[worst] == 0 else "beyond"
    where = "the unit circle" if discrete else "the imaginary axis"
    frequency = float(np.angle(poles[worst]) if discrete else np.imag(poles[worst]))
    return f"not stable: a pole {edge} {where}", frequency
