"""The conformance suite: properties of every layer, measured. `resolvent check` on the command line."""

from resolvent.conformance.cases import check_layers
from resolvent.conformance.result import Report, Result
from resolvent.conformance.runner import Settings, check
from resolvent.conformance.subject import Traits

__all__ = ["Report", "Result", "Settings", "Traits", "check", "check_layers"]


def __dir__() -> list[str]:
    return sorted(__all__)
