"""Charts of curves, from the plain values in records of studies and analyses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from resolvent.report.figures.figure import INK, MUTED, SERIES, SIZE, blank, legend, legend_above, svg

if TYPE_CHECKING:
    from markupsafe import Markup
    from matplotlib.figure import Figure

Chart = dict[str, Any]
DASHES = ("-", "--", "-.", ":")
BROAD = (7.4, 3.2)  # inches: for charts with many curves
MANY = 5  # curves
INSIDE = 3  # most names for a legend inside the frame
FEW = 7  # most x values used as ticks
WHOLE = ("epoch", "layer")  # axes with integer values


def make_chart(
    title: str, curves: Sequence[Chart], labels: tuple[str, str], *, log: str = "", caption: str = "", **more: Any
) -> Chart:
    """Curves in one frame, as plain values: labels of both axes, `log` which of them are logarithmic."""
    axes = {"xlabel": labels[0], "ylabel": labels[1], "log": log}
    return {"title": title, "caption": caption, **axes, "series": list(curves), **more}


def chart_svg(chart: Chart) -> Markup:
    return svg(chart_figure(chart), f"chart{chart['title']}{chart['ylabel']}{chart['series']}")  # ids of its own


def chart_figure(chart: Chart) -> Figure:
    """Lines, dashed references and points; marked points have labels. Values that an axis cannot show are omitted."""
    figure, axes = blank(BROAD if wide(chart) else SIZE)
    log = chart.get("log", "")
    drawn = 0
    for curve in chart["series"]:
        x, y = (_drop_unshown(curve[key], key in log) for key in ("x", "y"))
        points = curve.get("style") == "points"
        number = max(drawn - 1, 0) if points else drawn  # points belong to the line before them
        colour, dash = SERIES[number % len(SERIES)], DASHES[number // len(SERIES) % len(DASHES)]
        if curve.get("style") == "dash":
            axes.plot(x, y, lw=1.0, ls="--", color=MUTED, label=curve["name"])
            continue
        axes.plot(x, y, "o" if points else dash, ms=3.4, mew=0, lw=1.2, color=colour, label=curve["name"])
        drawn += not points
    for mark in chart.get("marks", []):
        axes.plot([mark["x"]], [mark["y"]], "v", ms=3.5, mew=0, color=INK)
        axes.annotate(mark["text"], (mark["x"], mark["y"]), (4, 4), textcoords="offset points", size=7, color=INK)
    _scale(axes, chart, log)
    axes.set(xlabel=chart["xlabel"], ylabel=chart["ylabel"])
    if chart["xlabel"] in WHOLE and "x" not in log:
        axes.locator_params(axis="x", integer=True)
    if len(chart["series"]) > 1:
        (legend_above if len(chart["series"]) > INSIDE else legend)(axes)
    return figure


def wide(chart: Chart) -> bool:
    """Whether it takes a whole row: many curves, unless it is one of several small charts."""
    return len(chart["series"]) >= MANY and not chart.get("small", False)


def _drop_unshown(values: Sequence[float | None], log: bool) -> list[float]:
    """Replace missing values, or those without a logarithm, by gaps."""
    return [math.nan if v is None or (log and v <= 0) else float(v) for v in values]


def _scale(axes: Any, chart: Chart, log: str) -> None:
    """Set logarithmic axes; a few x values become the ticks."""
    for name, set_scale in (("x", axes.set_xscale), ("y", axes.set_yscale)):
        values = [v for curve in chart["series"] for v in _drop_unshown(curve[name], name in log)]
        if name in log and any(math.isfinite(v) for v in values):
            set_scale("log")
    places = sorted({v for curve in chart["series"] for v in _drop_unshown(curve["x"], "x" in log) if math.isfinite(v)})
    if "x" in log and len(places) <= FEW:
        axes.set_xticks(places, [f"{v:g}" for v in places])
        axes.set_xticks([], minor=True)
