"""Checks of the options of `resolvent run`, by name, before anything is read or written."""

from __future__ import annotations

import math
import os

from resolvent.commands.run.arguments import list_given
from resolvent.commands.run.options import Run
from resolvent.experiments.cell import TAG
from resolvent.experiments.recipe import names
from resolvent.experiments.store.objects import is_url
from resolvent.report import MissingPackage, require_packages
from resolvent.usage.error import UsageError

MOST_WORKERS = 256


def check_options(request: Run) -> None:
    """Refuse options that do not apply to the recipe, before anything is read or written."""
    if request.report and not request.dry_run:
        _require_page()
    require_within("--workers", request.workers, 1, MOST_WORKERS)
    _check_place(request)
    require_number("--budget", request.budget)
    if request.budget is not None and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UsageError("--budget is for one process or --workers; torchrun's would not stop at the same step.")
    if (request.evidence is None) != (not request.commit):
        raise UsageError("--evidence and --commit go together: each number must be traced to the commit that ran.")
    require_within("--evaluate-every", request.evaluate_every, 1, 10**6)
    require_within("--attack-batch", request.attack_batch, 1, 2**20)
    for seed in request.seeds:
        require_within("--seeds", seed, 0, 2**63 - 1)
    if request.name is not None and not TAG.fullmatch(request.name):
        raise UsageError(f"--name goes into a path: letters, digits and _+.=- only, got {request.name!r}.")
    if request.recipe == "train":
        if request.only is not None or request.size is not None:
            name = "--only" if request.only is not None else "--size"
            raise UsageError(f"{name} chooses among the cells of a recipe; `train` has one: leave it out.")
        return
    if request.name is not None:
        raise UsageError(f"--name is for `resolvent run train`; cells of {request.recipe!r} have theirs: leave it out.")
    own = [name for group in (request.source, request.model, request.training) for name in list_given(group)]
    if own and request.recipe in names():
        raise UsageError(
            f"{own[0]} is an option of `resolvent run train`; the recipe {request.recipe!r} has its own: leave it out."
        )


def _check_place(request: Run) -> None:
    """Check where cells run: by workers on this machine sharing a folder, or on Ray."""
    require_within("--cell-cpus", request.cell_cpus, 1, 4096)
    require_number("--cell-gpus", request.cell_gpus)
    gpus = request.cell_gpus or 0.0
    if gpus > 1 and not gpus.is_integer():
        raise UsageError(f"--cell-gpus must be a part of one GPU or a whole number of them, got {gpus:g}.")
    if request.on is None:
        if request.cell_cpus is not None or request.cell_gpus is not None:
            name = "--cell-cpus" if request.cell_cpus is not None else "--cell-gpus"
            raise UsageError(f"{name} is what a cell takes of a node of Ray: it goes with --on ray.")
        if request.workers > 1 and is_url(request.out):
            raise UsageError("--workers share a folder, which a URL is not; spread the cells with --on ray instead.")
        return
    if request.workers > 1:
        raise UsageError("--workers and --on ray both share out the cells; leave --workers out.")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UsageError("torchrun shares one cell and --on ray shares out many; start the command without torchrun.")
    if request.device.startswith("cuda:"):
        raise UsageError(f"Ray chooses the GPU of each cell; give --device cuda, got {request.device!r}.")
    if request.cell_gpus is not None and request.device == "cpu":
        raise UsageError("--cell-gpus goes with --device cuda.")


def _require_page() -> None:
    try:
        require_packages()
    except MissingPackage as missing:
        raise UsageError(f"{missing}; or leave the page out with --no-report") from missing


def require_within(option: str, value: int | None, least: int, most: int) -> None:
    """Require an integer in [least, most]; None means not given."""
    if value is not None and not least <= value <= most:
        raise UsageError(f"{option} must be a whole number from {least} to {most}, got {value}.")


def require_number(option: str, value: float | None, *, zero: bool = False) -> None:
    """Require a finite positive number; `zero` allows 0."""
    if value is not None and not (math.isfinite(value) and (value > 0 or (zero and value == 0))):
        least = "at least 0" if zero else "above 0"
        raise UsageError(f"{option} must be a finite number {least}, got {value:g}.")
