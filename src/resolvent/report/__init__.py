"""From records to a self-contained HTML page. Uses plain numbers only: no tensors, no layers."""

from resolvent.report.page import MissingPackage, require_packages
from resolvent.report.run_page import write_report

__all__ = ["MissingPackage", "require_packages", "write_report"]


def __dir__() -> list[str]:
    return sorted(__all__)
