"""Runs compared under Fourier noise: a table and one chart per task and frequency."""

from __future__ import annotations

from typing import Any

from resolvent.report.figures.chart import make_chart
from resolvent.report.figures.process import by_task
from resolvent.report.runs import Record

Findings = dict[str, Any]


def fourier_findings(named: list[tuple[str, Record]]) -> list[Findings]:
    """One per task: the scores of its runs at each amplitude and frequency."""
    return [_task(task, runs) for task, runs in by_task(named, "fourier").items()]


def _task(task: str, named: list[tuple[str, Record]]) -> Findings:
    regression = named[0][1]["fourier"]["regression"]
    unit = "squared error" if regression else "accuracy, %"
    rows = []
    for name, record in named:
        held = record["fourier"]
        rows.append([name, "none", 0.0, _value(held["clean"], regression)])
        rows += [[name, _format_point(p, held), p["amplitude"], _value(p["score"], regression)] for p in held["points"]]
    text = f"{task}: tones a · U(0, 1) · cos(w t) at {_where(named)}, at test time alone."
    table = {"columns": ["run", "frequency", "amplitude", unit], "rows": rows}
    return {"text": text, "table": table, "charts": _charts(task, named, unit, regression)}


def _charts(task: str, named: list[tuple[str, Record]], unit: str, regression: bool) -> list[dict[str, Any]]:
    """One chart per frequency common to all runs; one for the runs' own frequencies."""
    shared = set.intersection(*({_key(p) for p in r["fourier"]["points"] if not _own(p, r)} for _, r in named))
    made, labels, log = [], ("amplitude", unit), "y" if regression else ""
    for key in sorted(shared):
        curves = [_curve(name, [p for p in r["fourier"]["points"] if _key(p) == key], r) for name, r in named]
        made.append(make_chart(f"{task}, tone at {key}", curves, labels, log=log))
    own = [(name, r, [p for p in r["fourier"]["points"] if _own(p, r)]) for name, r in named]
    curves = [_curve(f"{name}, w = {points[0]['frequency']:.4g}", points, r) for name, r, points in own if points]
    if curves:
        made.append(make_chart(f"{task}, tone at each model's own worst frequency", curves, labels, log=log))
    return made


def _curve(name: str, points: list[dict[str, Any]], record: Record) -> dict[str, Any]:
    held = record["fourier"]
    clean, regression = held["clean"], held["regression"]
    x = [0.0, *(p["amplitude"] for p in points)]
    return {"name": name, "x": x, "y": [_value(s, regression) for s in (clean, *(p["score"] for p in points))]}


def _own(point: dict[str, Any], record: Record) -> bool:
    own = record["fourier"].get("own")
    return own is not None and point["frequency"] == own["frequency"]


def _format_point(point: dict[str, Any], held: dict[str, Any]) -> str:
    own = held.get("own")
    return f"{_key(point)}, its own worst" if own and point["frequency"] == own["frequency"] else _key(point)


def _key(point: dict[str, Any]) -> str:
    w = point["frequency"]
    return f"{w[0]:g} to {w[1]:g}" if isinstance(w, list) else f"{w:.6g}"


def _value(score: float, regression: bool) -> float:
    return -score if regression else 100 * score


def _where(named: list[tuple[str, Record]]) -> str:
    inside = {r["fourier"]["where"] for _, r in named} == {"layers"}
    return "the input of every state-space layer" if inside else "the model's input"
