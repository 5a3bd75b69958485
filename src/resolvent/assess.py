"""`resolvent attack`: a saved model or somebody else's class, data, a threat; the evaluation printed and kept."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, Protocol
from zipfile import BadZipFile

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from torch import Tensor, nn

from resolvent.attacks.evaluate import RECORD, EvaluationSettings
from resolvent.attacks.model import Victim
from resolvent.attacks.presets import check_preset
from resolvent.attacks.rounds import Listener
from resolvent.attacks.threat import Norm, Threat
from resolvent.conformance.destination import require_writable
from resolvent.conformance.load import UsageError, load_class, parse_kwargs
from resolvent.data import Task, from_file
from resolvent.data.file import SUFFIXES
from resolvent.data.words import numbered
from resolvent.experiments.folder import CELL, Folder, RunError, read_json
from resolvent.experiments.interrupt import interrupted_once, others_missed
from resolvent.experiments.tasks import open_task
from resolvent.experiments.together import evaluate_together
from resolvent.training.crew import crew_of_torchrun, speaks
from resolvent.training.criterion import binary, paired

Kept = Literal["best", "last", "best_by_test"]
WEIGHTS = "model.safetensors"
TABLES = (".csv", ".tsv", ".parquet", ".ts")
Samples = tuple[tuple[Tensor, ...], tuple[float, float] | None]  # (x, y) or (x, y, lengths), and the valid range


class Request(Protocol):
    """What the command line hands over."""

    @property
    def run(self) -> str: ...
    @property
    def preset(self) -> str: ...
    @property
    def norm(self) -> Norm: ...
    @property
    def eps(self) -> str: ...
    @property
    def bounds(self) -> tuple[float, float] | None: ...
    @property
    def data(self) -> str | None: ...
    @property
    def samples(self) -> int | None: ...
    @property
    def batch_size(self) -> int: ...
    @property
    def seed(self) -> int: ...
    @property
    def kwargs(self) -> str: ...
    @property
    def device(self) -> str: ...
    @property
    def out(self) -> Path | None: ...
    @property
    def checkpoint(self) -> Kept: ...


def run(request: Request) -> int:
    """Print the summary; 0 when done. What the user can mend comes as a UsageError."""
    console = Console(quiet=not speaks())
    eps = number("--eps", request.eps)
    if request.out is not None:
        require_writable(request.out / RECORD, "--out")
    try:
        check_preset(request.preset)
        settings = EvaluationSettings(request.seed, request.batch_size, request.samples)
        data, bounds = data_of(request.data, Path(request.run))
        threat = Threat(request.norm, eps, request.bounds or bounds)
        model = load(request.run, request.kwargs, request.checkpoint).to(_device(request.device))
        data = _in_type_of(model, data)
        model = Paired(model) if _one_logit(model, data) else model
        progress, listener = progress_bar(console)
        with progress, interrupted_once(), others_missed(), crew_of_torchrun(request.device):
            outcome = evaluate_together(model, data, threat, request.preset, settings, request.out, listener)
    except KeyboardInterrupt:
        kept = "nothing was kept: with --out FOLDER a stopped attack goes on"
        if request.out is not None:
            kept = f"finished batches are in {request.out}: the same command goes on from there"
        console.print(f"stopped; {kept}.", highlight=False, soft_wrap=True)
        return 130
    except (ValueError, TypeError) as wrong:
        raise UsageError(str(wrong).removeprefix("run: ")) from wrong
    console.print(str(outcome), highlight=False, soft_wrap=True)
    if request.out is not None:
        console.print(f"record: {request.out / RECORD}", highlight=False, soft_wrap=True)
    return 0


def _in_type_of(model: nn.Module, data: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """x in the model's own type where both are float32 or float64: numpy writes float64 unless told."""
    full = (torch.float32, torch.float64)
    own = next((p.dtype for p in model.parameters() if p.is_floating_point()), data[0].dtype)
    return (data[0].to(own), *data[1:]) if own in full and data[0].dtype in full else data


class Paired(nn.Module):
    """A model with one logit for two classes as one with two, which is what attacks ask for."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, *lengths: Tensor) -> Tensor:
        return paired(self.model(x, *lengths))


def _one_logit(model: nn.Module, data: tuple[Tensor, ...]) -> bool:
    """Whether labels are 0 and 1 and the model answers a sample with one number."""
    y = data[1]
    if y.is_floating_point() or not y.numel() or int(y.min()) < 0 or int(y.max()) > 1:
        return False
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    sample = [part[:1].to(device) for part in (data[0], *data[2:])]
    try:
        with torch.no_grad(), Victim(model).attacked():
            return binary(model(*sample))
    except Exception:  # whatever is wrong with this model: the evaluation says so in its own words
        return False


def number(option: str, text: str) -> float:
    """`8/255` or `0.031`."""
    try:
        return float(Fraction(text.replace(" ", "")))
    except (ValueError, ZeroDivisionError):
        raise UsageError(f"{option} must be a number such as 0.031 or 8/255, got {text!r}.") from None


def load(target: str, kwargs: str, checkpoint: Kept = "best") -> nn.Module:
    """The model in a run's folder, of the epoch that `checkpoint` names, or an instance of package.module:Class."""
    folder = Path(target)
    if folder.is_dir():
        if kwargs != "{}":
            raise UsageError("--kwargs goes with package.module:Class; a saved model carries its own settings.")
        return _saved(folder, checkpoint)
    if ":" not in target:
        raise UsageError(f"there is no folder {target!r}; give that of a saved model, or package.module:Class.")
    made = load_class(target)(**parse_kwargs(kwargs))
    if not isinstance(made, nn.Module):
        raise UsageError(f"{target} is no torch.nn.Module but {type(made).__name__}.")
    return made


