"""Results by class: correct predictions of each, and the confusion matrix."""

from __future__ import annotations

from typing import Any

from resolvent.report.runs import Record
from resolvent.report.tables.column import standard_error

MOST = 24  # classes of a matrix that fits a page


def answer_findings(named: list[tuple[str, Record]]) -> list[dict[str, Any]]:
    """One per run with recorded predictions: rows (class, right, of, share, error), and the matrix if it fits."""
    return [_finding(name, record) for name, record in named if (record.get("answers") or {}).get("of")]


def _finding(name: str, record: Record) -> dict[str, Any]:
    held = record["answers"]
    classes = class_names(record, len(held["of"]))
    rows = [_row(c, right, of) for c, right, of in zip(classes, held["right"], held["of"], strict=True)]
    matrix = held.get("confusion") if len(classes) <= MOST else None
    drawn = None if matrix is None else [(classes[k], _cells(line, k)) for k, line in enumerate(matrix)]
    return {
        "name": name,
        "classes": classes,
        "rows": rows,
        "matrix": drawn,
        "right": sum(held["right"]),
        "of": sum(held["of"]),
        "checkpoint": held["checkpoint"],
    }


def class_names(record: Record, count: int) -> list[str]:
    """The data's own names, otherwise numbers."""
    names = [str(name) for name in record["task"].get("class_names") or ()]
    return names if len(names) == count else [str(k) for k in range(count)]


def _row(name: str, right: int, of: int) -> dict[str, Any]:
    if not of:
        return {"name": name, "right": right, "of": of, "share": "·"}
    error = standard_error(right / of, of) or 0.0
    return {"name": name, "right": right, "of": of, "share": f"{100 * right / of:.1f} ± {100 * error:.1f}"}


def _cells(line: list[int], own: int) -> list[dict[str, Any]]:
    """Counts of one true class, shaded by its share of the class."""
    of = sum(line) or 1
    kinds = ["right" if k == own else "wrong" if v else "" for k, v in enumerate(line)]
    return [{"count": v, "kind": kind, "part": round(100 * v / of)} for v, kind in zip(line, kinds, strict=True)]
