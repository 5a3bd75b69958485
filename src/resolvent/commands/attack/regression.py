"""`resolvent attack` of a model with real outputs: its largest error, and the samples within a tolerance."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from torch import Tensor, nn

from resolvent.attacks import RegressionSettings, Threat, evaluate_regression
from resolvent.attacks.regression.evaluate import RECORD
from resolvent.commands.attack.options import Attack
from resolvent.commands.attack.progress import progress_bar
from resolvent.usage.error import UsageError


def attack_regression(
    request: Attack, model: nn.Module, data: tuple[Tensor, ...], threats: Sequence[Threat], console: Console
) -> int:
    """One evaluation per size; 0 when done."""
    if request.preset not in ("standard", "fast"):
        raise UsageError(f"--preset {request.preset} is for classes; a model with real outputs takes standard or fast.")
    if request.limit is not None:
        raise UsageError("--limit is for classes; with --out a stopped attack on real outputs resumes.")
    settings = RegressionSettings(request.seed, request.batch_size, request.on.samples, request.preset == "standard")
    for threat in threats:
        out = request.out
        if out is not None and len(threats) > 1:
            out = out / f"eps-{threat.eps}"
        progress, listener = progress_bar(console)
        with progress:
            found = evaluate_regression(
                model, data, threat, request.tolerance, settings=settings, folder=out, listener=listener
            )
        console.print(str(found), highlight=False, soft_wrap=True)
        if out is not None:
            console.print(f"record: {out / RECORD}", highlight=False, soft_wrap=True)
    return 0
