"""Timing of a layer against a plain torch version, as measured and printed by `resolvent bench`."""

from resolvent.timing.case import Case, Figures, Outcome, measure_case
from resolvent.timing.plain import plain

__all__ = ["Case", "Figures", "Outcome", "measure_case", "plain"]
