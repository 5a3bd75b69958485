"""The training loop: one for every objective; killed at any moment it goes on to the same numbers."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from resolvent.attacks.capacity import within_memory
from resolvent.attacks.victim import keep_modes
from resolvent.data.order import fold
from resolvent.data.task import Split, Task
from resolvent.training.diverged import Diverged, first_non_finite, non_finite_gradient
from resolvent.training.history import History, Row, gaps
from resolvent.training.measure import measure, score
from resolvent.training.objective import Loss, Objective, by_name, standard
from resolvent.training.optimiser import rate, set_rate
from resolvent.training.progress import Reporter, format_row, reporter
from resolvent.training.run import Run, begin
from resolvent.training.settings import FitSettings
from resolvent.training.state import Save
from resolvent.training.step.batch import Batch
from resolvent.training.step.guard import Taken

Final = Callable[[nn.Module], dict[str, float]]
Watch = Callable[[nn.Module], dict[str, float]]
Late = Callable[[], bool]
OVERFLOW = "every output is finite, but the norm of the gradient is beyond the largest number"
PASSING = "taken again, its outputs and gradients are finite: the loss alone is not, or the step is not always the same"


class Paused(Exception):
    """Time ran out between two steps, or before a later stage; all progress is stored, the message says what remains.

    Examples:
        >>> issubclass(rv.training.Paused, Exception)
        True
    """


def fit(
    model: nn.Module,
    task: Task,
    objective: Objective | str = standard,
    settings: FitSettings | None = None,
    folder: str | Path | None = None,
    *,
    save: Save | None = None,
    final: Final | None = None,
    watch: Watch | None = None,
    late: Late | None = None,
) -> History:
    """Train `model` in place; it ends with the last weights, and `history.load(model)` loads the best ones.

    objective  `standard` (or its name), `pgd_at(threat)`, `trades(threat)`, or a function of model and batch
    folder  where the run is stored; given again, the run resumes, or returns at once when it is complete
    save    writes the best weights as save(model, folder), e.g. `models.save_model`, which adds the settings
    final   measured once on the best and on the last weights in evaluation mode, e.g. {"autoattack": accuracy}; its gap
            is recorded with the others
    watch   called with the model after every epoch; the result is added to the epoch's row
    late    called between steps: once it returns True, the state is stored and `Paused` raised; the same call with the
            folder resumes at that step, with the results of an uninterrupted run

    Examples:
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
        >>> threat = rv.Threat("linf", 0.1, bounds=(0, 1))
        >>> settings = rv.training.FitSettings(epochs=1, batch_size=32)
        >>> history = rv.fit(model, rv.load_task("digits").head(64), rv.pgd_at(threat, steps=2), settings)
        >>> "validation_robust" in history.rows[0]
        True
    """
    objective = by_name(objective)
    run = begin(model, task, objective, settings or FitSettings(), folder, save)
    done = run.files.summary() if run.files is not None else None
    if done is not None:
        run.average.settle(model)
        return History(tuple(run.ledger.rows), done, run.weights | {"last": _copy_weights(model)})
    devices = [run.device] if run.device.type == "cuda" else []
    current = torch.cuda.device(run.device) if devices else nullcontext()  # whose memory is measured
    with torch.random.fork_rng(devices), keep_modes(model), current:
        with reporter(task.name, run.steps) as reporting:
            _train(run, reporting, watch, late)
        return _close_run(run, final)


def _train(run: Run, reporting: Reporter, watch: Watch | None = None, late: Late | None = None) -> None:
    run.model.train()
    started = begun = time.perf_counter()
    first = run.ledger.step
    while not run.over:
        if late is not None and late():
            _pause(run, first, time.perf_counter() - begun)
        _step(run)
        reporting.step(run.ledger.step)
        every = run.settings.save_every
        if run.ledger.step % len(run.batches) == 0:
            _settle(run)
            with run.average.shown(run.model):
                seen = {} if watch is None else dict(watch(run.model))
                row = seen | _row(run) | {"seconds": round(time.perf_counter() - started, 3)}
                _enter(run, row)
            _store(run, row)
            reporting.tell(format_row(row))
            started = time.perf_counter()
        elif every is not None and run.ledger.step % every == 0:
            _settle(run)
            run.store()
    if run.ledger.step < run.steps:
        of = f"epoch {run.epoch} of {run.settings.epochs}"
        reporting.tell(f"stopped after {of}: nothing better in {run.settings.patience} measurements")


def _pause(run: Run, first: int, seconds: float) -> NoReturn:
    """Store the current state between two steps, and say what remains."""
    _settle(run)
    run.store()
    step, taken = run.ledger.step, run.ledger.step - first
    estimate = f", about {seconds / taken * (run.steps - step):.0f} s of training at this pace" if taken else ""
    raise Paused(f"training stopped after step {step} of {run.steps}; {run.steps - step} steps are left{estimate}")


def _step(run: Run) -> None:
    """One update; a loss or gradient that is not finite stops the run and never changes the weights.

    Where the update guards itself, the numbers of a step are read while the next one runs: synchronising after every
    step would leave the device idle in between.
    """
    step = run.ledger.step
    batch = run.batches.at(step)
    losses = (row["train_loss"] for row in run.ledger.rows)
    set_rate(run.optimiser, rate(step, len(run.batches), run.settings, losses))
    mean, right = _accumulate(run, batch, step)
    size = _clip(run)
    numbers = torch.stack([mean, size.detach().double(), right])
    if run.guard is not None:
        run.guard.look(numbers)
        run.optimiser.step()
    taken = Taken(step, batch, numbers)
    if run.device.type == "cuda" and step + 1 < run.steps:
        run.batches.prepare(step + 1)  # while the device computes this one
    _settle(run)
    run.awaited = taken
    if run.guard is None:
        _settle(run)
        run.optimiser.step()
    run.ledger.step += 1
    run.average.include(run.model, run.ledger.step, len(run.batches))


def _settle(run: Run) -> None:
    """Record the numbers of the step still pending, if any."""
    taken, run.awaited = run.awaited, None
    if taken is None:
        return
    value, norm, hits = taken.numbers()
    if not (math.isfinite(value) and math.isfinite(norm)):
        _stop(run, taken.batch, taken.step, OVERFLOW if math.isfinite(value) else PASSING)
    new = (value * len(taken.batch), hits, len(taken.batch))
    run.ledger.tally = [before + more for before, more in zip(run.ledger.tally, new, strict=True)]


def _accumulate(run: Run, batch: Batch, step: int) -> tuple[Tensor, Tensor]:
    """The mean loss over the batch, with its gradient in the parameters, and the number of correct predictions."""
    part = batch if run.group.size == 1 else batch.part(run.group.rows(len(batch)))
    sums = torch.zeros(2, dtype=torch.float64, device=run.device)
    if len(part):
        weight = len(part) / len(batch)
        first = lambda count: part if count == len(part) else part.part(slice(count))  # noqa: E731
        found = within_memory("fit", len(part), lambda n: _learn_part(run, first(n), step, weight), run.group.size)
        sums[0], sums[1] = found
    else:
        run.optimiser.zero_grad(set_to_none=True)
    run.group.add_gradients(run.model)
    run.group.add([sums])
    return sums[0], sums[1]


def _learn_part(run: Run, part: Batch, step: int, weight: float) -> tuple[Tensor, Tensor]:
    """The weighted loss of these samples, with its gradient, and the number of correct predictions."""
    run.optimiser.zero_grad(set_to_none=True)  # here: a pass whose backward ran out of memory is repeated
    pieces = _pieces(part, run.settings.accumulate)
    found = [_learn_piece(run, x, step, i, weight * (len(x) / len(part))) for i, x in enumerate(pieces)]
    values, hits = zip(*found, strict=True)
    return torch.stack(values).sum(), torch.stack(hits).sum()


def _pieces(batch: Batch, count: int) -> list[Batch]:
    """The batch in at most `count` pieces of about equal size, in order."""
    size = -(-len(batch) // count)
    return [batch] if count == 1 else [batch.part(slice(i, i + size)) for i in range(0, len(batch), size)]


def _learn_piece(run: Run, piece: Batch, step: int, i: int, share: float) -> tuple[Tensor, Tensor]:
    loss = _loss(run, piece, *((step, i) if i else (step,)))
    mine = loss.value * share if share != 1 else loss.value
    mine.backward()
    return mine.detach(), score(loss.output.detach(), piece.y).sum()


def _loss(run: Run, batch: Batch, *place: int) -> Loss:
    """The objective with the random numbers of this step and piece, independent of earlier draws."""
    torch.manual_seed(fold(run.settings.seed, *place))
    with run.autocast():
        return run.objective(run.model, batch)


def _clip(run: Run) -> Tensor:
    """The norm of the whole gradient, which is clipped to `clip` if set."""
    if run.settings.clip is not None:
        return nn.utils.clip_grad_norm_(run.model.parameters(), run.settings.clip)
    return nn.utils.get_total_norm([p.grad for p in run.model.parameters() if p.grad is not None])


def _row(run: Run) -> Row:
    """The metrics of the epoch that just ended."""
    epoch, (loss, right, seen) = run.ledger.step // len(run.batches), run.ledger.tally
    row: Row = {"epoch": epoch, "step": run.ledger.step, "lr": run.optimiser.param_groups[0]["lr"]}
    row |= {"train_loss": loss / seen, "train_score": right / seen}
    if epoch % run.settings.evaluate_every == 0 or epoch == run.settings.epochs:
        row |= _measure_splits(run, ("validation", "test") if run.settings.track_test else ("validation",))
        row |= _measure_seen(run)
    return row


def _measure_splits(run: Run, names: tuple[str, ...]) -> Row:
    """Measure in the precision of the parameters, whatever the training precision."""
    return {key: value for name in names for key, value in _measure_split(run, name, run.task.splits()[name]).items()}


def _measure_seen(run: Run) -> Row:
    """Measure the first training samples like the other splits: the difference shows overfitting."""
    split = run.task.train
    few = torch.arange(min(run.settings.track_seen, len(split)), device=split.x.device)
    return _measure_split(run, "seen", split.select(few)) if len(few) else {}


def _measure_split(run: Run, name: str, split: Split) -> Row:
    found = measure(run.model, split, run.probe, run.settings.batch_size, run.group) if len(split) else {}
    return {f"{name}_{what}": value for what, value in found.items()}


def _enter(run: Run, row: Row) -> None:
    """Add the row, and store the weights first if they are the best so far: the state may then refer to them."""
    ledger = run.ledger
    ledger.rows.append(row)
    ledger.tally = [0.0, 0.0, 0.0]
    for name, best in run.best().items():
        if best is row:
            run.weights[name] = _copy_weights(run.model)
            if run.files is not None and run.group.first:
                run.files.keep(name, run.model)


def _store(run: Run, row: Row) -> None:
    """Write the state, then the metrics line: after a kill the missing part is redone."""
    run.store()
    if run.files is not None and run.group.first:
        run.files.append(row)


def _close_run(run: Run, final: Final | None) -> History:
    """Measure what is missing on the last and the best weights, and write the summary."""
    run.average.settle(run.model)
    last = _copy_weights(run.model)
    chosen = {"last": (run.ledger.rows[-1], last)}
    chosen |= {name: (row, run.weights[name]) for name, row in run.best().items()}
    accounts: dict[int, Row] = {}  # if the best epoch is the last, the weights are the same
    for row, weights in chosen.values():
        if row["epoch"] not in accounts:
            accounts[row["epoch"]] = _account(run, row, weights, final)
    summary: dict[str, Any] = {name: dict(accounts[row["epoch"]]) for name, (row, _) in chosen.items()}
    run.model.load_state_dict(last)
    summary["gap"] = gaps(summary)
    if run.files is not None and run.group.first:
        run.files.keep("last", run.model)
        run.files.summarise(summary)
    run.group.wait()
    return History(tuple(run.ledger.rows), summary, run.weights | {"last": last})


def _copy_weights(model: nn.Module) -> dict[str, Tensor]:
    return {key: t.detach().cpu().clone() for key, t in model.state_dict().items()}


def _account(run: Run, row: Row, weights: dict[str, Tensor], final: Final | None) -> Row:
    run.model.load_state_dict(weights)
    run.model.eval()
    found = {key: row[key] for key in row if key == "epoch" or key.startswith(("validation_", "test_"))}
    if not run.settings.track_test:
        found |= _measure_splits(run, ("test",))
    return found if final is None else found | dict(final(run.model))


def _stop(run: Run, batch: Batch, step: int, otherwise: str) -> NoReturn:
    """Name the place of the first non-finite value, or say `otherwise` if none is found."""
    if run.ledger.step != step:  # a later step has overwritten the gradients
        _accumulate(run, batch, step)
    gradient = non_finite_gradient(run.model)
    reason = first_non_finite(run.model, lambda: _loss(run, batch, step)) or gradient or otherwise
    kept = "" if run.files is None else f"; the last stored state is {run.files.state}"
    raise Diverged(
        f"fit: loss or gradient is not finite at step {step + 1} (epoch {step // len(run.batches) + 1}): {reason}. "
        f"The model holds the weights from before that step{kept}. Lower lr, set clip, or look for huge values in the "
        "data."
    )
