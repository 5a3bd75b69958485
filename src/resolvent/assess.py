"""`resolvent attack`: a saved model or somebody else's class, data, a threat; the evaluation printed and kept."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from fractions import Fraction
from pathlib import Path
from typing import Any, Protocol

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from torch import Tensor, nn

from resolvent.attacks.evaluate import EvaluationSettings, evaluate
from resolvent.attacks.presets import check_preset
from resolvent.attacks.rounds import Listener
from resolvent.attacks.threat import Norm, Threat
from resolvent.conformance.load import UsageError, load_class, parse_kwargs

PLACES = ("", "best", "checkpoint/best", "checkpoint", "last", "checkpoint/last")  # of a model in a run's folder
WEIGHTS = "model.safetensors"


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
    def data(self) -> str: ...
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


def run(request: Request) -> int:
    """Print the summary; 0 when done. What the user can mend comes as a UsageError."""
    console = Console()
    eps = number("--eps", request.eps)
    try:
        check_preset(request.preset)
        settings = EvaluationSettings(request.seed, request.batch_size, request.samples)
        x, y, bounds = load_data(request.data)
        threat = Threat(request.norm, eps, request.bounds or bounds)
        model = load(request.run, request.kwargs).to(_device(request.device))
        progress, listener = progress_bar(console)
        with progress:
            outcome = evaluate(
                model, (x, y), threat, request.preset, settings=settings, folder=request.out, listener=listener
            )
    except (ValueError, TypeError) as wrong:
        raise UsageError(str(wrong)) from wrong
    console.print(str(outcome), highlight=False, soft_wrap=True)
    if request.out is not None:
        console.print(f"record: {request.out / 'record.json'}", highlight=False, soft_wrap=True)
    return 0


def number(option: str, text: str) -> float:
    """`8/255` or `0.031`."""
    try:
        return float(Fraction(text.replace(" ", "")))
    except (ValueError, ZeroDivisionError):
        raise UsageError(f"{option} must be a number such as 0.031 or 8/255, got {text!r}.") from None


def load(target: str, kwargs: str) -> nn.Module:
    """The model in a run's folder, or an instance of package.module:Class."""
    folder = Path(target)
    if folder.is_dir():
        if kwargs != "{}":
            raise UsageError("--kwargs goes with package.module:Class; a saved model carries its own settings.")
        return _saved(folder)
    if ":" not in target:
        raise UsageError(f"there is no folder {target!r}; give that of a saved model, or package.module:Class.")
    made = load_class(target)(**parse_kwargs(kwargs))
    if not isinstance(made, nn.Module):
        raise UsageError(f"{target} is no torch.nn.Module but {type(made).__name__}.")
    return made


def _saved(folder: Path) -> nn.Module:
    from resolvent.models import load_model

    for place in PLACES:
        if (folder / place / WEIGHTS).is_file():
            return load_model(folder / place)
    raise UsageError(f"no {WEIGHTS} in {str(folder)!r}; save a model there with resolvent.models.save_model.")


def load_data(name: str) -> tuple[Tensor, Tensor, tuple[float, float] | None]:
    """Test samples, labels and bounds of a task by name; or x and y of a .safetensors or .npz file, without bounds."""
    path = Path(name)
    if path.suffix in (".safetensors", ".npz"):
        if not path.is_file():
            raise UsageError(f"there is no file {name!r}; --data takes a task's name or such a file with x and y.")
        held = _tensors(path)
        if not {"x", "y"} <= set(held):
            raise UsageError(f"{name} must hold x and y, it has {', '.join(sorted(held)) or 'nothing'}.")
        return held["x"], held["y"], None
    from resolvent.data import load_task

    task = load_task(name)
    return task.test.x, task.test.y, task.bounds


def _tensors(path: Path) -> dict[str, Tensor]:
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return dict(load_file(path))
    import numpy as np

    with np.load(path, allow_pickle=False) as held:
        return {key: torch.as_tensor(held[key]) for key in held.files}


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
    progress = Progress(name, BarColumn(), count, TimeElapsedColumn(), console=console)
    tasks: dict[str, Any] = {}

    def listener(attack: str, done: int, total: int) -> None:
        if attack not in tasks:
            tasks[attack] = progress.add_task(attack, total=total)
        progress.update(tasks[attack], completed=done)

    return progress, listener
