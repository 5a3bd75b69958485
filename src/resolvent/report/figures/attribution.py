"""Charts of an attribution record: the change that each component makes, layer by layer, on every split.

The record is what `resolvent.analysis.attribution.record` returns; a chart is what `chart_svg` draws. Averages over
layers are bars: see `attribution_bars`.
"""

from __future__ import annotations

from typing import Any

DISTANCES = {"mse": "MSE", "kl": "KL"}


def attribution_charts(record: dict[str, Any], title: str = "attribution") -> list[dict[str, Any]]:
    """One chart for each distance: a curve for each component and split over the layers."""
    return [_chart(record, what, f"{title}, {name}", name) for what, name in DISTANCES.items()]


def attribution_bars(record: dict[str, Any], what: str = "mse") -> list[tuple[str, float, float]]:
    """(component, change on train, change on test) in per cent, averaged over layers: Figures 3 and 4's bars.

    Components that have no value on either split are left out.
    """
    rows = [(c["name"], c["train"][what], c["test"][what]) for c in record["components"]]
    return [(name, float(train), float(test)) for name, train, test in rows if train is not None and test is not None]


def _chart(record: dict[str, Any], what: str, title: str, name: str) -> dict[str, Any]:
    splits = list(record["samples"])
    series = [_curve(component, split, what) for component in record["components"] for split in splits]
    return {"title": title, "xlabel": "layer", "ylabel": f"change of {name}, %", "series": series}


def _curve(component: dict[str, Any], split: str, what: str) -> dict[str, Any]:
    values = [layer[what] for layer in component[split]["layers"]]
    return {"name": f"{component['name']}, {split}", "x": list(range(1, len(values) + 1)), "y": values}
