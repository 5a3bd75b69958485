"""Two short tests for masked gradients (Carlini et al. 2019): a larger ball, and transfer from another model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from torch import Tensor

from resolvent.attacks.autoattack.flags import Flag, larger_eps, present, transfer_wins
from resolvent.attacks.autoattack.rounds import Job, outputs
from resolvent.attacks.pgd import PGD
from resolvent.attacks.threat.threat import Threat
from resolvent.attacks.victim import Victim

TIMES = (8.0, 64.0)  # times the radius; the second only if the first breaks nothing more
STEPS = 20


def probes(
    job: Job, right: Tensor, surrogate: Callable[[Tensor], Tensor] | None = None, samples: int = 256
) -> tuple[Flag, ...]:
    """Flags from at most `samples` correctly classified samples."""
    rows = right.nonzero().squeeze(1)[:samples]
    if not len(rows):
        return ()
    part = job.select(rows)
    near = measure_transfer(part, part.victim, part.threat)
    far = _larger(part, 1.0 - near)
    if surrogate is None:
        return present([far])
    found = measure_transfer(part, Victim(surrogate, part.victim.batch_size), part.threat)
    return present([far, transfer_wins(found, near, len(rows))])


def _larger(job: Job, standing: float) -> Flag | None:
    """Raised if the same attack breaks no more in any larger ball."""
    flag = None
    if standing == 0 or not bool((job.threat.radius(job.x) > 0).any()):  # a radius of 0 has no larger ball
        return None
    for times in TIMES:
        flag = larger_eps(
            standing, 1.0 - measure_transfer(job, job.victim, job.threat.scaled(times)), times, len(job.x)
        )
        if flag is None:
            return None
    return flag


def measure_transfer(job: Job, source: Victim, threat: Threat) -> float:
    """Share of the samples whose PGD points on `source` also break the job's own model."""
    x, y = job.x.to(job.device), job.y.to(job.device)
    lengths = None if job.lengths is None else job.lengths.to(job.device)
    found = PGD(steps=STEPS)(source, x, y, threat, draws=job.draws.to(job.device), lengths=lengths).to(job.x.device)
    logits = outputs(replace(job, x=found.x_adv), found.x_adv)
    return float((logits.argmax(1) != job.y).double().mean())
