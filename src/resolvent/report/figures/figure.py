"""Figures as inline SVG in the page's colours, following its light and dark themes and its font."""

from __future__ import annotations

import io
import math
import re
from typing import TYPE_CHECKING, Any

from resolvent.report.record import Panel, Spectrum

if TYPE_CHECKING:
    from markupsafe import Markup
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# placeholder colours in matplotlib, replaced by the page's variables
INK, MUTED, GRID = "#010101", "#020202", "#030303"
SERIES = ("#040404", "#050505", "#060606", "#070707")
VARIABLES = {
    INK: "currentColor",
    MUTED: "var(--muted)",
    GRID: "var(--grid)",
    **{colour: f"var(--s{i + 1})" for i, colour in enumerate(SERIES)},
}
SIZE = (3.5, 2.5)  # inches; the page scales it
LINES = 8  # level lines of a pseudospectrum at most


def spectrum_svg(spectrum: Spectrum) -> Markup:
    return svg(spectrum_figure(spectrum), spectrum.name + spectrum.plane)


def spectrum_figure(spectrum: Spectrum) -> Figure:
    """Eigenvalues, coloured by group."""
    figure, axes = blank()
    if spectrum.plane == "discrete":
        _unit_disc(axes)
    else:
        _half_plane(axes, spectrum)
    for k in sorted(set(spectrum.group), reverse=True):
        at = [i for i, g in enumerate(spectrum.group) if g == k]
        re_part, im_part = ([part[i] for i in at] for part in (spectrum.re, spectrum.im))
        label = spectrum.groups[k] if spectrum.groups else None
        axes.plot(re_part, im_part, "o", ms=3.2, mew=0, alpha=0.85, color=SERIES[k % len(SERIES)], label=label)
    if len(spectrum.groups) > 1:
        legend(axes)
    return figure


def pseudospectrum_figure(held: dict[str, Any]) -> Figure:
    """Lines of equal distance to singularity (powers of ten), eigenvalues as points, the imaginary axis."""
    figure, axes = blank((3.9, 3.2))
    at = levels(held["height"])
    colours = [SERIES[k % len(SERIES)] for k in range(len(at))]
    lines = axes.contour(held["re"], held["im"], held["height"], levels=at, linewidths=0.9, colors=colours)
    axes.clabel(lines, fmt=lambda v: f"$10^{{{v:g}}}$", fontsize=6.5, colors=INK)
    axes.axvline(0, color=MUTED, lw=0.8)
    axes.plot(held["eigenvalues"]["re"], held["eigenvalues"]["im"], "o", ms=2.2, mew=0, color=INK)
    axes.set(xlabel="Re z", ylabel="Im z", xlim=(held["re"][0], held["re"][-1]), ylim=(held["im"][0], held["im"][-1]))
    return figure


