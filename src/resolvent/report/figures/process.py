"""Training compared: the runs of one recipe with the same data and objective, in common frames over epochs.

As in Figures 1, 2 and 5 of the study of deep SSMs under adversarial training (Qi et al. 2024): losses and
accuracies of training, of clean and of attacked samples, and how much of the best robust accuracy is lost by the end.
"""

from __future__ import annotations

from typing import Any

from resolvent.report.figures.chart import make_chart
from resolvent.report.runs import Record

Findings = dict[str, Any]
Named = list[tuple[str, Record]]

PUBLISHED = {"pgd-at": "Figure 1", "trades": "Figure 2", "standard": "Figure 5"}  # of the runs of its Table 1
WAYS = {"standard": "standard training", "pgd-at": "PGD-AT", "trades": "TRADES"}
# field of an epoch's row (SPLIT is test or validation), title, whether it is a fraction
FRAMES = (
    ("train_loss", "Training loss", False),
    ("SPLIT_loss", "Clean loss, SPLIT", False),
    ("SPLIT_robust_loss", "Loss under PGD-10, SPLIT", False),
    ("train_score", "Accuracy in training", True),
    ("SPLIT_clean", "Clean accuracy, SPLIT", True),
    ("SPLIT_robust", "Accuracy under PGD-10, SPLIT", True),
    ("seen_clean", "Clean accuracy, training samples", True),
    ("seen_robust", "Accuracy under PGD-10, training samples", True),
)


def process_findings(recipe: str, named: Named) -> list[Findings]:
    """One for each data set and way of training that at least two runs share."""
    right = [(name, record) for name, record in named if record["task"].get("classes", 0) is not None]
    return [_finding(recipe, *key, runs) for key, runs in comparable(right).items()]


def comparable(named: Named) -> dict[tuple[str, str], Named]:
    """The runs of each data set and way of training, by short names, where there are two at least."""
    groups: dict[tuple[str, str], Named] = {}
    for name, record in named:
        groups.setdefault((record["task"]["name"], way_of(record)), []).append((name, record))
    return {key: short_names(runs) for key, runs in groups.items() if len(runs) > 1}


def by_task(named: Named, part: str) -> dict[str, Named]:
    """The runs whose record has that part, by their data set."""
    found: dict[str, Named] = {}
    for name, record in named:
        if part in record:
            found.setdefault(record["task"]["name"], []).append((name, record))
    return found


def short_names(runs: Named) -> Named:
    """Names without the common tags."""
    shared = set.intersection(*(set(name.split()) for name, _ in runs))
    named = [(" ".join(tag for tag in name.split() if tag not in shared) or name, record) for name, record in runs]
    return named if len({name for name, _ in named}) == len(runs) else runs


def way_of(record: Record) -> str:
    """standard, pgd-at or trades."""
    return str(record["cell"].get("goal", {}).get("kind", "standard"))


def _finding(recipe: str, task: str, way: str, runs: Named) -> Findings:
    tested = all(any(_is_known(row, "test_clean") for row in _rows(record)) for _, record in runs)
    split = "test" if tested else "validation"
    charts = [_chart(field.replace("SPLIT", split), title.replace("SPLIT", split), share, runs)
              for field, title, share in FRAMES]  # fmt: skip
    figure = f" ({PUBLISHED[way]} of Qi et al. 2024)" if recipe == "qi2024-table1" and way in PUBLISHED else ""
    return {
        "name": f"{task}, {WAYS.get(way, way)}{figure}",
        "table": {"columns": COLUMNS, "rows": [[name, *_overfitting(record, split)] for name, record in runs]},
        "charts": [chart for chart in charts if chart["series"]],
    }


COLUMNS = ["run", "epochs", "best epoch", "PGD-10 at best, %", "PGD-10 at last, %", "lost by the end"]


def _overfitting(record: Record, split: str) -> list[float | int | None]:
    """Epochs, the best one by PGD-10, accuracy there and at the last, and their difference."""
    points = [(row["epoch"], row[f"{split}_robust"]) for row in _rows(record) if _is_known(row, f"{split}_robust")]
    if not points:
        return [len(_rows(record)), None, None, None, None]
    epoch, best = max(points, key=lambda point: point[1])
    last = points[-1][1]
    return [len(_rows(record)), epoch, *(round(100 * v, 2) for v in (best, last, best - last))]


def _chart(field: str, title: str, share: bool, runs: Named) -> dict[str, Any]:
    curves = []
    for name, record in runs:
        points = [(row["epoch"], row[field]) for row in _rows(record) if _is_known(row, field)]
        if points:
            scale = 100 if share else 1
            curves.append({"name": name, "x": [x for x, _ in points], "y": [scale * y for _, y in points]})
    unit = "accuracy, %" if share else "loss"
    return make_chart(title, curves, ("epoch", unit), small=True)


def _rows(record: Record) -> list[dict[str, Any]]:
    return list(record["training"]["rows"])


def _is_known(row: dict[str, Any], field: str) -> bool:
    return row.get(field) is not None
