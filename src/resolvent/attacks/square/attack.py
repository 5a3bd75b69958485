"""Square: a random search that needs scores only, no gradients (Andriushchenko, Croce, Flammarion & Hein 2020).

One window per query and sample; a change is kept if the loss rises. Windows are squares on images and time segments x
channels on sequences; their share of the input shrinks along the published schedule. Each sample has its own
windows, and a broken sample is done. Several windows of a sample may pass through the model at once
(square_ahead.py); results and counts equal those of one query at a time.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from resolvent.attacks.draws import Draws
from resolvent.attacks.objective.objective import cross_entropy, margin
from resolvent.attacks.opening import Opened, Opening
from resolvent.attacks.result import AttackResult
from resolvent.attacks.rows import Rows
from resolvent.attacks.square.ahead import Ahead, Live, Score
from resolvent.attacks.square.deck import Deck
from resolvent.attacks.square.layout import Form, layout_of
from resolvent.attacks.square.replays import Replays
from resolvent.attacks.square.step import Step, step_for
from resolvent.attacks.strongest import Strongest
from resolvent.attacks.threat.threat import Threat
from resolvent.attacks.victim import Victim
from resolvent.runtime.graph.watched import recording
from resolvent.usage.numbers import check_positive, check_share

_HALVINGS = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)  # of p, in queries out of 10,000


@dataclass(frozen=True)
class Square(Opened):
    """A random search over squares (time spans for sequences), without gradients: `Square()(f, x, y, threat)`.

    n_queries  per restart, including the first point; a sample costs one more for x itself. A window drawn ahead
               in vain costs time but does not count as a query
    p_init     share of the input that the first windows cover
    loss       the objective: "margin" (the paper's choice) or "ce"
    stretch    True: the published schedule, made for 10,000 queries, is compressed to n_queries; False: it is used
               unchanged, as in the released AutoAttack
    form       "auto": (b, c, h, w) is an image, (b, l, d) a sequence, other shapes one long line; or give the form
    upstream   place windows as in the published code: never on an image's last row or column, and a query may repeat
               its starting point; for comparisons, as the attack is then weaker

    Examples:
        >>> f, x, y = torch.nn.Linear(3, 5), torch.rand(4, 3), torch.tensor([0, 1, 0, 1])
        >>> threat = rv.Threat("linf", 0.1, bounds=(0, 1))
        >>> int(rv.attacks.Square(n_queries=10)(f, x, y, threat).gradients.sum())
        0
    """

    least: ClassVar[dict[str, int]] = {"n_queries": 1, "restarts": 1}
    n_queries: int = 5000
    p_init: float = 0.8
    loss: Literal["margin", "ce"] = "margin"
    restarts: int = 1
    stretch: bool = True
    form: Form = "auto"
    upstream: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("Square", p_init=self.p_init)
        check_share("Square", p_init=self.p_init)
        if self.loss not in ("margin", "ce"):
            raise ValueError(f'Square: loss must be "margin" or "ce", got {self.loss!r}.')
        if self.form not in ("auto", "image", "sequence"):
            raise ValueError(f'Square: form must be "auto", "image" or "sequence", got {self.form!r}.')

    @property
    def name(self) -> str:
        return "square" if self.loss == "margin" else "square-ce"

    def run(self, opening: Opening) -> AttackResult:
        opening.require_classes("Square")
        rows = opening.rows
        found = Strongest(rows)
        with torch.no_grad():
            logits = opening.look(found)
            found.offer(opening.everyone, rows.x, self._loss(logits, rows.y), logits)
            for restart in range(self.restarts):
                standing = (~found.wrong).nonzero().squeeze(1)
                if len(standing):
                    self._search(opening.victim, found, rows.select(standing), standing, restart)
        return found.result(self.name)

    def share(self, query: int) -> float:
        """p at this query (0 is the first window): halved at 10, 50, 200, ... of 10,000 queries."""
        at = int(query / self.n_queries * 10_000) if self.stretch else query
        return self.p_init / 2 ** bisect_left(_HALVINGS, at)

    def _search(self, victim: Victim, found: Strongest, rows: Rows, at: Tensor, restart: int) -> None:
        """One restart for the samples `at`, which are `rows`; results go to `found`."""
        shape, whole = rows.x.shape[1:], found.rows
        stretch = None if whole.threat.norm == "linf" else whole.threat.stretch(whole.x)

        def points(v: Tensor, places: Tensor) -> Tensor:
            v = v.view(-1, *shape)
            return v if stretch is None else stretch.select(places).leave(v)

        def logits(v: Tensor, places: Tensor, which: Tensor) -> Tensor:
            lengths = None if whole.lengths is None else whole.lengths[places[which]]
            return victim.forward(points(v, places[which]), lengths)

        score = Score(logits, self._loss, points)
        ahead = Ahead(victim.batch_size or len(found.rows), signed=self.loss == "margin")
        live = Live.start(at, rows.y, *self._tools(rows, restart), score)
        live = live.leave(found, score, live.broken)
        replays, query = None if victim.recorder is None else Replays(victim.recorder, score, ahead), 1
        while query < self.n_queries and len(live.at):
            same, share = self._same_share(query), self.share(query - 1)
            stop = min(live.deck.end(query), same)
            if replays is not None and replays.search(live, range(query, stop), share, same - query):
                live = live.leave(found, score, live.broken)
            else:
                live = live.search(found, score, stop, share, ahead)
            query = stop
        live.leave(found, score, ~live.broken)

    def _tools(self, rows: Rows, restart: int) -> tuple[Step, Deck]:
        mask = rows.threat.mask
        touchable = None if mask is None else mask.expand(rows.x.shape)
        layout = layout_of(rows.x, touchable, self.form, last=int(not self.upstream))
        x, threat = rows.x, rows.threat
        stretch = None if threat.norm == "linf" else threat.stretch(x)
        if stretch is not None:  # bumps need the plain ball that the threat is in v
            x, threat = torch.zeros_like(x), threat.stretched(stretch)
        step = step_for(x, threat, layout, thrifty=not self.upstream)
        return step, Deck(rows.draws.fold("square").fold(restart), layout.width)

    def _same_share(self, query: int) -> int:
        """The first query after this one with a different window share."""
        share = self.share(query - 1)
        return next((q for q in range(query + 1, self.n_queries) if self.share(q - 1) != share), self.n_queries)

    def _loss(self, logits: Tensor, y: Tensor) -> Tensor:
        """The loss, -inf for a point with NaN or infinite outputs, so that it is never kept."""
        loss = margin(logits, y) if self.loss == "margin" else cross_entropy(logits, y)
        if not recording and bool(torch.isfinite(logits.sum())):
            return loss
        return torch.where(logits.abs().amax(1) < torch.inf, loss, -torch.inf)  # a comparison with NaN is false


def square(
    f: Any, x: Tensor, y: Tensor, threat: Threat, *, draws: Draws | None = None, **settings: Any
) -> AttackResult:
    """A random search without gradients from x (b, ...), classes y (b,); keywords: fields of `Square`, and `lengths`.

    Examples:
        >>> f, x, y = torch.nn.Linear(3, 5), torch.rand(4, 3), torch.tensor([0, 1, 0, 1])
        >>> threat = rv.Threat("linf", 0.1, bounds=(0, 1))
        >>> rv.attacks.square(f, x, y, threat, n_queries=10).x_adv.shape
        torch.Size([4, 3])
    """
    return Square.attack(f, x, y, threat, draws=draws, **settings)
