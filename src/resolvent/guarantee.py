"""`resolvent certify`: a saved model, data, a size; certified below, attacked above, and the gain of every part.

In Linf a sample counts as certified when its Lipschitz radius reaches eps, or when linear bounds over the box of inputs
leave its margin positive; both shares are told.
"""

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
    LinfSettings,
    NoBound,
    SmoothingSettings,
    certificate_report,
    certified_gain,
    certify_linf,
    check_sandwich,
)
from resolvent.assess import data_of, load, number
from resolvent.attacks import Threat, autoattack
from resolvent.attacks.presets import check_preset
from resolvent.conformance.destination import require_writable
from resolvent.conformance.load import UsageError
from resolvent.disk import replace
from resolvent.models import Model, TokensConfig
from resolvent.models.parts import last_weight
from resolvent.report.run_page import reasons
from resolvent.stages import stages_of

NONE = "none"
ROWS = 32  # samples whose linear bounds are computed at once
Data = tuple[Tensor, Tensor, tuple[float, float] | None]  # x, y, the valid range of a value


class Request(Protocol):
    """What the command line hands over."""

    @property
    def run(self) -> Path: ...
    @property
    def norm(self) -> Literal["l2", "linf", "l1"]: ...
    @property
    def eps(self) -> str: ...
    @property
    def data(self) -> str | None: ...
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
    smoothing = None
    if request.smoothing is not None:
        smoothing = SmoothingSettings(sigma=request.smoothing, n=request.noise_samples, seed=request.seed)
    settings = CertifySettings(eps, request.norm, smoothing=smoothing)
    model = _model(request)
    x, y, bounds = _samples(request)
    data = (x[: request.samples], y[: request.samples], bounds)
    gain = certified_gain(model.gain_parts(x.shape[1]), head=last_weight(model.head))
    box = _box(model, data, eps) if request.norm == "linf" else "linear bounds are for linf"
    bounded = gain.value is not None or isinstance(box, Tensor)
    robust = _robust(request, model, data, eps) if bounded else None
    record = certificate_report(model, gain, *data[:2], settings, robust=robust)
    return (_joined(record, box, model, data, robust) if request.norm == "linf" else record), gain


def _samples(request: Request) -> Data:
    (x, y, *lengths), bounds = data_of(request.data, request.run)
    if lengths:
        raise UsageError(
            "certify takes sequences of one length, and these have several; the certificate of a run with padded "
            "sequences is in its report, made when it was trained."
        )
    return x, y, bounds


def _model(request: Request) -> Model:
    model = load(str(request.run), "{}")
    if not isinstance(model, Model):
        raise UsageError(f"certify needs a model of this library with one input, got {type(model).__name__}.")
    if isinstance(model.config.input, TokensConfig):
        raise UsageError(
            "certify: this model reads tokens, which have no distance in any norm; certify model.from_embedding in the "
            "space of embeddings."
        )
    return model.eval()


def _robust(request: Request, model: Model, data: Data, eps: float) -> Tensor | None:
    """Who withstands the attack within eps; None without one."""
    if request.preset == NONE or eps == 0:
        return None
    x, y, bounds = data
    threat = Threat(request.norm, eps, bounds)
    found: Tensor = autoattack(model, x, y, threat, request.preset, seed=request.seed, batch_size=256).robust
    return found


def _box(model: Model, data: Data, eps: float) -> Tensor | str:
    """Whom linear bounds certify within eps in Linf (b,), or why there are none."""
    x, y, bounds = data
    try:
        stages = stages_of(model, x.shape[1])
        settings = LinfSettings(bounds)
        parts = zip(x.split(ROWS), y.split(ROWS), strict=True)
        return torch.cat([certify_linf(stages, a, b, eps, settings).certified for a, b in parts])
    except NoBound as refused:
        return str(refused)


def _joined(
    record: dict[str, Any], box: Tensor | str, model: Model, data: Data, robust: Tensor | None
) -> dict[str, Any]:
    """The record with what linear bounds add to the Lipschitz radius."""
    if isinstance(box, str):
        return record | {"linear": {"certified": None, "reason": box}}
    x, y, _ = data
    eps, held = record["eps"], record.get("certificate")
    with torch.no_grad():
        correct = model(x).argmax(-1) == y
    radius = torch.tensor([0.0] * len(y) if held is None else held["radius"])
    both = check_sandwich(
        box & correct | (radius > 0) & (radius >= eps) & correct, robust, correct, norm="linf", eps=eps
    )
    share = float((box & correct).double().mean())
    told = {"certified": share, "samples": box.tolist()}
    return record | {"status": "certified", "sandwich": both.as_dict(), "text": str(both), "linear": told}


def show(record: dict[str, Any], gain: Gain, console: Console) -> None:
    """The gain part by part, then the accuracy between its two bounds."""
    why = "; ".join(reasons(gain.explanation)) if gain.value is None else ""
    console.print(str(gain).replace(gain.explanation, why) if why else str(gain))
    if record["status"] == "certified":
        console.print(record["text"])
        _show_ways(record, console)
    else:
        console.print("refused: without a finite bound nothing is certified; the lines above name what breaks it")
        if "smoothing" not in record:
            console.print("a smoothed version can be certified in L2: add --smoothing 0.25")
    if "smoothing" in record:
        held = record["smoothing"]
        console.print(f"smoothed: {held['certified']:.1%} certified within {held['eps']:g} in L2")


def _show_ways(record: dict[str, Any], console: Console) -> None:
    """Which bound gave the number."""
    held, linear = record.get("certificate"), record.get("linear")
    if held is not None:
        radii = torch.tensor(held["radius"], dtype=torch.float64)
        share = float(((radii > 0) & (radii >= record["eps"]) & torch.tensor(held["correct"])).double().mean())
        way = "pair by pair over the last map" if held["pairwise"] else "of the whole model"
        console.print(
            f"by the Lipschitz constant, {way}: {share:.1%}; radius: median {float(radii.median()):.4g}, "
            f"largest {float(radii.max()):.4g}"
        )
    if linear is not None:
        told = linear.get("reason") or f"{linear['certified']:.1%}"
        console.print(f"by linear bounds over the box: {told}")
