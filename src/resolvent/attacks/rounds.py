"""Attacks one after the other, each on the samples that still stand, with every finished batch kept on disk if wanted.

Survivors are packed into full batches before each attack. A sample's random numbers hang on its global id alone, so
neither the batch size nor the number of processes that share the samples changes what is found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from resolvent.attacks.border import check_finite
from resolvent.attacks.draws import Draws
from resolvent.attacks.model import Victim
from resolvent.attacks.objective import margin
from resolvent.attacks.result import Attack, AttackResult
from resolvent.attacks.store import Store
from resolvent.attacks.threat import Threat

STANDS = -1  # in `broken_by`: no attack broke the sample
CLEAN = 0  # in `broken_by`: misclassified before any attack; attack k of the list has number k + 1
ROUNDING = 5e-6  # of the largest logit: what another batch shape may change in float32

Listener = Callable[[str, int, int], None]  # name of the attack, samples done, samples in all


@dataclass(frozen=True)
class Job:
    """Everything that determines the outcome, and where to keep its pieces."""

    victim: Victim
    x: Tensor  # (n, ...)
    y: Tensor  # (n,)
    threat: Threat  # fitted to x
    draws: Draws  # of the n samples
    attacks: tuple[Attack, ...]
    store: Store | None = None
    listener: Listener | None = None
    told: dict[str, Any] | None = None  # the threat as plain values, in the caller's own numbers
    random: bool = False  # the model's outputs change from call to call
    lengths: Tensor | None = None  # (n,) of padded sequences, which the model takes beside x

    @property
    def names(self) -> tuple[str, ...]:
        """The attacks' names; one that comes again gets a number."""
        seen: dict[str, int] = {}
        told = []
        for attack in self.attacks:
            seen[attack.name] = seen.get(attack.name, 0) + 1
            told.append(attack.name if seen[attack.name] == 1 else f"{attack.name}-{seen[attack.name]}")
        return tuple(told)

    @property
    def device(self) -> torch.device:
        """Where the model lives; batches are moved there one at a time."""
        module = self.victim.module
        parameters = iter(()) if module is None else module.parameters()
        return next((p.device for p in parameters), self.x.device)

    def select(self, rows: Tensor) -> Job:
        """The same for some of the samples."""
        threat, draws = self.threat.select(rows), self.draws.select(rows)
        return replace(self, x=self.x[rows], y=self.y[rows], threat=threat, draws=draws, lengths=self.lengths_of(rows))

    def lengths_of(self, rows: Tensor) -> Tensor | None:
        return None if self.lengths is None else self.lengths[rows]

    def tell(self, name: str, done: int, total: int) -> None:
        if self.listener is not None:
            self.listener(name, done, total)


@dataclass(eq=False)
class Board:
    """The state of play, one entry per sample."""

    logits: Tensor  # (n, k) of the clean input
    x_adv: Tensor  # the point that broke the sample, or the strongest attempt
    margin: Tensor  # (n,) at x_adv
    broken_by: Tensor  # (n,) STANDS, CLEAN or the attack's number
    tried_by: Tensor  # (n,) which attack found x_adv
    queries: Tensor  # (n,) int64
    gradients: Tensor  # (n,) int64
    zero_gradient: Tensor  # (n,) bool
    non_finite: Tensor  # (n,) bool
    notes: tuple[str, ...] = ()

    @property
    def standing(self) -> Tensor:
        return (self.broken_by == STANDS).nonzero().squeeze(1)

    def take(self, number: int, rows: Tensor, found: AttackResult) -> None:
        """Enter one batch: broken samples leave, a stronger attempt replaces a weaker one."""
        better = found.success | (found.margin > self.margin[rows])
        at = rows[better]
        self.x_adv[at] = found.x_adv[better]
        self.margin[at] = found.margin[better]
        self.tried_by[at] = number
        self.broken_by[rows[found.success]] = number
        self.queries[rows] += found.queries
        self.gradients[rows] += found.gradients
        self.zero_gradient[rows] |= found.zero_gradient
        self.non_finite[rows] |= found.non_finite
        self.notes = tuple(dict.fromkeys(self.notes + found.notes))


def play(job: Job) -> Board:
    """Clean outputs, then every attack of the job on the samples that stand."""
    with job.victim.attacked():
        board = _opened(job)
        for number, (name, attack) in enumerate(zip(job.names, job.attacks, strict=True), 1):
            _round(job, board, number, name, attack)
        return board


