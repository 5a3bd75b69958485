"""A trained model's files in a folder: its weights and preprocessing.

The folder is that of a run, of one of its checkpoints, or of `save_model`; a copied checkpoint is complete.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from resolvent.data.preparation.keep import load_preprocess, preprocess_of
from resolvent.data.preparation.preprocess import Preprocess
from resolvent.disk import Damaged, read_json
from resolvent.experiments.store.folder import CELL, SUMS, Folder, file_sum
from resolvent.experiments.store.prepared import refuse_older
from resolvent.experiments.tasks import open_task
from resolvent.models.checkpoint import PREPROCESS
from resolvent.usage.error import UsageError

Kept = Literal["best", "last", "best_by_test"]
WEIGHTS = "model.safetensors"
DEPTH = 3  # folder levels from the results to a run: recipe, name, seed


def weights_in(folder: Path, checkpoint: Kept = "best") -> Path:
    """The folder of the weights: `folder` itself, or the checkpoint of that name in it."""
    run = folder / "checkpoint"
    place = next((p for p in (folder, run / checkpoint, folder / checkpoint, run) if (p / WEIGHTS).is_file()), None)
    if place is None:
        raise UsageError(_nothing(folder, checkpoint))
    _require_kept(place)
    return place


def _require_kept(place: Path) -> None:
    """Require that a finished run's checkpoint is its own: one of another epoch or run has a valid digest, too, and
    would be mistaken for it."""
    sums = place.parent / SUMS
    try:
        known = read_json(sums).get(f"checkpoint/{place.name}/{WEIGHTS}")
    except (OSError, Damaged):
        return  # no finished run, or damaged sums: the weights have their own digest
    if known is not None and known != file_sum(place / WEIGHTS):
        raise UsageError(
            f"{str(place / WEIGHTS)!r} is not what its run kept there; bring that file back, or let the command that "
            "made the run train it again. Copied to a folder of its own it is taken as it is."
        )


def _nothing(folder: Path, checkpoint: Kept) -> str:
    kept = sorted(p.parent.name for p in (folder / "checkpoint").glob(f"*/{WEIGHTS}"))
    if kept:
        return f"the run in {str(folder)!r} has no checkpoint {checkpoint!r} yet, only {', '.join(map(repr, kept))}."
    runs = _runs_below(folder)
    if runs:
        more = f" or another of its {len(runs)}" if len(runs) > 1 else ""
        return f"{str(folder)!r} holds runs and is none itself; give the folder of one, {runs[0]!r}{more}."
    return f"no {WEIGHTS} in {str(folder)!r}; save a model there with resolvent.models.save_model."


def _runs_below(folder: Path) -> list[str]:
    """Runs below a folder, as deep as `resolvent run` creates them."""
    held = (p for depth in range(1, DEPTH + 1) for p in folder.glob("*/" * depth + f"checkpoint/*/{WEIGHTS}"))
    return sorted({str(p.parents[2]) for p in held})


def preprocess_in(folder: Path, checkpoint: Kept = "best") -> Preprocess | None:
    """The preprocessing saved with the weights or the run; for an older run from its data; else None."""
    places = [weights_in(folder, checkpoint), folder] if folder.is_dir() else []
    for place in places:
        found = load_preprocess(place)
        if found is not None:
            return found
    run = next((p for p in (folder, folder.parent.parent) if (p / CELL).is_file()), None)
    return None if run is None else _of_older(run)


def _of_older(run: Path) -> Preprocess:
    """The preprocessing of an older run, recomputed from its data, unless gaps were filled."""
    cell = Folder(run).cell()
    refuse_older(cell, run)
    try:
        return preprocess_of(open_task(cell.task))
    except OSError as gone:
        raise UsageError(
            f"the run in {str(run)!r} has no {PREPROCESS}, as older runs have not, and what it was trained on cannot "
            f"be read to make it again ({gone}); bring that file back, or train again."
        ) from gone
