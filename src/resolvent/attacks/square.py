"""Square: a random search that needs scores only, no gradients (Andriushchenko, Croce, Flammarion & Hein 2020).

One window per query and sample; a change is kept when the loss rises. Windows are squares on images and time segments x
channels on sequences; their share of the input shrinks along the published schedule, stretched to the number of
queries. Each sample has windows of its own, and a broken sample leaves the batch at once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from resolvent.attacks.draws import Draws
from resolvent.attacks.model import Victim
from resolvent.attacks.objective import cross_entropy, margin
from resolvent.attacks.result import AttackResult
from resolvent.attacks.rows import Rows, check_logits, is_label, prepare
from resolvent.attacks.setting import check_count, check_positive, check_share
from resolvent.attacks.square_deck import Deck
from resolvent.attacks.square_layout import Form, layout_of
from resolvent.attacks.square_step import Step, step_for
from resolvent.attacks.strongest import Strongest
from resolvent.attacks.threat import Threat

_HALVINGS = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)  # of p, in queries out of 10,000


@dataclass(frozen=True)
class Square:
    """`Square(n_queries=5000)(f, x, y, threat, draws=draws)`.

    n_queries  per restart, the first point among them; a sample costs one more for x itself
    p_init     share of the input that the first windows cover
    loss       what must rise: "margin" (the paper's choice) or "ce"
    form       "auto": (b, c, h, w) is an image, (b, l, d) a sequence, other shapes one long line; or say which
    upstream   place windows as the published code does: never on an image's last row or column, and a query may repeat
               the point it starts from; for comparisons, as the attack is weaker so
    """

    n_queries: int = 5000
    p_init: float = 0.8
    loss: Literal["margin", "ce"] = "margin"
    restarts: int = 1
    form: Form = "auto"
    upstream: bool = False

    def __post_init__(self) -> None:
        check_count("Square", 1, n_queries=self.n_queries, restarts=self.restarts)
        check_positive("Square", p_init=self.p_init)
        check_share("Square", p_init=self.p_init)
        if self.loss not in ("margin", "ce"):
            raise ValueError(f'Square: loss must be "margin" or "ce", got {self.loss!r}.')
        if self.form not in ("auto", "image", "sequence"):
            raise ValueError(f'Square: form must be "auto", "image" or "sequence", got {self.form!r}.')

    @property
    def name(self) -> str:
        return "square" if self.loss == "margin" else "square-ce"

    def __call__(
        self,
        f: Callable[[Tensor], Tensor] | Victim,
        x: Tensor,
        y: Tensor,
        threat: Threat,
        *,
        draws: Draws | None = None,
        clean_logits: Tensor | None = None,
    ) -> AttackResult:
        victim, rows = prepare(f, x, y, threat, draws)
        if not is_label(rows.y):
            raise TypeError(f"Square: y must hold class labels (whole numbers), got {y.dtype}.")
        found, everyone = Strongest(rows), torch.arange(len(rows), device=rows.x.device)
        with victim.attacked(), torch.no_grad():
            if clean_logits is None:
                clean_logits = victim.forward(rows.x)
                found.count(everyone, 1, backward=False)
            check_logits(clean_logits, rows.y)
            found.offer(everyone, rows.x, self._loss(clean_logits, rows.y), clean_logits)
            for restart in range(self.restarts):
                standing = (~found.wrong).nonzero().squeeze(1)
                if len(standing):
                    self._search(victim, found, self._start(rows.select(standing), standing, restart))
        return found.result(self.name)

    def share(self, query: int) -> float:
        """p at this query (0 is the first window): halved at 10, 50, 200, ... of 10,000 queries."""
        return self.p_init / 2 ** bisect_left(_HALVINGS, int(query / self.n_queries * 10_000))

    def _start(self, rows: Rows, at: Tensor, restart: int) -> _Live:
        mask = rows.threat.mask
        touchable = None if mask is None else mask.expand(rows.x.shape)
        layout = layout_of(rows.x, touchable, self.form, last=int(not self.upstream))
        step = step_for(rows.x, rows.threat, layout, thrifty=not self.upstream)
        deck = Deck(rows.draws.fold("square").fold(restart), layout.width)
        return _Live.start(at, rows.y, step, deck)

    def _search(self, victim: Victim, found: Strongest, live: _Live) -> None:
        """One restart; what is found goes to `found` as soon as a sample breaks, the rest at the end."""
        shape = found.x_adv.shape[1:]
        for query in range(self.n_queries):
            trial = live.propose(query, self.share(query - 1) if query else 1.0)
            logits = victim.forward(trial.view(-1, *shape))
            broken = live.judge(trial, logits, self._loss(logits, live.y))
            if bool(broken.any()):
                live.select(broken).report(found, query + 1)
                live = live.select(~broken)
                if not len(live.at):
                    return
        live.report(found, self.n_queries)

    def _loss(self, logits: Tensor, y: Tensor) -> Tensor:
        """A point with NaN or infinite outputs is worth -inf: it is never kept."""
        loss = margin(logits, y) if self.loss == "margin" else cross_entropy(logits, y)
        return torch.where(torch.isfinite(logits).all(1), loss, -torch.inf)


def square(
    f: Any, x: Tensor, y: Tensor, threat: Threat, *, draws: Draws | None = None, **settings: Any
) -> AttackResult:
    """`square(f, x, y, threat, n_queries=1000)`: the fields of `Square` as keywords."""
    return Square(**settings)(f, x, y, threat, draws=draws)


@dataclass(eq=False)
class _Live:
    """The samples still under attack, places `at` in the batch, each with its best point so far."""

    at: Tensor
    y: Tensor
    step: Step
    deck: Deck
    best: Tensor  # (b, n)
    loss: Tensor  # (b,)
    logits: Tensor  # (b, classes); (b, 0) before the first query
    bad: Tensor  # (b,) bool: an output was not finite

    @classmethod
    def start(cls, at: Tensor, y: Tensor, step: Step, deck: Deck) -> _Live:
        best = step.first(deck.draws)
        nothing = best.new_full((len(at),), -torch.inf)
        return cls(at, y, step, deck, best, nothing, best[:, :0], torch.zeros_like(at, dtype=torch.bool))

    def propose(self, query: int, share: float) -> Tensor:
        return self.step.next(self.best, share, self.deck.deal(query)) if query else self.best

    def judge(self, trial: Tensor, logits: Tensor, loss: Tensor) -> Tensor:
        """Keep what is better; which samples are broken (b,)."""
        sound = loss > -torch.inf
        broken = sound & (logits.argmax(1) != self.y)
        better = (broken | (loss > self.loss))[:, None]
        self.best = torch.where(better, trial, self.best)
        self.logits = torch.where(better, logits, self.logits) if self.logits.shape[1] else logits
        self.loss = torch.where(better[:, 0], loss.to(self.loss.dtype), self.loss)
        self.bad |= ~sound
        return broken

    def report(self, found: Strongest, queries: int) -> None:
        found.offer(self.at, self.best.view(-1, *found.x_adv.shape[1:]), self.loss, self.logits)
        found.count(self.at, queries, backward=False)
        found.non_finite[self.at] |= self.bad

    def select(self, index: Tensor) -> _Live:
        parts = (t[index] for t in (self.best, self.loss, self.logits, self.bad))
        return _Live(self.at[index], self.y[index], self.step.select(index), self.deck.select(index), *parts)
