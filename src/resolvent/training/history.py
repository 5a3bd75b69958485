"""The results of a run: one row per epoch, the best ones, and their gap to the last."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor, nn

from resolvent.training.settings import Choice

Row = dict[str, Any]


@dataclass(frozen=True, eq=False)
class History:
    """`summary` has an entry for "last", "best" (by validation) and, where the test was tracked, "best_by_test".

    Each holds its epoch and its measurements on validation and test; `gap` of a best is best minus last: the
    robust-overfitting gap. `weights` has those of each; the model itself keeps the last ones.

    Examples:
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
        >>> history = rv.fit(model, rv.load_task("digits").head(64), settings=rv.training.FitSettings(epochs=1))
        >>> len(history.rows), sorted(history.summary)
        (1, ['best', 'gap', 'last'])
    """

    rows: tuple[Row, ...]
    summary: dict[str, Any]
    weights: dict[str, dict[str, Tensor]] = field(repr=False, default_factory=dict)

    @property
    def last(self) -> Row:
        return dict(self.summary["last"])

    @property
    def best(self) -> Row:
        return dict(self.summary["best"])

    def gap(self, name: str = "best") -> dict[str, float]:
        return dict(self.summary["gap"][name])

    def load(self, model: nn.Module, name: str = "best") -> nn.Module:
        """Load the weights of a best epoch, or of the last one, into the model."""
        if name not in self.weights:
            raise ValueError(f"History.load: expected one of {', '.join(map(repr, self.weights))}, got {name!r}.")
        model.load_state_dict(self.weights[name])
        return model


def best_rows(rows: list[Row], choose: Choice = "robust") -> dict[str, Row]:
    """The highest row by validation ("best") and by test ("best_by_test"), if measured.

    By the robust score with ties broken by the clean one, or by clean alone; the earliest of equals.
    """
    found = {}
    for name, split in {"best": "validation", "best_by_test": "test"}.items():
        measured = [row for row in rows if f"{split}_clean" in row]
        if measured:
            keys = [f"{split}_robust", f"{split}_clean"] if choose == "robust" else [f"{split}_clean"]
            found[name] = max(measured, key=partial(_rank, keys))
    return found


def _rank(keys: list[str], row: Row) -> tuple[float, ...]:
    return tuple(row[key] for key in keys if key in row)


def has_stalled(rows: list[Row], choose: Choice, patience: int | None) -> bool:
    """Whether the last `patience` measurements brought no improvement."""
    best = best_rows(rows, choose)
    if patience is None or not best:
        return False
    name, split = ("best", "validation") if "best" in best else ("best_by_test", "test")
    measured = [row for row in rows if f"{split}_clean" in row]
    return len(measured) - 1 - measured.index(best[name]) >= patience


def gaps(summary: dict[str, Row]) -> dict[str, dict[str, float]]:
    """best - last for every number that both have."""
    last = summary["last"]
    return {
        name: {key: row[key] - last[key] for key in row if key in last and key != "epoch"}
        for name, row in summary.items()
        if name != "last"
    }
