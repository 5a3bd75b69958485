"""Attribution of components, structure by structure: Figures 3 and 4 of Qi et al. 2024.

A bar is the change of the distance between clean and attacked features across a component, in per cent, mean over
layers; full on training samples, hatched on test samples. Missing components are blank.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from resolvent.report.figures.figure import GRID, INK, MUTED, SERIES, blank, svg
from resolvent.report.figures.process import WAYS, Named, comparable

if TYPE_CHECKING:
    from markupsafe import Markup
    from matplotlib.figure import Figure

PUBLISHED = {"qi2024-table1": "Figure 3", "qi2024-table2": "Figure 4"}
DISTANCES = {"mse": "MSE", "kl": "KL"}
LINEAR = 100.0  # per cent up to which the axis is linear; logarithmic beyond
BARS = list[tuple[str, list[tuple[str, float, float]]]]  # run, (component, train, test)


def contribution_figures(recipe: str, named: Named) -> list[tuple[str, Markup]]:
    """(title, svg) for each data set, way of training and distance that at least two runs share."""
    made = []
    for (task, way), runs in comparable([(name, record) for name, record in named if "attribution" in record]).items():
        for what, distance in DISTANCES.items():
            bars = [(name, attribution_bars(record["attribution"], what)) for name, record in runs]
            title = f"{distance}, {task}, {WAYS.get(way, way)}"
            place = f" ({PUBLISHED[recipe]} of Qi et al. 2024)" if recipe in PUBLISHED else ""
            made.append((title + place, svg(contribution_figure(bars, distance), recipe + title)))
    return made


def contribution_figure(bars: BARS, distance: str) -> Figure:
    """Components as rows, one colour per run."""
    components = list(dict.fromkeys(name for _, rows in bars for name, _, _ in rows))
    step = 0.86 / max(len(bars), 1)  # of the height that a component takes
    figure, axes = blank((7.4, 0.9 + 0.22 * len(bars) * max(len(components), 1)))
    for k, (run, rows) in enumerate(bars):
        colour, light = SERIES[k % len(SERIES)], 1.0 if k < len(SERIES) else 0.6
        for component, train, test in rows:
            at = components.index(component) - 0.43 + step * (k + 0.5)
            label = run if component == rows[0][0] else None
            full: dict[str, Any] = {"height": step / 2.2, "color": colour}
            axes.barh(at - step / 4, train, alpha=light, label=label, **full)
            axes.barh(at + step / 4, test, alpha=0.45 * light, hatch="////", edgecolor=GRID, **full)
    axes.axvline(0, color=MUTED, lw=0.8)
    axes.set_yticks(range(len(components)), components)
    axes.invert_yaxis()
    _scale(axes, [v for _, rows in bars for _, *both in rows for v in both])
    axes.set_xlabel(f"change of {distance}, %")
    figure.legend(fontsize=7.5, frameon=False, loc="outside upper center", ncols=4, handlelength=1.1, labelcolor=INK)
    return figure


def _scale(axes: object, values: Sequence[float]) -> None:
    """Linear unless changes are very large."""
    if max(map(abs, values), default=0.0) > 4 * LINEAR:
        axes.set_xscale("symlog", linthresh=LINEAR)  # type: ignore[attr-defined]
        axes.xaxis.set_major_formatter(lambda v, _: f"{v:g}".replace("-", "−"))  # type: ignore[attr-defined]


def attribution_bars(record: dict[str, Any], what: str = "mse") -> list[tuple[str, float, float]]:
    """(component, change on train, change on test) in per cent, averaged over layers: Figures 3 and 4's bars.

    Components without a value on either split are omitted.
    """
    rows = [(c["name"], c["train"][what], c["test"][what]) for c in record["components"]]
    return [(name, float(train), float(test)) for name, train, test in rows if train is not None and test is not None]
