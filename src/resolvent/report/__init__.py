"""Records in, one self-contained HTML page out. Knows plain numbers only: no tensors, no layers."""

from resolvent.report.page import MissingPackage, require_packages, write_page
from resolvent.report.record import Curve, Panel, Record, Spectrum
from resolvent.report.run_page import write_report

__all__ = ["Curve", "MissingPackage", "Panel", "Record", "Spectrum", "require_packages", "write_page", "write_report"]
