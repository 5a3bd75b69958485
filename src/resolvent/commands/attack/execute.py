"""`resolvent attack`: from a saved model or a user's class, data and a threat to the printed and stored evaluation."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn

from resolvent.attacks.autoattack.curve import Curve
from resolvent.attacks.autoattack.evaluate import RECORD, EvaluationSettings
from resolvent.attacks.autoattack.presets import check_preset
from resolvent.attacks.victim import Victim
from resolvent.commands.attack.options import Attack
from resolvent.commands.attack.progress import progress_bar
from resolvent.commands.attack.regression import attack_regression
from resolvent.commands.attack.sizes import threats_of
from resolvent.commands.attack.tokens import attack_tokens, in_embedding
from resolvent.commands.attack.weights import load_weights
from resolvent.data.preparation.preprocess import Preprocess
from resolvent.experiments.interrupt import interrupted_once, others_missed
from resolvent.experiments.stages.together import curve_together
from resolvent.predictor.samples import samples_of
from resolvent.predictor.saved import Kept, preprocess_in, weights_in
from resolvent.training.measure import pair_logits
from resolvent.training.process_group import join_torchrun, speaks
from resolvent.training.step.batch import binary
from resolvent.usage.destination import require_writable
from resolvent.usage.device import require_device
from resolvent.usage.error import UsageError
from resolvent.usage.load import make

EPS = "8/255"  # default size


def run(request: Attack) -> int:
    """Print the summary; 0 when done. User errors are UsageErrors."""
    console = Console(quiet=not speaks())
    if request.out is not None:
        require_writable(request.out / RECORD, "--out")
    try:
        check_preset(request.preset)
        settings = EvaluationSettings(request.seed, request.batch_size, request.on.samples, limit=request.limit)
        threats = threats_of(request, request.norm, learned_by(request), EPS)  # before any work
        threats = tuple(replace(each, **_shape(request)) for each in threats)
        found = samples_of(Path(request.run), request.on.data, request.new.reading(), request.checkpoint)
        device = require_device(request.device)
        model = load(request.run, request.kwargs, request.checkpoint, request.weights).to(device)
        data = in_type_of(model, found.data)
        if request.beam != 1 and request.substitutions is None:
            raise UsageError("--beam goes with --substitutions: sequences that are kept at a time.")
        if request.substitutions is not None:
            return attack_tokens(request, model, data, console)
        if request.embedding:
            model, data = in_embedding(model, data, request)
        model = Paired(model) if _one_logit(model, data) else model
        for note in found.notes:
            console.print(f"note: {note}", highlight=False, soft_wrap=True, markup=False)
        progress, listener = progress_bar(console)
        threat = replace(threats[0], bounds=threats[0].bounds or found.bounds)
        if data[1].is_floating_point():
            own = [replace(e, bounds=threat.bounds) for e in threats]
            return attack_regression(request, model, data, own, console)
        if request.tolerance is not None:
            raise UsageError("--tolerance is for models with real outputs; this model predicts classes: leave it out.")
        sizes = None if len(threats) == 1 else [each.eps for each in threats]
        with progress, interrupted_once(), others_missed(), join_torchrun(request.device):
            curve = curve_together(model, data, threat, sizes, request.preset, settings, request.out, listener)
    except KeyboardInterrupt:
        kept = "nothing was kept: with --out FOLDER a stopped attack resumes"
        if request.out is not None:
            kept = f"finished batches are in {request.out}: the same command resumes from there"
        console.print(f"stopped; {kept}.", highlight=False, soft_wrap=True)
        return 130
    except (ValueError, TypeError) as wrong:
        raise UsageError(str(wrong).removeprefix("run: ")) from wrong
    console.print(str(curve if sizes else curve.evaluations[0]), highlight=False, soft_wrap=True)
    _tell_where(request.out, curve, console)
    _tell_weights(request, model, console)
    return 0


def _tell_weights(request: Attack, model: nn.Module, console: Console) -> None:
    """After the numbers, warn about a class without weights: it may not be what the user meant to attack."""
    if request.weights is None and not Path(request.run).is_dir() and any(True for _ in model.parameters()):
        note = f"note: no --weights given; {request.run} has the weights that its constructor made."
        console.print(note, highlight=False, soft_wrap=True, markup=False)


def _shape(request: Attack) -> dict[str, Any]:
    """Time steps and band of the threat, the latter in cycles per step."""
    band, rate = request.band, request.rate
    if rate is not None and (band is None or not (math.isfinite(rate) and rate > 0)):
        raise UsageError(f"--rate goes with --band and is a positive number of samples a second, got {rate:g}.")
    if band is not None and rate is not None:
        if max(band) > rate / 2:
            raise UsageError(f"--band reaches {max(band):g} Hz, above Nyquist's {rate / 2:g} Hz of --rate {rate:g}.")
        band = band[0] / rate, band[1] / rate
    return {"steps": request.time_steps, "band": band}


def _tell_where(out: Path | None, curve: Curve, console: Console) -> None:
    """Print the location of the record, and how to resume if time ran out."""
    if out is not None:
        console.print(f"record: {out / RECORD}", highlight=False, soft_wrap=True)
    if any(low < high for low, high in curve.bracket):
        goes = "the same command resumes from here" if out else "with --out FOLDER the same command resumes from here"
        console.print(f"{goes}; a larger --limit decides more samples at once.", highlight=False, soft_wrap=True)


def learned_by(request: Attack) -> Preprocess | None:
    """The run's preprocessing; None for a class, or a model without it."""
    folder = Path(request.run)
    return preprocess_in(folder, request.checkpoint) if folder.is_dir() else None


