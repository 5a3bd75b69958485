"""Figures of runs: training curves, accuracy over eps, attribution, responses, samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from resolvent.report.figures.chart import INSIDE
from resolvent.report.figures.figure import GRID, INK, MUTED, SERIES, blank, legend, legend_above, svg
from resolvent.report.runs import Record
from resolvent.report.tables.column import NORMS, format_eps, standing

if TYPE_CHECKING:
    from markupsafe import Markup
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAMES = {"clean": "clean", "robust": "PGD-10"}


def training_svg(record: Record) -> Markup:
    """Accuracy over epochs, marking robust overfitting; errors for a regression."""
    figure, axes = blank()
    regression = record["task"].get("classes", 0) is None
    (_errors if regression else _accuracies)(axes, record["training"]["rows"])
    axes.set_xlabel("epoch")
    axes.locator_params(axis="x", integer=True)
    if axes.get_legend_handles_labels()[0]:
        legend(axes)
    return svg(figure, _salt(record, "training"))


def _accuracies(axes: Axes, rows: list[dict[str, Any]]) -> None:
    split = _split(rows)
    for k, what in enumerate(("clean", "robust")):
        points = _points(rows, split, what)
        if points:
            label = f"{split}, {NAMES[what]}"
            axes.plot(*zip(*points, strict=True), lw=1.4, color=SERIES[k], marker=".", ms=4, label=label)
    _mark_best(axes, rows, split)
    train = [(row["epoch"], 100 * row["train_score"]) for row in rows if row.get("train_score") is not None]
    if train:
        axes.plot(*zip(*train, strict=True), lw=0.9, ls=":", color=MUTED, label="train")
    axes.set_ylim(0, 102)
    axes.yaxis.set_major_formatter(lambda v, _: f"{v:g} %")


def _errors(axes: Axes, rows: list[dict[str, Any]]) -> None:
    """Scores are minus squared errors: plotted as errors on a log scale."""
    split = _split(rows)
    for k, what in enumerate(("clean", "robust")):
        points = [(epoch, -score / 100) for epoch, score in _points(rows, split, what) if score < 0]
        if points:
            label = f"{split}, {NAMES[what]}"
            axes.plot(*zip(*points, strict=True), lw=1.4, color=SERIES[k], marker=".", ms=4, label=label)
    axes.set(yscale="log", ylabel="squared error")


def _split(rows: list[dict[str, Any]]) -> str:
    """The test split if tracked, else validation."""
    return "test" if any(_points(rows, "test", what) for what in NAMES) else "validation"


def _points(rows: list[dict[str, Any]], split: str, what: str) -> list[tuple[float, float]]:
    key = f"{split}_{what}"
    return [(row["epoch"], 100 * row[key]) for row in rows if row.get(key) is not None and math.isfinite(row[key])]


def _mark_best(axes: Axes, rows: list[dict[str, Any]], split: str) -> None:
    points = _points(rows, split, "robust")
    if not points:
        return
    epoch, best = max(points, key=lambda point: point[1])
    last = points[-1]
    axes.plot([epoch], [best], "o", ms=6, mfc="none", mec=INK, mew=1)
    if best - last[1] > 0.05 and last[0] != epoch:  # robust overfitting
        arrow = {"arrowstyle": "<->", "color": INK, "lw": 0.8}
        axes.annotate("", last, (last[0], best), arrowprops=arrow)
        axes.text(last[0], best + 1.5, f"−{best - last[1]:.1f}", ha="right", size=7.5, color=INK)


def robustness_svg(records: Sequence[tuple[str, Record]]) -> Markup:
    """Accuracy over eps, one curve per run; clean accuracy at 0."""
    figure, axes = blank()
    for k, (name, record) in enumerate(records):
        points = curve(record)
        dash = ("-", "--", "-.", ":")[k // len(SERIES) % 4]
        axes.plot(*zip(*points, strict=True), lw=1.3, ls=dash, marker=".", ms=5, color=SERIES[k % 4], label=name)
    norms = dict.fromkeys(NORMS.get(a.get("norm", ""), "") for _, record in records for a in _first_norm(record))
    axes.set(xlabel=f"size of the attack, {' or '.join(norms)}".strip(", "), ylim=(0, 102))
    axes.yaxis.set_major_formatter(lambda v, _: f"{v:g} %")
    (legend_above if len(records) > INSIDE else legend)(axes)
    return svg(figure, f"robustness{[(name, curve(record)) for name, record in records]}")


def curve(record: Record) -> list[tuple[float, float]]:
    """(eps, accuracy in per cent) of the best checkpoint in the norm of its first attack; the lowest at each eps."""
    found: dict[float, float] = {}
    for attack in _first_norm(record):
        found[0.0] = 100 * attack["clean_accuracy"]
        found[attack["eps"]] = min(found.get(attack["eps"], 100.0), 100 * standing(attack))
    return sorted(found.items())


def curve_terms(records: Sequence[tuple[str, Record]]) -> str:
    """The attack and number of samples at each eps: `0.05: fast, n 128; 0.1: standard, n 128`."""
    found: dict[float, dict[str, None]] = {}
    for _, record in records:
        for attack in _first_norm(record):
            words = f"{attack.get('preset', 'preset unknown')}, n {attack.get('samples', '?')}"
            found.setdefault(attack["eps"], {})[words] = None
    return "; ".join(f"{format_eps(eps)}: {' or '.join(words)}" for eps, words in sorted(found.items()))


def _first_norm(record: Record) -> list[Record]:
    held = [a for a in record.get("attacks", {}).values() if a["checkpoint"] == "best"]
    return [a for a in held if a.get("norm") == held[0].get("norm")]


def certificate_svg(record: Record, points: Sequence[dict[str, Any]]) -> Markup:
    """Certified and attacked accuracy; between two radii each curve keeps the value that remains a bound."""
    figure, axes = blank()
    clean = record["certificate"].get("clean")
    if clean is not None and points[0]["radius"] > 0:  # at radius 0 every correct prediction holds
        points = [{"radius": 0.0, "certified": clean, "attacked": clean}, *points]
    radii = [p["radius"] for p in points]
    axes.step(radii, [100 * p["certified"] for p in points], where="pre", lw=1.4, color=SERIES[0], label="certified")
    above = [(p["radius"], 100 * p["attacked"]) for p in points if p.get("attacked") is not None]
    if len(above) > 1:
        axes.step(*zip(*above, strict=True), where="post", lw=1.2, color=SERIES[1], label="under attack")
    axes.set(xlabel="radius, L2", ylim=(0, 102))
    axes.yaxis.set_major_formatter(lambda v, _: f"{v:g} %")
    legend(axes)
    return svg(figure, _salt(record, "certificate"))


def attribution_svg(rows: Sequence[tuple[str, float, float]], title: str) -> Markup:
    return svg(attribution_figure(rows, title), title + str(rows))


def attribution_figure(rows: Sequence[tuple[str, float, float]], title: str) -> Figure:
    """Relative change of clean-to-attacked distance across each component, on train (full) and test (light) samples."""
    figure, axes = blank()
    for i, (_, train, test) in enumerate(rows):
        axes.barh(i - 0.19, train, height=0.36, color=SERIES[0])
        axes.barh(i + 0.19, test, height=0.36, color=SERIES[0], alpha=0.45, hatch="////", edgecolor=GRID)
    axes.axvline(0, color=MUTED, lw=0.8)
    axes.set_yticks(range(len(rows)), [name for name, _, _ in rows])
    axes.invert_yaxis()
    axes.set_xlabel(f"change of {title}, %")
    return figure


def response_svg(name: str, response: dict[str, Any]) -> Markup:
    """|G| over frequency, with a reference if available; spikes are marked."""
    figure, axes = blank()
    omega = response["frequency"]
    if response.get("reference"):
        axes.plot(omega, response["reference"], lw=1.0, ls="--", color=MUTED, label=response.get("reference_name", ""))
    axes.plot(omega, response["magnitude"], lw=1.3, color=SERIES[0], label=response.get("name", name))
    for spike in response.get("spikes", []):
        axes.plot([spike["frequency"]], [spike["magnitude"]], "v", ms=5, color=SERIES[1])
    axes.set(xscale="log" if min(omega) > 0 else "linear", yscale="log", xlabel="frequency", ylabel="gain")
    legend(axes)
    return svg(figure, "response" + name)


def _salt(record: Record, what: str) -> str:
    return f"{what}{record['cell']['recipe']}{record['cell']['tags']}{record['cell']['seed']}"
