"""The demo's page: one offline HTML file, readable on a phone and printable."""

from __future__ import annotations

import importlib
import math
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resolvent.disk import write_json, write_text
from resolvent.report.figures.figure import panel_svg, spectrum_svg
from resolvent.report.record import Record

if TYPE_CHECKING:
    from jinja2 import Template

PACKAGES = ("matplotlib", "jinja2")


class MissingPackage(ImportError):
    """A package of the `report` extra is absent.

    Examples:
        >>> issubclass(rv.report.MissingPackage, ImportError)
        True
    """


def require_packages() -> None:
    """Fail early and clearly if the page cannot be drawn.

    Examples:
        >>> rv.report.require_packages()        # raises MissingPackage where matplotlib or jinja2 is absent
    """
    for name in PACKAGES:
        try:
            importlib.import_module(name)
        except ImportError:
            raise MissingPackage(f"the report needs {name}; install it with: pip install 'resolvent[report]'") from None


def write_page(record: Record, folder: Path) -> Path:
    """Write report.html, and record.json with its numbers; returns the page's path."""
    require_packages()
    write_json(folder / "record.json", record.to_dict(), finite=True)
    page = folder / "report.html"
    write_text(page, render(record))
    return page


def render(record: Record) -> str:
    """The page as text."""
    drawn = [(s, spectrum_svg(s)) for s in record.spectra]
    results = record.check["results"]
    return template("page.html").render(
        record=record,
        settings=record.check["settings"],
        ok=record.check["ok"],
        table=table(results),
        counts=counts(results),
        failures=[r for r in results if r["status"] == "fail"],
        planes=[(plane, [(s, svg) for s, svg in drawn if s.plane == plane]) for plane in PLANES],
        panels=[(panel, panel_svg(panel)) for panel in record.panels],
    )


PLANES = ("continuous", "discrete")


def table(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Properties down, layers across; each cell is the case closest to, or furthest beyond, its tolerance."""
    layers = list(dict.fromkeys(r["layer"] for r in results))
    properties = list(dict.fromkeys(r["property"] for r in results))
    worst: dict[tuple[str, str], dict[str, Any]] = {}
    for r in results:
        key = (r["property"], r["layer"])
        if key not in worst or badness(r) > badness(worst[key]):
            worst[key] = r
    rows = [(prop, [cell(worst.get((prop, layer))) for layer in layers]) for prop in properties]
    measured = [(prop, cells) for prop, cells in rows if any(c["kind"] != "none" for c in cells)]
    return {"layers": layers, "rows": measured}


def cell(result: dict[str, Any] | None) -> dict[str, str]:
    """Text, kind (a CSS class) and the words shown on hover."""
    if result is None or result["status"] == "n/a":
        return {"text": "·", "kind": "none", "title": result["note"] if result else "not measured"}
    error = float(result["error"])
    kind = "good" if result["status"] == "pass" else "bad"
    text = "✓" if error == 0 and kind == "good" else f"{error:.0e}" if math.isfinite(error) else "✗"
    allowed = f"allowed {result['tolerance']:.0e}" if result["tolerance"] else "exactly"
    message = ", ".join(part for part in (result["case"], allowed, result["note"]) if part)
    return {"text": text.replace("e-0", "e-").replace("-", "−"), "kind": kind, "title": message}


def counts(results: list[dict[str, Any]]) -> dict[str, Any]:
    """The numbers at the head of the page."""
    passed = [r for r in results if r["status"] == "pass"]
    close = max((badness(r)[1] for r in passed if r["tolerance"]), default=0.0)
    return {
        "layers": len({r["layer"] for r in results}),
        "cases": len({(r["layer"], r["case"]) for r in results}),
        "passed": len(passed),
        "failed": sum(r["status"] == "fail" for r in results),
        "closest": f"{100 * close:.0f} %",
        "seconds": f"{sum(r['seconds'] for r in results):.0f}",
    }


def badness(result: dict[str, Any]) -> tuple[int, float]:
    """Failures before passes before n/a, then by the share of the tolerance used."""
    if result["status"] == "n/a":
        return (0, 0.0)
    error, tolerance = float(result["error"]), result["tolerance"]
    return (2 if result["status"] == "fail" else 1, error / tolerance if tolerance else error)


def template(name: str) -> Template:
    """A template of this package, escaped, strict about names; it may include others."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    loader = FunctionLoader(lambda each: files("resolvent.report").joinpath(each).read_text(encoding="utf-8"))
    made = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return made.get_template(name)