def in_type_of(model: nn.Module, data: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """x in the model's own type where both are float32 or float64: numpy writes float64 unless told."""
    full = (torch.float32, torch.float64)
    own = next((p.dtype for p in model.parameters() if p.is_floating_point()), data[0].dtype)
    return (data[0].to(own), *data[1:]) if own in full and data[0].dtype in full else data


class Paired(nn.Module):
    """A model with one logit for two classes as one with two, as attacks require."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, *lengths: Tensor) -> Tensor:
        return pair_logits(self.model(x, *lengths))


def _one_logit(model: nn.Module, data: tuple[Tensor, ...]) -> bool:
    """Whether labels are 0 and 1 and the model returns one number per sample."""
    y = data[1]
    if y.is_floating_point() or not y.numel() or int(y.min()) < 0 or int(y.max()) > 1:
        return False
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    sample = [part[:1].to(device) for part in (data[0], *data[2:])]
    try:
        with torch.no_grad(), Victim(model).attacked():
            return binary(model(*sample))
    except Exception:  # errors of the model are reported by the evaluation
        return False


def _how_to_name(target: str) -> str:
    """Advice for a folder that does not exist."""
    suffix = Path(target).suffix.lower()
    if suffix == ".py":
        return f"{target!r} names no class; write {target}:YourModel, and its weights with --weights FILE."
    if suffix in (".pt", ".pth", ".bin", ".ckpt", ".safetensors"):
        return f"{target!r} holds weights alone; name the class too: path/to/file.py:YourModel --weights {target}."
    return f"there is no folder {target!r}; give that of a run or a saved model, or path/to/file.py:YourModel."


def load(target: str, kwargs: str, checkpoint: Kept = "best", weights: Path | None = None) -> nn.Module:
    """The model in a run's folder, of the checkpoint named, or an instance of package.module:Class."""
    folder = Path(target)
    if folder.is_dir():
        if weights is not None:
            raise UsageError("--weights goes with package.module:Class; a saved model carries its own weights.")
        if kwargs != "{}":
            raise UsageError("--kwargs goes with package.module:Class; a saved model carries its own settings.")
        from resolvent.models import load_model

        return load_model(weights_in(folder, checkpoint))
    if ":" not in target:
        raise UsageError(_how_to_name(target))
    made = make(target, kwargs)
    if not isinstance(made, nn.Module):
        raise UsageError(f"{target} is no torch.nn.Module but {type(made).__name__}.")
    if weights is not None:
        load_weights(made, weights)
    return made
