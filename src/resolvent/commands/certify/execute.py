"""`resolvent certify`: from a saved model, data and a size to certified and attacked accuracy, and each part's gain.

In Linf a sample counts as certified if its Lipschitz radius reaches eps, or if linear bounds over the input box
leave its margin positive; both shares are printed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

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
    certify_deviation,
    certify_linf,
    check_sandwich,
)
from resolvent.attacks import EvaluationSettings, Threat, evaluate
from resolvent.attacks.autoattack.outcome import standard_error
from resolvent.attacks.autoattack.presets import check_preset
from resolvent.attacks.threat.threat import Sizes
from resolvent.commands.attack.execute import in_type_of, load
from resolvent.commands.attack.sizes import line_of, threats_of
from resolvent.commands.certify.options import Certify
from resolvent.commands.certify.stages import pad_stages, stages_of
from resolvent.disk import write_json
from resolvent.models import Model, TokensConfig
from resolvent.models.parts import last_weight
from resolvent.predictor.samples import Samples, samples_of
from resolvent.predictor.saved import preprocess_in
from resolvent.report.run_page import reasons
from resolvent.usage.destination import require_writable
from resolvent.usage.error import UsageError

NONE = "none"
EPS = "0.5"  # default size
ROWS = 32  # samples per batch of linear bounds


def run(request: Certify) -> int:
    """Print the certificate; 1 when the model has no finite bound."""
    console = Console(soft_wrap=True, highlight=False)
    if request.json is not None:
        require_writable(request.json, "--json")
    try:
        threats = threats_of(request, request.norm, preprocess_in(request.run, request.checkpoint), EPS)
        if _answers_are_real(request):
            return certify_regression(request, threats, console)
        if request.tolerance is not None:
            raise UsageError("--tolerance is for models with real outputs; this model predicts classes: leave it out.")
        records, gain = _records(request, threats, console)
    except Crossed:
        raise  # a contradiction between certificate and attack is not a user error
    except (ValueError, TypeError) as wrong:
        raise UsageError(str(wrong)) from wrong
    show(records[0], gain, console)
    if records[0]["status"] == "certified":
        console.print(_terms(records[0], request))
    if len(records) > 1:
        _show_curve(records, console)
    if any(isinstance(threat.eps, tuple) for threat in threats):
        console.print("the attack keeps each channel's eps; the certificate holds in the ball of the largest")
    if request.json is not None:
        several = {"curve": [_point(record) for record in records], "records": records}
        write_json(request.json, records[0] if len(records) == 1 else several)
        console.print(f"record: {request.json}")
    return 0 if all(record["status"] == "certified" for record in records) else 1


def _answers_are_real(request: Certify) -> bool:
    learned = preprocess_in(request.run, request.checkpoint)
    return learned is not None and learned.classes is None


def certify_regression(request: Certify, threats: Sequence[Threat], console: Console) -> int:
    """Bound the change of the outputs for each size; 1 when the model has no finite bound."""
    model = _model(request)
    data = _samples(request, model, console)
    shortest = data.x.shape[1] if data.lengths is None else int(data.lengths.min())
    gain = certified_gain(model.gain_parts(shortest))
    console.print(str(gain))
    if gain.value is None:
        console.print("refused: without a finite bound nothing is certified; the lines above name what breaks it")
        return 1
    found = certify_deviation(model, data.x, data.y, gain, norm=request.norm, lengths=data.lengths)
    record: dict[str, Any] = {"gain": gain.as_dict(), "certificate": found.as_dict(), "curve": []}
    for threat in threats:
        eps = max(line_of(threat.eps))
        point = {"eps": eps, "deviation": float(found.deviation(eps).max()), "error": float(found.error(eps).mean())}
        message = f"{request.norm} eps {eps:g}: outputs move by at most {point['deviation']:.6g}; error at most "
        message += f"{point['error']:.6g} (mean; clean {float(found.clean.mean()):.6g})"
        if request.tolerance is not None:
            point["within"] = found.within(eps, request.tolerance)
            message += f"; {point['within']:.1%} certified within {request.tolerance:g}"
        record["curve"].append(point)
        console.print(message)
    if request.json is not None:
        write_json(request.json, record)
        console.print(f"record: {request.json}")
    return 0


def _records(request: Certify, threats: Sequence[Threat], console: Console) -> tuple[list[dict[str, Any]], Gain]:
    """A record per size, smallest first; the attack shares its work between them."""
    if request.preset != NONE:
        check_preset(request.preset)
    smoothing = None
    if request.smoothing is not None:
        smoothing = SmoothingSettings(sigma=request.smoothing, n=request.noise_samples, seed=request.seed)
    radii = [max(line_of(threat.eps)) for threat in threats]  # of a ball containing the attack's
    settings = [CertifySettings(eps, request.norm, smoothing=smoothing) for eps in radii]
    model = _model(request)
    data = _samples(request, model, console)
    threats = [replace(threat, bounds=threat.bounds or data.bounds) for threat in threats]
    shortest = data.x.shape[1] if data.lengths is None else int(data.lengths.min())
    gain = certified_gain(model.gain_parts(shortest), head=last_weight(model.head))
    other = "linear bounds are for linf"
    bounds = threats[0].bounds
    boxes = [_box(model, data, eps, bounds) if request.norm == "linf" else other for eps in radii]
    bounded = gain.value is not None or any(isinstance(box, Tensor) for box in boxes)
    stood = _robust(request, model, data, threats) if bounded else [None] * len(threats)
    found = []
    for each, box, robust in zip(settings, boxes, stood, strict=True):
        record = certificate_report(model, gain, data.x, data.y, each, robust=robust, lengths=data.lengths)
        found.append(_add_linear_bounds(record, box, model, data, robust) if request.norm == "linf" else record)
    return found, gain


def _samples(request: Certify, model: Model, console: Console) -> Samples:
    """The requested first samples, in the model's dtype if both are float32 or float64."""
    if request.on.samples is not None and request.on.samples < 1:
        raise UsageError(f"--samples must be at least 1, got {request.on.samples}; leave it out for all of them.")
    found = samples_of(request.run, request.on.data, request.new.reading(), request.checkpoint)
    for note in found.notes:
        console.print(f"note: {note}", markup=False)
    x, y, *lengths = (part[: request.on.samples] for part in in_type_of(model, found.data))
    return replace(found, x=x, y=y, lengths=lengths[0] if lengths else None)


