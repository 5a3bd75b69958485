"""The generalisation study's runs compared: accuracy and loss over the length, s_A over the epochs.

Seeds that diverged are counted in the table; means are those of the others.
"""

from __future__ import annotations

import statistics
from typing import Any

from resolvent.report.figures.chart import make_chart
from resolvent.report.runs import Record

Findings = dict[str, Any]
Cells = dict[str, list[Record]]  # address -> seeds
COLUMNS = ("run", "seeds", "diverged", "T", "train, %", "test, %", "loss, test - train", "s_A, start", "s_A, end",
           "ln capacity", "bound")  # fmt: skip


def gap_findings(cells: Cells) -> list[Findings]:
    """One per task of a recipe whose cells have a bound; none otherwise."""
    held = {name: seeds for name, seeds in cells.items() if any(r["cell"].get("bound") for r in seeds)}
    tasks = dict.fromkeys(seeds[0]["cell"]["task"]["name"] for seeds in held.values())
    return [_task(t, {n: s for n, s in held.items() if s[0]["cell"]["task"]["name"] == t}) for t in tasks]


def _task(task: str, cells: Cells) -> Findings:
    rows = [_row(name, seeds) for name, seeds in cells.items()]
    failed = sum(row[2] for row in rows)
    text = f"{task}: {sum(row[1] for row in rows)} runs, of which {failed} diverged and are left as they are."
    charts = [c for c in (_over_length(task, rows), _over_epochs(task, cells)) if c["series"]]
    return {"text": text, "table": {"columns": list(COLUMNS), "rows": rows}, "charts": charts}


def _row(name: str, seeds: list[Record]) -> list[Any]:
    good = [r["generalisation"] for r in seeds if "generalisation" in r]
    gap = [g["gap"] for g in good]
    train, test = (_mean([g[f"{part}_clean"] for g in gap], 100) for part in ("train", "test"))
    ends = _mean([g["s_A"] for g in good])
    start = seeds[0]["cell"]["model"]["block"]["layer"].get("abscissa")
    capacity, bound = _mean([g.get("log_capacity") for g in good]), _mean([g.get("bound") for g in good])
    loss = _mean([g["loss"] for g in gap])
    counts = (len(seeds), len(seeds) - len(good), seeds[0]["task"]["length"])
    return [name.replace(",", " "), *counts, train, test, loss, start, ends, capacity, bound]


def _mean(values: list[float | None], factor: float = 1.0) -> float | None:
    known = [v for v in values if v is not None]
    return float(f"{factor * statistics.fmean(known):.5g}") if known else None


def _over_length(task: str, rows: list[list[Any]]) -> dict[str, Any]:
    """Empty if all runs have the same length."""
    known = sorted((row for row in rows if row[4] is not None), key=lambda row: row[3])
    lengths = [row[3] for row in known]
    several = len(set(lengths)) > 1 and len(set(lengths)) == len(lengths)
    parts = ((4, "train"), (5, "test"))
    curves = [{"name": words, "x": lengths, "y": [row[k] for row in known]} for k, words in parts]
    title = f"{task}: accuracy over the length"
    caption = "means over the seeds that trained"
    return make_chart(title, curves if several else [], ("length T", "accuracy, %"), caption=caption)


def _over_epochs(task: str, cells: Cells) -> dict[str, Any]:
    """s_A of each cell's first completed seed."""
    curves = []
    for name, seeds in cells.items():
        rows: list[dict[str, Any]] = next((r["training"]["rows"] for r in seeds if "training" in r), [])
        lines = [(row["epoch"], row["s_A"]) for row in rows if "s_A" in row]
        if lines:
            x, y = zip((0, _start(seeds)), *lines, strict=True)
            curves.append({"name": name.replace(",", " "), "x": list(x), "y": list(y)})
    title = f"{task}: the spectral abscissa in training"
    return make_chart(title, curves, ("epoch", "s_A"), caption="first seed of each run")


def _start(seeds: list[Record]) -> float | None:
    held: float | None = seeds[0]["cell"]["model"]["block"]["layer"].get("abscissa")
    return held