def levels(height: list[list[float]]) -> list[float]:
    """Powers of ten between nearly the lowest and the highest value: integers, or halves over a small range."""
    values = sorted(v for row in height for v in row)
    low, high = values[len(values) // 200], values[-1]
    step = 0.5 if high - low < LINES / 2 else float(max(1, math.ceil((high - low) / LINES)))
    top = math.floor(high / step)
    found = [k * step for k in range(math.ceil(low / step), top + 1)]
    return found if len(found) > 1 else [(top - 1) * step, top * step]


def panel_svg(panel: Panel) -> Markup:
    """Impulse responses over a logarithmic time axis, starting at the first step."""
    figure, axes = blank()
    axes.set_xscale("log")
    axes.axhline(0, color=MUTED, lw=0.6)
    for k, curve in enumerate(panel.curves):
        steps = range(1, len(curve.values) + 1)
        axes.plot(steps, curve.values, lw=1.3, color=SERIES[k % len(SERIES)], label=curve.label)
    axes.set_xlim(1, max(len(curve.values) for curve in panel.curves))
    axes.set_ylim(-1.12, 1.12)
    axes.set_yticks([-1, 0, 1])
    axes.set_xlabel("step")
    legend(axes)
    return svg(figure, panel.name)


def blank(size: tuple[float, float] = SIZE) -> tuple[Figure, Axes]:
    """Axes without a frame, in the page's colours."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    axes = figure.add_subplot()
    dress(axes)
    return figure, axes


def dress(axes: Axes, small: float = 8) -> None:
    """No frame, a grid, and labels of size `small`, in the page's colours."""
    axes.set_axisbelow(True)
    axes.grid(color=GRID, lw=0.6)
    axes.tick_params(which="both", colors=MUTED, labelsize=small, length=0)
    axes.xaxis.label.set(color=MUTED, size=8)
    axes.yaxis.label.set(color=MUTED, size=small)
    for side in axes.spines.values():
        side.set_visible(False)


def _unit_disc(axes: Axes) -> None:
    turn = [2 * math.pi * k / 240 for k in range(241)]
    axes.plot([math.cos(t) for t in turn], [math.sin(t) for t in turn], color=MUTED, lw=0.9)
    axes.set_aspect("equal")
    axes.set(xlim=(-1.6, 1.6), ylim=(-1.08, 1.08), xticks=[-1, 0, 1], yticks=[-1, 0, 1])


def _half_plane(axes: Axes, spectrum: Spectrum) -> None:
    """The left half plane; frequencies over a symmetric logarithm, since they span from below one to N^2 / pi."""
    axes.axvline(0, color=MUTED, lw=0.9)
    axes.set(xlabel="Re λ", ylabel="Im λ")
    low, high = min(spectrum.re), max(max(spectrum.re), 0.0)
    width = max(high - low, 0.5)
    axes.set_xlim(high - 1.08 * width, high + 0.08 * width)
    axes.locator_params(axis="x", nbins=6)
    reach = max(abs(v) for v in spectrum.im)
    if reach < 1e-9:
        axes.set(ylim=(-1, 1), yticks=[0])
        return
    axes.set_yscale("symlog", linthresh=1.0, linscale=0.6)
    decades = range(math.ceil(math.log10(reach)) + 1)
    ticks = [10.0**k for k in decades][:: 1 + len(decades) // 4]
    axes.set_yticks([-t for t in reversed(ticks)] + [0.0] + ticks)
    axes.set_ylim(-2 * reach, 2 * reach)
    axes.yaxis.minorticks_off()
    axes.yaxis.set_major_formatter(lambda v, _: f"{v:g}".replace("-", "−"))


def legend(axes: Axes) -> None:
    axes.legend(fontsize=7.5, labelcolor=INK, frameon=False, handlelength=1.1, handletextpad=0.5, borderaxespad=0.2)


def legend_above(axes: Axes) -> None:
    """A legend above the frame in as many columns as fit, for crowded frames."""
    figure, names = axes.get_figure(root=True), axes.get_legend_handles_labels()[1]
    assert figure is not None
    widths = [0.34 + 0.06 * len(name) for name in names]  # inches: a handle and its name
    row = sum(widths) < figure.get_figwidth()
    columns = len(names) if row else max(1, int(figure.get_figwidth() / max(widths)))
    options: dict[str, Any] = {"handlelength": 1.1, "handletextpad": 0.5, "columnspacing": 0.9, "borderaxespad": 0.2}
    figure.legend(fontsize=7.5, labelcolor=INK, frameon=False, loc="outside upper left", ncols=columns, **options)


def svg(figure: Figure, salt: str) -> Markup:
    """The figure as SVG for a page: unique ids, the page's colours and font, no fixed size."""
    import matplotlib
    from markupsafe import Markup

    buffer = io.StringIO()
    figure.patch.set_alpha(0)
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": salt}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
    text = re.sub(r'<svg [^>]*viewBox="([^"]+)"[^>]*>', r'<svg viewBox="\1" aria-hidden="true">', text, count=1)
    text = re.sub(r"font: ([\d.]+px)[^;\"]*", r"font-size: \1", text)
    text = re.sub(r' id="[^"#]*_\d+"', "", text)  # unreferenced group ids, repeated in every figure
    for colour, variable in VARIABLES.items():
        text = text.replace(colour, variable)
    return Markup(text)
