"""The result of a study: a text, a table, charts, as plain JSON values that a report draws."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from torch import Tensor

Findings = dict[str, Any]
Style = Literal["line", "dash", "points"]


def findings(text: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], charts: Sequence[Any]) -> Findings:
    """`text` summarises the result; every row has one value per column."""
    held = [[_jsonable(value) for value in row] for row in rows]
    return {"text": text, "table": {"columns": list(columns), "rows": held}, "charts": list(charts)}


def chart(
    title: str,
    series: Sequence[dict[str, Any]],
    labels: tuple[str, str],
    *,
    log: str = "",
    caption: str = "",
    marks: Sequence[tuple[float, float, str]] = (),
) -> dict[str, Any]:
    """Curves in one frame: labels of both axes, `log` which of them ("x", "y", "xy") are logarithmic.

    A mark is a point (x, y) with a label.
    """
    return {
        "title": title,
        "caption": caption,
        "xlabel": labels[0],
        "ylabel": labels[1],
        "log": log,
        "series": list(series),
        "marks": [{"x": float(x), "y": float(y), "text": text} for x, y, text in marks if math.isfinite(y)],
    }


def series(name: str, x: Iterable[Any] | Tensor, y: Iterable[Any] | Tensor, style: Style = "line") -> dict[str, Any]:
    """One curve, to six digits; a non-finite value is a gap."""
    return {"name": name, "x": _numbers(x), "y": _numbers(y), "style": style}


def _numbers(values: Iterable[Any] | Tensor) -> list[float | None]:
    held = values.detach().double().tolist() if isinstance(values, Tensor) else [float(v) for v in values]
    return [float(f"{v:.6g}") if math.isfinite(v) else None for v in held]


def _jsonable(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
