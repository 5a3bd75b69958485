"""AutoAttack (Croce & Hein 2020) on inputs of any shape, and its outcome per sample."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from resolvent.attacks.autoattack import flags as doubt
from resolvent.attacks.autoattack.doubts import Doubts
from resolvent.attacks.autoattack.flags import Flag
from resolvent.attacks.autoattack.outcome import AutoAttackResult
from resolvent.attacks.autoattack.presets import Preset, choose_attacks
from resolvent.attacks.autoattack.rounds import CLEAN, STANDS, Board, Job, Listener, outputs, play, rounding
from resolvent.attacks.autoattack.store import Store, digest, jsonable
from resolvent.attacks.checks import check_data, check_logits
from resolvent.attacks.draws import Draws
from resolvent.attacks.objective.objective import margin
from resolvent.attacks.result import Attack
from resolvent.attacks.rows import fit_threat
from resolvent.attacks.threat.channels import working_dtype
from resolvent.attacks.threat.threat import Threat
from resolvent.attacks.victim import TakesNoLengths, Victim
from resolvent.usage.numbers import check_count

_SEEN = 64  # samples passed through the model first, to check its outputs
_AGAIN = 3  # passes over them, to check that it is deterministic


def autoattack(
    f: Callable[..., Tensor] | Victim,
    x: Tensor,
    y: Tensor,
    threat: Threat,
    preset: Preset = "standard",
    *,
    lengths: Tensor | None = None,
    seed: int = 0,
    batch_size: int | None = None,
    folder: str | Path | None = None,
) -> AutoAttackResult:
    """Robust accuracy of f: every attack of the preset in turn, each on the remaining unbroken samples.

    f           any callable from x (b, ...) to logits (b, classes); an nn.Module is attacked in evaluation mode
    x, y        (n, ...) and (n,); (n, c, h, w) are treated as images, anything else as sequences (n, l, d) or vectors
    preset      "standard", "qi2024", "plus", "rand", "fast", or a tuple of attacks
    lengths     (n,) of padded x (n, l, ...): f is called as f(x, lengths), and padding is not changed
    batch_size  most samples passed through f at once; None: all
    folder      stores each finished batch, so that a killed run resumes with the same result

    Probabilities instead of logits are refused; doubts about the result are in `result.flags`.

    Examples:
        >>> f, x, y = torch.nn.Linear(3, 5), torch.rand(4, 3), torch.tensor([0, 1, 0, 1])
        >>> threat = rv.Threat("linf", 0.1, bounds=(0, 1))
        >>> found = rv.autoattack(f, x, y, threat, preset="fast")  # "standard" for numbers that you publish
        >>> found.robust.shape
        torch.Size([4])
    """
    victim = f if isinstance(f, Victim) else Victim(f, batch_size)
    job, flags = prepare(victim, x, y, threat, preset, seed=seed, lengths=lengths)
    return judge_job(replace(job, store=None if folder is None else Store(folder, config(job))), preset, flags)


def prepare(
    victim: Victim,
    x: Tensor,
    y: Tensor,
    threat: Threat,
    preset: Preset,
    *,
    seed: int = 0,
    lengths: Tensor | None = None,
) -> tuple[Job, tuple[Flag, ...]]:
    """Check everything that can be checked before any work; returns a job ready to run, and flags raised on the way."""
    where = "autoattack"
    check_data(where, x, y)
    if not isinstance(threat, Threat):
        raise TypeError(f"{where}: threat must be a Threat, e.g. Threat('linf', 8 / 255), got {type(threat).__name__}.")
    check_count(where, 0, seed=seed)
    x = x.detach().to(working_dtype(x))  # points between two numbers of a half type are reached, too
    within = fit_threat(threat, x, lengths)
    attacks = choose_attacks(preset, threat)
    draws, threat_values = Draws.of(x, seed), describe_threat(threat)
    y = y.detach().to(torch.int64)
    job = Job(victim, x, y, within, draws, attacks, threat_values=threat_values, lengths=lengths)
    seen = [_first_look(where, job) for _ in range(_AGAIN)]
    check_logits(where, seen[0], job.y)
    softmax = doubt.softmax_outputs(seen[0])
    if softmax is not None:
        raise ValueError(f"{where}: {softmax.explanation}")
    random = doubt.random_outputs(seen)
    return replace(job, random=random is not None), doubt.present([random])


def _first_look(where: str, job: Job) -> Tensor:
    """Outputs at some of the samples; an error of the model is reported with its input."""
    try:
        return outputs(job, job.x[:_SEEN])
    except torch.OutOfMemoryError:
        raise
    except TakesNoLengths as wrong:
        raise ValueError(f"{where}: {wrong}") from wrong
    except RuntimeError as wrong:
        raise ValueError(
            f"{where}: the model does not take x of shape {tuple(job.x.shape)} and {job.x.dtype}: "
            f"{str(wrong).strip().splitlines()[0]}"
        ) from wrong


def judge_job(job: Job, preset: Preset, seen: tuple[Flag, ...]) -> AutoAttackResult:
    """Run the job, recompute the verdict from the stored points, and collect the flags."""
    board = play(job)
    logits = outputs(job, board.x_adv)
    moved = _settle(job, board, logits)
    doubts = Doubts(board.queries > 1, board.zero_gradient, board.non_finite, moved, board.notes, seen)
    return AutoAttackResult(
        robust=(board.broken_by == STANDS) & ~board.undecided,
        undecided=board.undecided & (board.broken_by == STANDS),
        x_adv=board.x_adv,
        broken_by=board.broken_by,
        clean_prediction=board.logits.argmax(1),
        prediction=logits.argmax(1),
        margin=margin(logits, job.y),
        norm=job.threat.norm_of(board.x_adv - job.x),
        queries=board.queries,
        gradients=board.gradients,
        index=job.draws.index,
        stages=("clean", *job.names),
        attacks=settings(job.attacks),
        threat=job.threat_values or describe_threat(job.threat),
        preset=preset if isinstance(preset, str) else "custom",
        seed=job.draws.seed,
        doubts=doubts,
        done=board.done,
    )


def _settle(job: Job, board: Board, logits: Tensor) -> Tensor:
    """Compare the verdicts with recomputed outputs; returns which of them (n,) differ by rounding.

    A difference beyond rounding is an error: the model's output depends on the batch, or is random. Within rounding the
    sample counts as broken, as for a model known to be random.
    """
    stands = board.broken_by == STANDS
    wrong = logits.argmax(1) != job.y
    disagree = wrong == stands
    if not job.random:
        clear = disagree & (margin(logits, job.y).abs() > rounding(logits))
        _refuse(job, clear)
    board.broken_by = torch.where(stands & wrong, board.tried_by, board.broken_by)
    return disagree


def _refuse(job: Job, clear: Tensor) -> None:
    if bool(clear.any()):
        raise RuntimeError(
            f"autoattack: computed again from the stored inputs, the verdict changes for {int(clear.sum())} of "
            f"{len(clear)} samples (first: {int(job.draws.index[clear][0])}). The model's answer depends on the batch "
            "or on chance: call model.eval() where a function wraps the model, and look for batch statistics or "
            "sampling in evaluation mode; preset='rand' suits random models."
        )


def settings(attacks: tuple[Attack, ...]) -> tuple[dict[str, Any], ...]:
    """Every setting of every attack as plain values, under its name."""
    return tuple({"name": attack.name, **jsonable(attack)} for attack in attacks)


def describe_threat(threat: Threat) -> dict[str, Any]:
    """Norm, eps (one number if all samples share it), bounds and mask as plain values."""
    bounds = None if threat.bounds is None else [_one(bound) for bound in threat.bounds]
    record = {"norm": threat.norm, "eps": _one(threat.eps), "bounds": bounds, "mask": jsonable(threat.mask)}
    shape = {"steps": threat.steps, "band": jsonable(threat.band)}  # omitted if not set
    return record | {name: value for name, value in shape.items() if value is not None}


def config(job: Job) -> dict[str, Any]:
    """The configuration that a folder belongs to: another value of any field is another evaluation."""
    return {
        "attacks": list(settings(job.attacks)),
        "threat": job.threat_values or describe_threat(job.threat),
        "seed": job.draws.seed,
        "batch_size": job.victim.batch_size,
        "samples": job.x.shape[0],
        "x": digest(job.x),
        "y": digest(job.y),
        "index": digest(job.draws.index),
        **({} if job.lengths is None else {"lengths": digest(job.lengths)}),
    }


def _one(value: Any) -> Any:
    """A tensor of equal values as a number."""
    if isinstance(value, Tensor) and value.numel() and bool((value == value.flatten()[0]).all()):
        return float(value.flatten()[0])
    return jsonable(value)


__all__ = ["CLEAN", "STANDS", "AutoAttackResult", "Listener", "autoattack"]
