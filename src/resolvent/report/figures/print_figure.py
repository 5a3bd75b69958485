"""Figures as files for a paper: vector SVG and PDF in print colours."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from resolvent.disk import replace
from resolvent.report.figures.figure import GRID, INK, MUTED, SERIES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAPER = {INK: "#000000", MUTED: "#555555", GRID: "#e3e3e3"} | dict(
    zip(SERIES, ("#2f62c9", "#c8641b", "#1c8a75", "#9340a3"), strict=True)
)
KINDS = ("color", "facecolor", "edgecolor", "markerfacecolor", "markeredgecolor")


def save_figure(figure: Figure, folder: Path, name: str) -> list[Path]:
    """NAME.svg and NAME.pdf, with text as text, TrueType fonts and no date; the figure is recoloured."""
    import matplotlib

    recolour(figure)
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    with matplotlib.rc_context({"svg.fonttype": "none", "pdf.fonttype": 42, "svg.hashsalt": name}):
        for kind, dated in (("svg", "Date"), ("pdf", "CreationDate")):
            path = folder / f"{name}.{kind}"
            replace(path, partial(figure.savefig, format=kind, metadata={dated: None}))
            made.append(path)
    return made


def recolour(figure: Figure) -> None:
    """Replace placeholder colours by those of PAPER."""
    from matplotlib.colors import to_hex

    for artist in figure.findobj():
        for kind in KINDS:
            get, put = getattr(artist, f"get_{kind}", None), getattr(artist, f"set_{kind}", None)
            if get is None or put is None:
                continue
            try:
                held = get()
                found = [to_hex(c) for c in held] if _many(held) else to_hex(held)
            except (TypeError, ValueError):  # "none", "face" and the like
                continue
            if isinstance(found, list) and any(c in PAPER for c in found):
                put([PAPER.get(c, c) for c in found])
            elif isinstance(found, str) and found in PAPER:
                put(PAPER[found])


def _many(held: object) -> bool:
    """Whether it is a list of colours rather than one."""
    return getattr(held, "ndim", 0) == 2 or (isinstance(held, list) and bool(held) and not isinstance(held[0], float))