def _model(request: Certify) -> Model:
    model = load(str(request.run), "{}", request.checkpoint)
    if not isinstance(model, Model):
        raise UsageError(
            f"certify needs a model of this library with one input, whose gain it can bound, got {type(model).__name__}"
            "; of a model whose Lipschitz constant you know, resolvent.analysis.certify(model, x, y, constant) gives "
            "radii, and resolvent.analysis.smooth(model, x, y, settings) of any; for padded sequences with "
            "lengths=lengths and a `forward(self, x, lengths=None)`."
        )
    if isinstance(model.config.input, TokensConfig):
        raise UsageError(
            "certify: this model reads tokens, which have no distance in any norm; certify model.from_embedding in the "
            "space of embeddings."
        )
    return model.eval()


def _robust(request: Certify, model: Model, data: Samples, threats: Sequence[Threat]) -> list[Tensor | None]:
    """Which samples resist the attack at each size; None without one."""
    if request.preset == NONE:
        return [None] * len(threats)
    settings, sizes = EvaluationSettings(request.seed, 256, probe=0), [each.eps for each in threats]
    curve = evaluate(model, data.data, threats[0], request.preset, eps=sizes, settings=settings)
    stood = [point.result.robust for point in curve.evaluations]
    return [robust if max(line_of(each.eps)) else None for robust, each in zip(stood, threats, strict=True)]


