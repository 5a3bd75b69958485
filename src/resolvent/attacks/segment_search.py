"""A random search that needs outputs only, for any objective, including real targets, where Square needs classes.

Each query moves a time segment of some channels to the edge of the region, with a random sign per channel; the change
is kept if the objective rises. Segments shrink from half of the sequence to single steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from resolvent.attacks.objective.gradient_probe import Probe, where_rows
from resolvent.attacks.objective.objective import Objective, squared_deviation
from resolvent.attacks.opening import Opened, Opening
from resolvent.attacks.result import AttackResult
from resolvent.attacks.rows import Rows


@dataclass(frozen=True)
class SegmentSearch(Opened):
    """`SegmentSearch(n_queries=500)(f, x, y, threat)`.

    Examples:
        >>> rv.attacks.SegmentSearch(n_queries=10).n_queries
        10
    """

    name: ClassVar[str] = "segment-search"
    shapes: ClassVar[bool] = True
    least: ClassVar[dict[str, int]] = {"n_queries": 1}
    objective: Objective = squared_deviation
    n_queries: int = 500

    def run(self, opening: Opening) -> AttackResult:
        rows, at = opening.rows, opening.everyone
        probe = Probe.of(opening.victim, rows, self.objective)
        region = rows.threat.around(rows.x)
        x_adv = rows.threat.random_start(rows.x, rows.draws.fold("segment"), surface=True)
        with torch.no_grad():
            loss = probe.offer(rows, x_adv, at)
            for query in range(1, self.n_queries):
                tried = region.project(self._moved(rows, x_adv, query))
                value = probe.offer(rows, tried, at)
                better = value > loss
                x_adv, loss = where_rows(better, tried, x_adv), torch.where(better, value, loss)
        return probe.result(self.name)

    def _moved(self, rows: Rows, x_adv: Tensor, query: int) -> Tensor:
        """x_adv with one segment of each sample at the edge of the ball, channel by channel."""
        x, draws = rows.x, rows.draws.fold("segment")
        flat = x.flatten(2) if x.dim() > 2 else x[..., None]  # (b, l, d)
        b, l, d = flat.shape
        width = max(1, round(l * 0.5 * (1 - query / self.n_queries) ** 2))
        start = draws.integers(0, l - width + 1, 0, query)[:, None]  # (b, 1)
        place = torch.arange(l, device=x.device)
        inside = (place >= start) & (place < start + width)  # (b, l)
        sign = draws.sign(1, query, (1, d), x.dtype)
        some = draws.uniform(2, query, (1, d)) < max(0.5, 1.0 / d)
        chosen = (inside[:, :, None] & (some | (d == 1))).view(x.shape)
        scale = rows.threat.scale(x)
        reach = rows.threat.radius(x) * (1.0 if scale is None else scale)
        return torch.where(chosen, x + reach * sign.expand(b, l, d).reshape(x.shape), x_adv)
