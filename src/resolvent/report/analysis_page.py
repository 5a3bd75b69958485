"""The page of an analysis: the frequency response of an initialisation or a trained model, as figures for print."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resolvent.disk import write_json, write_text
from resolvent.report.figures.chart import chart_figure
from resolvent.report.figures.contribution import attribution_bars
from resolvent.report.figures.figure import pseudospectrum_figure, spectrum_figure, svg
from resolvent.report.figures.print_figure import save_figure
from resolvent.report.figures.run_figure import attribution_figure
from resolvent.report.page import require_packages, template
from resolvent.report.record import Spectrum

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Analysis = dict[str, Any]
WIDE = 5.0  # inches: wider figures take a whole row
NAMES = {"json": "analysis.json", "html": "analysis.html"}


def write_analysis(record: Analysis, folder: Path) -> Path:
    """analysis.json, and analysis.html, a single offline file; returns the page's path."""
    require_packages()
    write_json(folder / NAMES["json"], record, finite=True)
    page = folder / NAMES["html"]
    write_text(page, render(record))
    return page


def write_figures(record: Analysis, folder: Path) -> list[Path]:
    """Every figure of the page as SVG and PDF."""
    require_packages()
    named = [(f"{k + 1:02d}-{_slug(title)}", figure) for k, (title, _, figure) in enumerate(figures(record))]
    return [path for name, figure in named for path in save_figure(figure, folder, name)]


def render(record: Analysis) -> str:
    """The page as text."""
    drawn = [
        {"title": title, "caption": caption, "wide": figure.get_figwidth() > WIDE, "svg": svg(figure, title)}
        for title, caption, figure in figures(record)
    ]
    return template("analysis.html").render(
        record=record, drawn=drawn, facts=facts(record), names=NAMES, layers=record.get("layers", []),
        skipped=record.get("skipped", []),
    )  # fmt: skip


def figures(record: Analysis) -> Iterator[tuple[str, str, Figure]]:
    """(title, caption, figure) in the order of the page."""
    for held in record["spectra"]:
        yield (
            f"{held['name']}: spectrum" if record["kind"] == "model" else held["name"],
            held["caption"],
            spectrum_figure(Spectrum(**held)),
        )
    if record.get("pseudospectrum"):
        message = "A change of A by 10^k can carry an eigenvalue anywhere inside the line 10^k."
        yield "Pseudospectrum", message, pseudospectrum_figure(record["pseudospectrum"])
    for chart in record["charts"]:
        yield chart["title"], chart["caption"], chart_figure(chart)
    for what in ("mse", "kl"):
        rows = attribution_bars(record["attribution"], what) if record.get("attribution") else []
        if rows:
            message = (
                "Full bars: training samples; hatched: test samples. To the left, the component brings them together."
            )
            yield f"Attribution, {what.upper()}", message, attribution_figure(rows, what.upper())


def facts(record: Analysis) -> list[tuple[str, str]]:
    return [(name, number(value)) for name, value in record["facts"].items()]


def number(value: float | None) -> str:
    """Four digits; a dash if there is no value."""
    if value is None:
        return "–"
    return str(value) if isinstance(value, int) else f"{value:.4g}".replace("-", "−")


def _slug(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") or "figure"