def _saved(folder: Path, checkpoint: Kept) -> nn.Module:
    from resolvent.models import load_model

    run = folder / "checkpoint"
    place = next((p for p in (folder, run / checkpoint, folder / checkpoint, run) if (p / WEIGHTS).is_file()), None)
    if place is None:
        raise UsageError(_nothing(folder, checkpoint))
    return load_model(place)


def _nothing(folder: Path, checkpoint: Kept) -> str:
    kept = sorted(p.parent.name for p in (folder / "checkpoint").glob(f"*/{WEIGHTS}"))
    if kept:
        return f"the run in {str(folder)!r} has no checkpoint {checkpoint!r} yet, only {', '.join(map(repr, kept))}."
    return f"no {WEIGHTS} in {str(folder)!r}; save a model there with resolvent.models.save_model."


def data_of(data: str | None, run: Path) -> Samples:
    """What --data names; else the test samples of what the run was trained on, the user's own file included; else the
    digits."""
    if data is not None or not (run / CELL).is_file():
        return samples_of(data or task_of(run) or "digits")
    try:
        return _test_of(open_task(Folder(run).cell().task))
    except OSError as gone:
        raise UsageError(f"what this run was trained on cannot be read ({gone}); name it with --data.") from gone


def task_of(run: Path) -> str | None:
    """The task that a training run was about; None where there is no such run."""
    path = run / "config.json"
    try:
        name = read_json(path)["task"]["name"] if path.is_file() else None
    except (RunError, KeyError, TypeError):
        return None  # the settings of a saved model, or of something else
    return name if isinstance(name, str) else None


def samples_of(name: str) -> Samples:
    """Test samples of a task by name; or all that a file holds (.safetensors, .npz, a table, .ts), without bounds."""
    path = Path(name)
    if path.suffix.lower() in SUFFIXES and not path.is_file():
        raise UsageError(f"there is no file {name!r}; --data takes a task's name or such a file with x and y.")
    if path.suffix.lower() in TABLES:
        return _test_of(from_file(path, test=path))[0], None
    if path.suffix.lower() in SUFFIXES:
        held = _read(path)
        if not {"x", "y"} <= set(held):
            raise UsageError(f"{name} must hold x and y, it has {', '.join(sorted(held)) or 'nothing'}.")
        return tuple(held[key] for key in ("x", "y", "lengths") if key in held), None
    from resolvent.data import load_task

    return _test_of(load_task(name))


def _test_of(task: Task) -> Samples:
    test = task.test.unpack()
    return (test.x, test.y) if test.lengths is None else (test.x, test.y, test.lengths), task.bounds


def _read(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError

    try:
        return _tensors(path)
    except (ValueError, TypeError, OSError, SafetensorError, BadZipFile) as wrong:
        raise UsageError(f"{path} cannot be read as arrays of numbers: {_reason(wrong)}") from wrong


def _reason(wrong: Exception) -> str:
    """numpy advises to unpickle what it cannot read: nobody should."""
    text = str(wrong).splitlines()[0]
    return "it is no such file, or holds Python objects." if "pickle" in text else text


def _tensors(path: Path) -> dict[str, Tensor]:
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return dict(load_file(path))
    import numpy as np

    with np.load(path, allow_pickle=False) as held:
        known = [str(name) for name in held["class_names"]] if "class_names" in held.files else []
        answers, _ = numbered({"y": held["y"]} if "y" in held.files else {}, known)
        wanted = [key for key in held.files if key not in ("y", "class_names")]
        return {key: torch.as_tensor(value) for key, value in answers.items()} | {
            key: torch.as_tensor(held[key]) for key in wanted
        }


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as wrong:
        raise UsageError(f"--device {name!r} cannot be used here: {str(wrong).splitlines()[0]}") from None
    return device


def progress_bar(console: Console) -> tuple[AbstractContextManager[Any], Listener | None]:
    """A bar per attack on a terminal; nothing otherwise."""
    if not console.is_terminal:
        return nullcontext(), None
    count, name = TextColumn("{task.completed}/{task.total}"), TextColumn("{task.description}")
    progress = Progress(name, BarColumn(), count, TimeElapsedColumn(), TimeRemainingColumn(), console=console)
    tasks: dict[str, Any] = {}

    def listener(attack: str, done: int, total: int) -> None:
        if attack not in tasks:
            tasks[attack] = progress.add_task(attack, total=total)
        progress.update(tasks[attack], completed=done)

    return progress, listener
