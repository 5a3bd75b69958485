"""Runs compared on corrupted data: a table, errors over severities, and all kinds of robustness in one figure.

The figure has five bars per run: accuracy on clean and on corrupted data (one minus the mean corruption error), under
PGD-10, under AutoAttack, and certified, if available. The legend has norm and eps of each threat, and the number of
samples: a certificate in L2 and an attack in Linf bound different things.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from resolvent.report.figures.chart import make_chart
from resolvent.report.figures.figure import INK, MUTED, SERIES, blank, svg
from resolvent.report.figures.process import Named, by_task
from resolvent.report.runs import Record
from resolvent.report.tables.column import NORMS, format_eps

if TYPE_CHECKING:
    from markupsafe import Markup
    from matplotlib.figure import Figure

KINDS = ("clean", "corrupted", "PGD-10", "AutoAttack", "certified")
COLOURS = dict(zip(KINDS, (*SERIES, MUTED), strict=True))


def corruption_findings(named: Named) -> list[dict[str, Any]]:
    """One per task: text, table, chart of the mean error at each severity."""
    return [_task(task, runs) for task, runs in by_task(named, "corruptions").items()]


def _task(task: str, named: Named) -> dict[str, Any]:
    real = bool(named[0][1]["corruptions"]["regression"])
    unit, times = ("error", 1.0) if real else ("error, %", 100.0)
    names = list(dict.fromkeys(kind for _, r in named for kind in r["corruptions"]["errors"]))
    rows, curves = [], []
    for name, record in named:
        own = record["corruptions"]
        means = {kind: sum(row) / len(row) for kind, row in own["errors"].items()}
        cells = [times * means[kind] if kind in means else None for kind in names]
        rows.append([name, times * own["clean"], times * own["mean_error"], *cells])
        y = [times * v for v in (own["clean"], *own["by_severity"])]
        curves.append({"name": name, "x": list(range(len(y))), "y": y})
    text = f"{task}: {len(names)} corruptions in five severities, at test time alone; 0 is clean."
    chart = make_chart(f"{task}, mean over corruptions", curves, ("severity", unit))
    table = {"columns": ["run", "clean", "mean corruption " + unit, *names], "rows": rows}
    return {"text": text, "table": table, "charts": [chart]}


def robustness_bars(named: Named) -> list[tuple[str, dict[str, float]]]:
    """The available accuracies per run, in per cent; only for classifiers tested on corruptions."""
    found = []
    for name, record in named:
        own = record.get("corruptions")
        if own is None or own["regression"]:
            continue
        bars = {"clean": 1 - own["clean"], "corrupted": 1 - own["mean_error"]}
        attack = _strongest(record)
        if attack is not None:
            bars["AutoAttack"] = attack["accuracy"]
            if "pgd10" in attack:
                bars["PGD-10"] = attack["pgd10"]["accuracy"]
        curve = (record.get("certificate") or {}).get("curve") or []
        if curve:
            bars["certified"] = curve[0]["certified"]
        found.append((name, {kind: 100 * bars[kind] for kind in KINDS if kind in bars}))
    return found


def threat_labels(named: Named) -> dict[str, str]:
    """Each kind with norm, eps and number of samples, if equal for all runs."""
    held: dict[str, set[tuple[str, ...]]] = {}
    for _, record in named:
        attack, proof = _strongest(record), record.get("certificate") or {}
        own, curve = record.get("corruptions"), proof.get("curve") or []
        if own is not None:
            for kind in ("clean", "corrupted"):
                held.setdefault(kind, set()).add(_count(own))
        if attack is not None:
            size = f"{NORMS.get(attack.get('norm', ''), '')} {format_eps(attack['eps'])}".strip()
            for kind in ("PGD-10", "AutoAttack"):
                held.setdefault(kind, set()).add((size, *_count(attack)))
        if curve:
            held.setdefault("certified", set()).add((f"L2 {curve[0]['radius']:.3g}", *_count(proof)))
    one = {kind: sizes.pop() for kind, sizes in held.items() if len(sizes) == 1}
    return {kind: ", ".join((kind, *one.get(kind, ()))) for kind in KINDS}


def _count(held: Record) -> tuple[str, ...]:
    return (f"n {held['samples']:,}",) if "samples" in held else ()


def _strongest(record: Record) -> Record | None:
    """The evaluation of the best checkpoint with the largest eps."""
    held = [a for a in record.get("attacks", {}).values() if a.get("checkpoint") == "best"]
    return max(held, key=lambda a: a["eps"], default=None)


def robustness_figures(named: Named) -> list[tuple[str, Markup]]:
    """(title, svg) per task."""
    made = []
    for task in by_task(named, "corruptions"):
        own = [(n, r) for n, r in named if r["task"]["name"] == task]
        bars = robustness_bars(own)
        if bars:
            title = f"{task}: corrupted, attacked, certified"
            made.append((title, svg(robustness_figure(bars, threat_labels(own)), title)))
    return made


def robustness_figure(bars: list[tuple[str, dict[str, float]]], labels: dict[str, str]) -> Figure:
    """Runs as rows, one colour per kind of robustness, with values at the bars: 0 differs from missing."""
    step = 0.86 / len(KINDS)
    figure, axes = blank((7.4, 1.0 + 0.13 * len(KINDS) * len(bars)))
    for k, kind in enumerate(KINDS):
        rows = [(i, held[kind]) for i, (_, held) in enumerate(bars) if kind in held]
        places, values = [i - 0.43 + step * (k + 0.5) for i, _ in rows], [v for _, v in rows]
        if rows:
            drawn = axes.barh(places, values, height=0.9 * step, color=COLOURS[kind], label=labels[kind])
            axes.bar_label(drawn, fmt="%.0f", padding=2, fontsize=5, color=INK)
    axes.set_yticks(range(len(bars)), [name for name, _ in bars])
    axes.invert_yaxis()
    axes.set_xlim(0, 104)
    axes.set_xlabel("accuracy, %")
    figure.legend(fontsize=7, frameon=False, loc="outside upper center", ncols=3, handlelength=1.1, labelcolor=INK)
    return figure