def outputs(job: Job, x: Tensor) -> Tensor:
    """Logits at x, points of the job's samples or of the first of them, outside of autocast.

    Batch by batch, in float32 unless the model itself is narrower.
    """
    with job.victim.attacked(), torch.autocast(job.device.type, enabled=False):
        rows = torch.arange(x.shape[0], device=x.device)
        return torch.cat([_outputs(job, x, r) for r in _batches(job, rows)])


def _outputs(job: Job, x: Tensor, rows: Tensor) -> Tensor:
    lengths = job.lengths_of(rows)
    lengths = None if lengths is None else lengths.to(job.device)
    return job.victim.forward(x[rows].to(job.device), lengths).to(x.device)


def rounding(logits: Tensor) -> Tensor:
    """How far a margin may move when the same sample is computed in another batch: (n,)."""
    return ROUNDING * logits.abs().amax(1).clamp_min(1e-30)


def _opened(job: Job) -> Board:
    logits = outputs(job, job.x)
    check_finite("autoattack", logits)
    if job.store is not None:
        logits = _recorded(job.store, logits, job.random)
    n, device = job.x.shape[0], job.x.device
    wrong = logits.argmax(1) != job.y
    none = torch.zeros(n, dtype=torch.bool, device=device)
    return Board(
        logits=logits,
        x_adv=job.x.clone(),
        margin=margin(logits, job.y),
        broken_by=torch.where(wrong, CLEAN, STANDS),
        tried_by=torch.zeros(n, dtype=torch.int64, device=device),
        queries=torch.ones(n, dtype=torch.int64, device=device),
        gradients=torch.zeros(n, dtype=torch.int64, device=device),
        zero_gradient=none,
        non_finite=none.clone(),
    )


def _recorded(store: Store, logits: Tensor, random: bool) -> Tensor:
    """The clean outputs that the evaluation began with; a model that answers otherwise is another model."""
    held = store.load(0, "clean", 0)
    if held is None:
        store.save(0, "clean", 0, {"logits": logits}, [])
        return logits
    before = held[0]["logits"].to(logits.device)
    apart = (before - logits).abs().amax() if before.shape == logits.shape else torch.tensor(torch.inf)
    if not random and apart > 1e-4 * logits.abs().max():
        raise ValueError(
            f"store: {str(store.folder)!r} holds an evaluation of another model: its clean outputs differ by up to "
            f"{float(apart):.1e}; use another folder."
        )
    return before


def _round(job: Job, board: Board, number: int, name: str, attack: Attack) -> None:
    standing = board.standing
    done = 0
    for batch, rows in enumerate(_batches(job, standing)):
        board.take(number, rows, _batch(job, board, (number, name, batch), attack, rows))
        done += len(rows)
        job.tell(name, done, len(standing))


def _batch(job: Job, board: Board, key: tuple[int, str, int], attack: Attack, rows: Tensor) -> AttackResult:
    """One attack on one batch: read from the store, or done now and stored."""
    held = None if job.store is None else job.store.load(*key)
    if held is not None and torch.equal(held[0].pop("rows").to(rows.device), rows):
        return AttackResult(**held[0], name=attack.name, notes=tuple(held[1])).to(job.x.device)
    found = _run(job, board, key[1], attack, rows)
    if job.store is not None:
        tensors = {f.name: v for f in fields(found) if isinstance(v := getattr(found, f.name), Tensor)}
        job.store.save(*key, {**tensors, "rows": rows}, list(found.notes))
    return found


def _run(job: Job, board: Board, name: str, attack: Attack, rows: Tensor) -> AttackResult:
    device, x = job.device, job.x[rows]
    draws, lengths = job.draws.select(rows).to(device), job.lengths_of(rows)
    padded = {} if lengths is None else {"lengths": lengths.to(device)}
    found = attack(
        job.victim,
        x.to(device),
        job.y[rows].to(device),
        job.threat.select(rows),
        draws=draws if name == attack.name else draws.fold(name),  # the same attack again draws other numbers
        clean_logits=board.logits[rows].to(device),
        **padded,
    ).to(x.device)
    outside = ~job.threat.select(rows).contains(found.x_adv, x)
    if bool(outside.any()):
        raise RuntimeError(
            f"{name} returned {int(outside.sum())} points that break the threat (ball, bounds or mask), first for "
            f"sample {int(job.draws.index[rows][outside][0])}; an attack must return points of threat.project."
        )
    return found


def _batches(job: Job, rows: Tensor) -> Iterator[Tensor]:
    return iter(rows.split(job.victim.batch_size or max(len(rows), 1)) if len(rows) else ())
