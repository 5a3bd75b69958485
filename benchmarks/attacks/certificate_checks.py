"""One million attempts to break a certificate: random and ascending perturbations inside the radius, float32 passes.

    python -m benchmarks.attacks.certificate_checks --checks 1000000 --out benchmarks/results/certificate_checks.json

A check is one perturbed sample that lies within its certified radius (measured in float64) and is run as a user runs
it. It is violated when the answer changes; for `gain`, when logits move further than the constant and the rounding that
is allowed. `largest_share_of_rounding_used` is that of float32 passes against the certified function in float64.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.about import about, processor
from benchmarks.attacks.certificate_cases import Case, make_case, unit_directions
from resolvent.analysis import Gain, LinfSettings, NoBound, certified_gain, certify, linf_radius
from resolvent.analysis.certificates.gain_rounding import logit_error
from resolvent.analysis.certificates.interval_stages import run
from resolvent.commands.certify.stages import stages_of
from resolvent.models.parts import last_weight

SAMPLES, RANDOM = 32, 32
RESTARTS, ASCENT = 3, 10
FRACTIONS = (1.0, 1.0, 0.999, 0.5)


def check_case(case: Case, seed: int = 0) -> tuple[Counter[str], Counter[str], list[float]]:
    """(checks, violations) by route, and the shares of the rounding allowance that were used."""
    checks: Counter[str] = Counter()
    broken: Counter[str] = Counter()
    shortest = case.x.shape[1] if case.lengths is None else int(case.lengths.min())
    gain = certified_gain(case.model.gain_parts(shortest), head=last_weight(case.model.head))
    generator = torch.Generator().manual_seed(seed)
    for route, norm, radius in routes(case, gain):
        sure = (radius > 0).nonzero()[:, 0]
        if not len(sure):
            continue
        part = Case(case.name, case.model, case.x[sure], case.y[sure], _rows(case.lengths, sure))
        for held, moved in perturbed(part, norm, radius[sure], generator):
            answers = _run(held.model, moved, held.lengths)
            checks[route] += len(answers)
            broken[route] += int((answers.argmax(-1) != held.y).sum())
    if gain.value is not None:
        n, wrong = check_gain(case, gain, generator)
        checks["gain"] += n
        broken["gain"] += wrong
    return checks, broken, [] if gain.value is None else used(case, gain)


def routes(case: Case, gain: Gain) -> Iterator[tuple[str, str, Tensor]]:
    """(route, norm, radii (b,)) of every certificate that this model has."""
    if gain.value is not None:
        for norm in ("l2", "linf"):
            found = certify(case.model, case.x, case.y, gain, norm=norm, lengths=case.lengths)
            yield norm, norm, torch.where(found.correct, found.radius, 0.0)
    try:
        stages = stages_of(case.model, case.x.shape[1], case.lengths)
    except NoBound:
        return
    for method in ("interval", "linear"):
        settings = LinfSettings(method=method, rows=48)
        yield method, "linf", linf_radius(stages, case.x, case.y, settings, lengths=case.lengths, steps=10)


def perturbed(case: Case, norm: str, radius: Tensor, generator: torch.Generator) -> Iterator[tuple[Case, Tensor]]:
    """Inputs within the radius: random ones (corners in Linf), then some that climb against the answer."""
    many = repeated(case, RANDOM)
    share = torch.tensor(FRACTIONS, dtype=torch.float64).repeat_interleave(len(case.y)).repeat(RANDOM // len(FRACTIONS))
    yield many, inside(many.x, _started(many, norm, generator) * (share * radius.repeat(RANDOM))[:, None, None])
    few, limit = repeated(case, RESTARTS), radius.repeat(RESTARTS)[:, None, None]
    moved = inside(few.x, _started(few, norm, generator) * 0.3 * limit)
    for _ in range(ASCENT):
        d = moved.double() - few.x.double() + limit / 3 * _steepest(_slope(few, moved), norm)
        moved = inside(few.x, _projected(d, norm, limit))
        yield few, moved


def repeated(case: Case, times: int) -> Case:
    lengths = None if case.lengths is None else case.lengths.repeat(times)
    return Case(case.name, case.model, case.x.repeat(times, 1, 1), case.y.repeat(times), lengths)


def _started(case: Case, norm: str, generator: torch.Generator) -> Tensor:
    d = unit_directions(case.x, case.lengths, generator)
    return d.sign() if norm == "linf" else d


def inside(x: Tensor, d: Tensor) -> Tensor:
    """x + d in float32, rounded towards x, so that nothing is further away than d is."""
    y = (x.double() + d).to(x.dtype)
    return torch.where((y.double() - x.double()).abs() > d.abs(), torch.nextafter(y, x), y)


def check_gain(case: Case, gain: Gain, generator: torch.Generator) -> tuple[int, int]:
    """Pairs at distances from far below one to far above; each of the two passes may be off by its own allowance."""
    error = logit_error(gain, case.x.shape[1], torch.finfo(case.x.dtype).eps, torch.finfo(case.x.dtype).tiny)
    many = repeated(case, RANDOM)
    z = _run(many.model, many.x, many.lengths).double()
    far = 10.0 ** torch.randint(-6, 5, (len(many.y),), generator=generator).double()
    d = unit_directions(many.x, many.lengths, generator) * far[:, None, None]
    moved = (many.x.double() + d).to(many.x.dtype)
    far = _norm(_own(many, moved) - _own(many, many.x))
    size = 2 * _norm(_own(many, many.x)) + far
    gone = (_run(many.model, moved, many.lengths).double() - z).norm(dim=1)
    allowed = gain.require() * far + 2 * error.const + error.slope * size
    return len(z), int((gone > allowed).sum())


def used(case: Case, gain: Gain) -> list[float]:
    """The largest |float32 logits - those of the certified stages in float64| over what is allowed, if it has any."""
    try:
        exact = run(stages_of(case.model, case.x.shape[1], case.lengths), case.x)
    except NoBound:
        return []
    error = logit_error(gain, case.x.shape[1], torch.finfo(case.x.dtype).eps, torch.finfo(case.x.dtype).tiny)
    off = (_run(case.model, case.x, case.lengths).double() - exact).norm(dim=1)
    return [float((off / (error.const + error.slope * _norm(_own(case, case.x)))).max())]


def _run(model: Any, x: Tensor, lengths: Tensor | None) -> Tensor:
    with torch.no_grad():
        found: Tensor = model(x, lengths)
    return found


def _slope(case: Case, x: Tensor) -> Tensor:
    """Of the best other logit minus the own."""
    x = x.detach().requires_grad_()
    z = case.model(x, case.lengths)
    own = z.gather(1, case.y[:, None])[:, 0]
    rest = z.scatter(1, case.y[:, None], -torch.inf).amax(1)
    (found,) = torch.autograd.grad((rest - own).sum(), x)
    return _own(case, found)


def _steepest(slope: Tensor, norm: str) -> Tensor:
    return slope.sign() if norm == "linf" else slope / _norm(slope).clamp_min(1e-300)[:, None, None]


def _projected(d: Tensor, norm: str, radius: Tensor) -> Tensor:
    if norm == "linf":
        return torch.minimum(torch.maximum(d, -radius), radius)
    return d * (radius / _norm(d).clamp_min(1e-300)[:, None, None]).clamp_max(1.0) * (1 - 1e-15)


def _own(case: Case, x: Tensor) -> Tensor:
    x = x.double()
    return x if case.lengths is None else x * (torch.arange(x.shape[1]) < case.lengths[:, None])[..., None]


def _norm(x: Tensor) -> Tensor:
    return x.flatten(1).norm(dim=1)


def _rows(lengths: Tensor | None, rows: Tensor) -> Tensor | None:
    return None if lengths is None else lengths[rows]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--checks", type=int, default=1_000_000)
    options.add_argument("--first", type=int, default=0, help="seed of the first case")
    options.add_argument("--out", type=Path)
    chosen = options.parse_args()
    torch.set_num_threads(1)
    start, seed, shares = time.time(), chosen.first, []
    checks: Counter[str] = Counter()
    broken: Counter[str] = Counter()
    while checks.total() < chosen.checks:
        case = make_case(seed, SAMPLES)
        done, wrong, share = check_case(case, seed)
        checks += done
        broken += wrong
        shares += share
        if wrong.total():
            print(f"VIOLATED: case {seed} ({case.name}): {dict(wrong)}", flush=True)
        seed += 1
        if seed % 50 == 0:
            print(f"{seed} cases, {checks.total():,} checks, {broken.total()} violated, {time.time() - start:.0f} s")
    record = about(processor(1)) | {
        "seconds": round(time.time() - start), "cases": seed - chosen.first, "first": chosen.first,
        "checks": checks.total(), "violated": broken.total(),
        "by_route": {name: {"checks": checks[name], "violated": broken[name]} for name in sorted(checks)},
        "largest_share_of_rounding_used": max(shares),
    }  # fmt: skip
    print(json.dumps(record, indent=1))
    if chosen.out is not None:
        chosen.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
