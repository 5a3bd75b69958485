"""Attacks one after the other, each on the remaining samples, with every finished batch stored on disk if wanted.

Survivors are packed into full batches before each attack. A sample's random numbers depend only on its global id, so
neither the batch size nor the number of processes changes the results.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from resolvent.attacks.autoattack.board import CLEAN, STANDS, Board, Fallen
from resolvent.attacks.autoattack.store import Store
from resolvent.attacks.checks import check_finite
from resolvent.attacks.draws import Draws
from resolvent.attacks.objective.objective import margin
from resolvent.attacks.result import Attack, AttackResult
from resolvent.attacks.threat.threat import Threat
from resolvent.attacks.victim import Victim

ROUNDING = 5e-6  # of the largest logit: possible change from another batch shape in float32

Listener = Callable[[str, int, int], None]  # name of the attack, samples done, samples in total


@dataclass(frozen=True)
class Job:
    """Everything that determines the result, and where to store its pieces."""

    victim: Victim
    x: Tensor  # (n, ...)
    y: Tensor  # (n,)
    threat: Threat  # fitted to x
    draws: Draws  # of the n samples
    attacks: tuple[Attack, ...]
    store: Store | None = None
    listener: Listener | None = None
    threat_values: dict[str, Any] | None = None  # the threat for a record, as the caller gave it
    random: bool = False  # the model's outputs change from call to call
    lengths: Tensor | None = None  # (n,) of padded sequences, also passed to the model
    fallen: Fallen | None = None  # results of a smaller ball
    deadline: float | None = None  # of time.monotonic(): no batch is started after it

    @property
    def late(self) -> bool:
        return self.deadline is not None and time.monotonic() >= self.deadline

    @property
    def names(self) -> tuple[str, ...]:
        """The attacks' names; one that comes again gets a number."""
        names = [attack.name for attack in self.attacks]
        counts = (names[: i + 1].count(name) for i, name in enumerate(names))
        return tuple(name if k == 1 else f"{name}-{k}" for name, k in zip(names, counts, strict=True))

    @property
    def device(self) -> torch.device:
        """The model's device; batches are moved there one at a time."""
        module = self.victim.module
        parameters = iter(()) if module is None else module.parameters()
        return next((p.device for p in parameters), self.x.device)

    def select(self, rows: Tensor) -> Job:
        """The same for some of the samples."""
        threat, draws = self.threat.select(rows), self.draws.select(rows)
        fallen = None if self.fallen is None else self.fallen.select(rows)
        part = replace(self, x=self.x[rows], y=self.y[rows], lengths=self.lengths_of(rows))
        return replace(part, threat=threat, draws=draws, fallen=fallen)

    def lengths_of(self, rows: Tensor) -> Tensor | None:
        return None if self.lengths is None else self.lengths[rows]

    def tell(self, name: str, done: int, total: int) -> None:
        if self.listener is not None:
            self.listener(name, done, total)


def play(job: Job) -> Board:
    """Clean outputs, then every attack on the remaining samples; samples are undecided if time runs out."""
    with job.victim.attacked():
        board = _open_board(job)
        for number, (name, attack) in enumerate(zip(job.names, job.attacks, strict=True), 1):
            untried = _round(job, board, number, name, attack)
            board.undecided[untried] = True
            if len(untried) and number < len(job.attacks):
                board.undecided[board.standing] = True
                break
        return board


def outputs(job: Job, x: Tensor) -> Tensor:
    """Logits at x, points of all or the first of the job's samples, outside autocast.

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
    """The possible change of a margin when the same sample is computed in another batch: (n,)."""
    return ROUNDING * logits.abs().amax(1).clamp_min(1e-30)


def _open_board(job: Job) -> Board:
    logits = outputs(job, job.x)
    check_finite("autoattack", logits)
    if job.store is not None:
        logits = _record_clean(job.store, logits, job.random)
    n, device = job.x.shape[0], job.x.device
    wrong = logits.argmax(1) != job.y
    none = torch.zeros(n, dtype=torch.bool, device=device)
    start = Fallen(torch.where(wrong, CLEAN, STANDS), job.x.clone(), margin(logits, job.y))
    if job.fallen is not None:
        start = start.with_those(job.fallen)
    return Board(
        logits=logits,
        x_adv=start.x_adv,
        margin=start.margin,
        broken_by=start.broken_by,
        tried_by=start.broken_by.clamp_min(CLEAN),
        queries=torch.ones(n, dtype=torch.int64, device=device),
        gradients=torch.zeros(n, dtype=torch.int64, device=device),
        zero_gradient=none,
        non_finite=none.clone(),
        undecided=none.clone(),
    )


def _record_clean(store: Store, logits: Tensor, random: bool) -> Tensor:
    """The clean outputs stored at the start; a model with different outputs is refused."""
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


def _round(job: Job, board: Board, number: int, name: str, attack: Attack) -> Tensor:
    """One attack on all remaining samples, batch by batch; returns the samples (m,) left when time ran out."""
    standing = board.standing
    done = 0
    for batch, rows in enumerate(_batches(job, standing)):
        found = _batch(job, board, (number, name, batch), attack, rows)
        if found is None:
            break
        board.take(number, rows, found)
        done += len(rows)
        job.tell(name, done, len(standing))
    board.done[name] = (done, len(standing))
    return standing[done:]


def _batch(job: Job, board: Board, key: tuple[int, str, int], attack: Attack, rows: Tensor) -> AttackResult | None:
    """One attack on one batch: read from the store, or run and stored; None if time has run out."""
    held = None if job.store is None else job.store.load(*key)
    if held is not None and torch.equal(held[0].pop("rows").to(rows.device), rows):
        return AttackResult(**held[0], name=attack.name, notes=tuple(held[1])).to(job.x.device)
    if job.late:
        return None
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
        draws=draws if name == attack.name else draws.fold(name),  # a repeated attack draws different numbers
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
