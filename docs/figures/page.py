"""What the pictures of the documentation share: axes and colours of the reports, light and dark, as one SVG file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from resolvent.report.figures.figure import GRID, INK, MUTED, SERIES, legend_above, svg

HERE = Path(__file__).parent
COLOURS = """<style>
svg { color: #1d2230; --muted: #6a7182; --grid: #e7e5de; --s1: #2f62c9; --s2: #c8641b; --s3: #1c8a75; --s4: #9340a3;
  font-family: system-ui, sans-serif; }
@media (prefers-color-scheme: dark) {
  svg { color: #e8e8ea; --muted: #99a1b3; --grid: #3a3f4d; --s1: #82a9ff; --s2: #f2a065; --s3: #5fcdb5; --s4: #d592e3; }
}
</style>"""

__all__ = ["GRID", "INK", "MUTED", "SERIES", "legend_above", "panels", "save"]


def panels(count: int, size: tuple[float, float] = (6.4, 2.5), **options: Any) -> tuple[Any, list[Any]]:
    """A figure with so many axes side by side."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    made = figure.subplots(1, count, squeeze=False, **options)[0]
    for axes in made:
        axes.set_axisbelow(True)
        axes.grid(color=GRID, lw=0.6)
        axes.tick_params(which="both", colors=MUTED, labelsize=8, length=0)
        for text in (axes.xaxis.label, axes.yaxis.label):
            text.set(color=MUTED, size=8)
        axes.title.set(color=INK, size=9)
        for side in axes.spines.values():
            side.set_visible(False)
    return figure, list(made)


def save(figure: Any, name: str) -> None:
    """NAME.svg beside this file, in colours that follow the reader's light or dark theme."""
    for axes in figure.axes:
        axes.title.set(color=INK, size=9)
        axes.xaxis.label.set(color=MUTED, size=8)
        axes.yaxis.label.set(color=MUTED, size=8)
    text = svg(figure, name)
    width, height = (float(v) for v in re.findall(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', text)[0])
    spaces = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    head = f'<svg {spaces} width="{width}" height="{height}"'
    text = text.replace("<svg", head, 1).replace(' aria-hidden="true"', "", 1)
    text = text.replace(">", ">" + COLOURS, 1)
    (HERE / f"{name}.svg").write_text(text, encoding="utf-8")
