"""`resolvent analyse`: from a run, a preset or an initialisation to a page, its numbers and its figures."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from resolvent.commands.analyse.options import Analyse
from resolvent.commands.attack.execute import load
from resolvent.data.task import Split
from resolvent.disk import write_json
from resolvent.experiments.provenance import provenance
from resolvent.experiments.stages.attributed import attribute
from resolvent.experiments.stages.inside import inside
from resolvent.experiments.stages.portrait import portrait
from resolvent.experiments.store.folder import CELL, Folder
from resolvent.experiments.tasks import open_task
from resolvent.models import Model, ModelConfig, TwoTower, build_model, presets
from resolvent.predictor.samples import samples_of
from resolvent.report import require_packages
from resolvent.report.analysis_page import NAMES, facts, write_analysis, write_figures
from resolvent.usage.destination import require_writable
from resolvent.usage.error import UsageError
from resolvent.usage.load import suggestion


def run(request: Analyse) -> int:
    """Analyse, write, and print where. User errors are UsageErrors."""
    console = Console(soft_wrap=True, highlight=False)
    _check_places(request)
    try:
        with console.status("analysing"):
            record = analyse(request)
    except (ValueError, TypeError) as wrong:
        raise UsageError(str(wrong)) from wrong
    show(record, console)
    page = write_analysis(record, request.out)
    if request.json is not None:
        write_json(request.json, record, finite=True)
    if request.figures is not None:
        made = write_figures(record, request.figures)
        console.print(f"{len(made)} figures in {request.figures.resolve()}")
    console.print(f"The analysis is at {page.resolve()}")
    return 0


def analyse(request: Analyse) -> dict[str, Any]:
    """The record: plain values."""
    asked = [name for name in ("target", "preset", "init") if getattr(request, name) is not None]
    if len(asked) != 1:
        raise UsageError("name one thing to look into: the folder of a model, --preset NAME, or --init NAME --n 64.")
    if request.data is not None and request.target is None:
        raise UsageError("--data needs the folder of a run: its samples are attacked to see what each component does.")
    if request.attribution and request.target is None:
        raise UsageError("--attribution needs the folder of a run: it attacks the trained model on the run's own data.")
    if request.init is not None:
        made = portrait(request.init, request.n, contours=request.contours)
    elif request.preset is not None:
        torch.manual_seed(request.seed)
        made = inside(build_model(preset(request.preset)), f"{request.preset}, as it starts")
    else:
        made = _analyse_run(request)
    return {"format": 1, "versions": provenance(torch.device("cpu")), **made}


def _analyse_run(request: Analyse) -> dict[str, Any]:
    assert request.target is not None
    model = load(str(request.target), "{}")
    wanted = request.attribution or request.data is not None
    held = _attribution(request, request.target, model) if wanted else None
    title = f"{type(model).__name__} in {request.target.name or request.target}"
    return inside(model, title) | {"attribution": held}


def _attribution(request: Analyse, target: Path, model: nn.Module) -> dict[str, Any]:
    """Attribution on the run's own samples, or with another file as the test split."""
    if not (target / CELL).is_file() or not isinstance(model, Model | TwoTower):
        raise UsageError(f"--attribution needs a folder that `resolvent run` wrote: there is no {CELL} in {target}.")
    cell = Folder(target).cell()
    found = samples_of(target, request.data, request.new.reading())
    test = Split(found.x, found.y, found.lengths)
    return attribute(model.eval(), open_task(cell.task), cell.goal, cell.seed, test=test, bounds=found.bounds)


def preset(text: str) -> ModelConfig:
    """`robustness:s4,cifar10`: a function of models.presets and its arguments."""
    name, _, rest = text.partition(":")
    known = {each: getattr(presets, each) for each in presets.__all__ if inspect.isfunction(getattr(presets, each))}
    known = {each: make for each, make in known.items() if not each.endswith("_training")}
    if name not in known:
        raise UsageError(f"there is no preset {name!r}; {suggestion(name, list(known))}")
    given = [_value(part.strip()) for part in rest.split(",") if part.strip()]
    try:
        config = known[name](*given)
    except (TypeError, KeyError) as wrong:
        raise UsageError(f"--preset {name}{inspect.signature(known[name])}: {wrong}") from wrong
    if not isinstance(config, ModelConfig):
        raise UsageError(f"the preset {name} makes {type(config).__name__}, not a model.")
    return config


def _value(text: str) -> str | int | float:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _check_places(request: Analyse) -> None:
    require_packages()
    for name in NAMES.values():
        require_writable(request.out / name, "--out")
    if request.json is not None:
        require_writable(request.json, "--json")
    if request.figures is not None:
        require_writable(request.figures / "figure.svg", "--figures")


def show(record: dict[str, Any], console: Console) -> None:
    """The facts as a table."""
    made = Table(title=record["title"], title_justify="left", title_style="bold", box=None, show_header=False)
    for name, value in facts(record):
        made.add_row(name, value)
    console.print(made)
