"""`resolvent certify`: a saved model, data, a size; certified below, attacked above, and the gain of every part."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from rich.console import Console
from torch import Tensor

from resolvent.analysis import (
    CertifySettings,
    Crossed,
    Gain,
    SmoothingSettings,
    certificate_report,
    certified_gain,
)
from resolvent.assess import load, load_data, number
from resolvent.attacks import Threat, autoattack
from resolvent.attacks.presets import check_preset
from resolvent.attacks.store import replace
from resolvent.conformance.destination import require_writable
from resolvent.conformance.load import UsageError
from resolvent.models import Model

NONE = "none"


class Request(Protocol):
    """What the command line hands over."""

    @property
    def run(self) -> Path: ...
    @property
    def norm(self) -> Literal["l2", "linf", "l1"]: ...
    @property
    def eps(self) -> str: ...
    @property
    def data(self) -> str: ...
    @property
    def samples(self) -> int | None: ...
    @property
    def preset(self) -> str: ...
    @property
    def smoothing(self) -> float | None: ...
    @property
    def noise_samples(self) -> int: ...
    @property
    def seed(self) -> int: ...
    @property
    def json(self) -> Path | None: ...


def run(request: Request) -> int:
    """Print the certificate; 1 when the model has no finite bound."""
    console = Console(soft_wrap=True, highlight=False)
    if request.json is not None:
        require_writable(request.json, "--json")
    eps = number("--eps", request.eps)
    try:
        record, gain = _record(request, eps)
    except Crossed:
        raise  # a contradiction between certificate and attack is no mistake of the user's
    except (ValueError, TypeError) as wrong:
        raise UsageError(str(wrong)) from wrong
    show(record, gain, console)
    if request.json is not None:
        text = json.dumps(record, indent=1) + "\n"
        replace(request.json, lambda part: part.write_text(text, encoding="utf-8"))
        console.print(f"record: {request.json}")
    return 0 if record["status"] == "certified" else 1


def _record(request: Request, eps: float) -> tuple[dict[str, Any], Gain]:
    if request.preset != NONE:
        check_preset(request.preset)
    model = load(str(request.run), "{}")
    if not isinstance(model, Model):
        raise UsageError(f"certify needs a model of this library with one input, got {type(model).__name__}.")
    model.eval()
    x, y, bounds = load_data(request.data)
    x, y = x[: request.samples], y[: request.samples]
    gain = certified_gain(model.gain_parts(x.shape[1]))
    smoothing = None
    if request.smoothing is not None:
        smoothing = SmoothingSettings(sigma=request.smoothing, n=request.noise_samples, seed=request.seed)
    settings = CertifySettings(eps, request.norm, smoothing=smoothing)
    robust = None if gain.value is None else _robust(request, model, x, y, eps, bounds)
    return certificate_report(model, gain, x, y, settings, robust=robust), gain


def _robust(
    request: Request, model: Model, x: Tensor, y: Tensor, eps: float, bounds: tuple[float, float] | None
) -> Tensor | None:
    """Who withstands the attack within eps; None without one."""
    if request.preset == NONE or eps == 0:
        return None
    threat = Threat(request.norm, eps, bounds)
    found: Tensor = autoattack(model, x, y, threat, request.preset, seed=request.seed, batch_size=256).robust
    return found


def show(record: dict[str, Any], gain: Gain, console: Console) -> None:
    """The gain part by part, then the accuracy between its two bounds."""
    console.print(str(gain))
    if record["status"] == "certified":
        console.print(record["text"])
        radii = torch.tensor(record["certificate"]["radius"])
        console.print(f"certified radius: median {float(radii.median()):.4g}, largest {float(radii.max()):.4g}")
    else:
        console.print(f"refused: {record['reason']}")
        if "smoothing" not in record:
            console.print("a smoothed version can be certified in L2: add --smoothing 0.25")
    if "smoothing" in record:
        held = record["smoothing"]
        console.print(f"smoothed: {held['certified']:.1%} certified within {held['eps']:g} in L2")