def _box(model: Model, data: Samples, eps: float, bounds: tuple[Sizes, Sizes] | None) -> Tensor | str:
    """Which samples linear bounds certify within eps in Linf (b,), or why there are no bounds."""
    try:
        stages = stages_of(model, data.x.shape[1])
    except NoBound as refused:
        return str(refused)
    one_range = bounds is not None and all(isinstance(bound, int | float) for bound in bounds)
    settings, found = LinfSettings(bounds if one_range else None), []
    for rows in torch.arange(len(data.y)).split(ROWS):
        own = None if data.lengths is None else data.lengths[rows]
        chain = stages if own is None else pad_stages(stages, own)
        found.append(certify_linf(chain, data.x[rows], data.y[rows], eps, settings, lengths=own).certified)
    return torch.cat(found)


def _add_linear_bounds(
    record: dict[str, Any], box: Tensor | str, model: Model, data: Samples, robust: Tensor | None
) -> dict[str, Any]:
    """Add the results of linear bounds to the record."""
    if isinstance(box, str):
        return record | {"linear": {"certified": None, "reason": box}}
    eps, held = record["eps"], record.get("certificate")
    with torch.no_grad():
        correct = model(data.x, data.lengths).argmax(-1) == data.y
    radius = torch.tensor([0.0] * len(data.y) if held is None else held["radius"], dtype=torch.float64)
    both = check_sandwich(
        box & correct | (radius > 0) & (radius >= eps) & correct, robust, correct, norm="linf", eps=eps
    )
    share = float((box & correct).double().mean())
    row = {"certified": share, "samples": box.tolist()}
    return record | {"status": "certified", "sandwich": both.as_dict(), "text": str(both), "linear": row}


def _point(record: dict[str, Any]) -> dict[str, Any]:
    both = record.get("sandwich") or {}
    return {"eps": record["eps"], "certified": both.get("certified"), "attacked": both.get("attacked")}


def _terms(record: dict[str, Any], request: Certify) -> str:
    """The conditions of the two bounds: samples, standard errors, the attack."""
    both, n = record["sandwich"], record["samples"]
    ends = (both["certified"], both["clean"] if both["attacked"] is None else both["attacked"])
    errors = " and ".join(f"{standard_error(share, n):.1%}" for share in ends)
    attack = "no attack" if both["attacked"] is None else f"attack {request.preset}"
    return f"n {n}, {attack}; standard errors {errors}"


def _show_curve(records: Sequence[dict[str, Any]], console: Console) -> None:
    """Certified and attacked accuracy, size by size."""
    n = records[0]["samples"]
    console.print("  eps            certified        attacked")
    for point in map(_point, records):
        shares = (point["certified"], point["attacked"])
        cells = ("-" if v is None else f"{100 * v:.1f} ± {100 * standard_error(v, n):.1f} %" for v in shares)
        console.print("  {:<10.6g}  {:>12}  {:>14}".format(point["eps"], *cells))


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
            console.print(
                "`resolvent run train --certified` trains a model with a bound; this one can be certified in L2 after "
                "smoothing: add --smoothing 0.25"
            )
    if "smoothing" in record:
        held = record["smoothing"]
        console.print(f"smoothed: {held['certified']:.1%} certified within {held['eps']:g} in L2")


def _show_ways(record: dict[str, Any], console: Console) -> None:
    """Print which bound gave the number."""
    held, linear = record.get("certificate"), record.get("linear")
    if held is not None:
        radii = torch.tensor(held["radius"], dtype=torch.float64)
        share = float(((radii > 0) & (radii >= record["eps"]) & torch.tensor(held["correct"])).double().mean())
        way = "pair by pair over the last map" if held["pairwise"] else "of the whole model"
        console.print(
            f"by the Lipschitz constant, {way}: {share:.1%}; radius: median {float(radii.quantile(0.5)):.4g}, "
            f"largest {float(radii.max()):.4g}"
        )
    if linear is not None:
        message = linear.get("reason") or f"{linear['certified']:.1%}"
        console.print(f"by linear bounds over the box: {message}")
