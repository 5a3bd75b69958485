"""What a run found: a row an epoch, the best ones, and how far the last lies behind them."""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from torch import Tensor, nn

Row = dict[str, Any]


@dataclass(frozen=True, eq=False)
class History:
    """`summary` has an entry for "last", "best" (by validation) and, where the test was tracked, "best_by_test".

    Each holds its epoch and what was measured then on validation and test; `gap` of a best is best minus last: the
    robust-overfitting gap. `weights` are those of the best epochs; the model itself is left with the last ones.
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
        """Put the weights of a best epoch into the model."""
        if name not in self.weights:
            raise ValueError(f"History.load: expected one of {', '.join(map(repr, self.weights))}, got {name!r}.")
        model.load_state_dict(self.weights[name])
        return model


def marks(rows: list[Row]) -> dict[str, str]:
    """Which measurement chooses which best: robust where there is a probe, clean otherwise."""
    seen = {name for row in rows for name in row}
    wanted = {"best": "validation", "best_by_test": "test"}
    keys = {name: [k for k in (f"{split}_robust", f"{split}_clean") if k in seen] for name, split in wanted.items()}
    return {name: found[0] for name, found in keys.items() if found}


def best_rows(rows: list[Row]) -> dict[str, Row]:
    """The first of the highest rows by each mark."""
    return {name: max((row for row in rows if key in row), key=itemgetter(key)) for name, key in marks(rows).items()}


def gaps(summary: dict[str, Row]) -> dict[str, dict[str, float]]:
    """best - last for every number that both have."""
    last = summary["last"]
    return {
        name: {key: row[key] - last[key] for key in row if key in last and key != "epoch"}
        for name, row in summary.items()
        if name != "last"
    }
