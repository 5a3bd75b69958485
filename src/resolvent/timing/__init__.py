"""How long a layer takes here, beside a plain torch version of itself: what `resolvent bench` measures and prints."""

from resolvent.timing.case import Case, Figures, Outcome, measure_case
from resolvent.timing.plain import plain

__all__ = ["Case", "Figures", "Outcome", "measure_case", "plain"]
