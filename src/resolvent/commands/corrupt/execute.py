"""`resolvent corrupt`: a saved model on corrupted data; the table is printed, and stored with the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console

from resolvent.attacks import CorruptionReport, CorruptionSettings, evaluate_corruptions
from resolvent.commands.attack.execute import load
from resolvent.commands.attack.progress import progress_bar
from resolvent.commands.corrupt.options import Corrupt
from resolvent.disk import Damaged, read_json, write_json
from resolvent.predictor.samples import samples_of
from resolvent.predictor.saved import preprocess_in
from resolvent.report.runs import CORRUPTION
from resolvent.usage.destination import require_writable
from resolvent.usage.device import require_device
from resolvent.usage.error import UsageError


def run(request: Corrupt) -> int:
    """Print the report; 0 when done. User errors are UsageErrors."""
    console = Console(soft_wrap=True, highlight=False)
    try:
        settings = CorruptionSettings(request.seed, request.batch_size, request.on.samples, request.only)
        other = None if request.baseline is None else _read_report(request.baseline)
        if other is not None and request.only:
            raise UsageError("--baseline holds all corruptions; leave out --only.")
        device = require_device(request.device)
        require_writable(request.run / CORRUPTION, "RUN")
        found = samples_of(request.run, request.on.data, request.new.reading(), request.checkpoint)
        model = load(str(request.run), "{}", request.checkpoint).to(device)
        data = tuple(part.to(device) for part in found.data)
        learned = preprocess_in(request.run, request.checkpoint)
        flags = 0 if learned is None else len(learned.flagged)
        progress, listener = progress_bar(console)
        with progress:
            report = evaluate_corruptions(
                model, data, bounds=found.bounds, flags=flags, settings=settings, listener=listener
            )
        relative = None if other is None else report.relative_error(other)
    except KeyboardInterrupt:
        console.print("stopped; nothing was written.")
        return 130
    except (ValueError, TypeError) as wrong:
        raise UsageError(str(wrong)) from wrong
    console.print(str(report))
    if relative is not None:
        console.print(f"relative to {request.baseline}: {relative:.4g}")
    if request.on.data is None and not request.only:  # on the run's own test samples, for the report
        held = report.to_dict() | {"seed": request.seed, "checkpoint": request.checkpoint}
        write_json(request.run / CORRUPTION, held)
        console.print(f"record: {request.run / CORRUPTION}")
    return 0


def _read_report(folder: Path) -> CorruptionReport:
    path = folder / CORRUPTION
    if not path.is_file():
        raise UsageError(f"--baseline: there is no {path}; run `resolvent corrupt {folder}` first.")
    try:
        held: dict[str, Any] = read_json(path)
        errors = {name: tuple(map(float, row)) for name, row in held["errors"].items()}
        return CorruptionReport(float(held["clean"]), errors, int(held["samples"]), bool(held["regression"]))
    except (Damaged, KeyError, TypeError, ValueError) as wrong:
        raise UsageError(f"--baseline: {path} cannot be read ({wrong}); corrupt that run again.") from wrong
