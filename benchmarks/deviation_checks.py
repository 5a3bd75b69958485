"""100,000 attempts to move real outputs further than their certificate allows: gradient ascent from random starts.

    python -m benchmarks.deviation_checks --checks 100000 --out benchmarks/results/deviation_checks.json

A trial is one sample, one random start in the ball and several ascent steps on the distance of the outputs from those
at x, in float32 passes as a user runs them. It is violated when any point on the way lies within eps (measured in
float64) and its outputs moved further than the certificate says. `largest_share` is how much of it was used.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.about import about, processor
from resolvent.analysis import Deviation, certified_gain, certify_deviation
from resolvent.attacks import Draws, Threat
from resolvent.models import Model, build_model
from resolvent.models.config import (
    CertifiedConfig,
    ChannelsConfig,
    LipschitzConfig,
    ModelConfig,
    RegressionConfig,
)

LENGTH, CHANNELS, EPS = 24, 2, {"l2": 0.3, "linf": 0.05}
BATCH = 2000


def make_regressor(outputs: int, pooling: str, seed: int) -> Model:
    torch.manual_seed(seed)
    head = RegressionConfig(outputs, pooling)  # type: ignore[arg-type]
    config = ModelConfig(
        input=ChannelsConfig(CHANNELS), block=LipschitzConfig(), head=head, d_model=8, layers=2, norm="none",
        certified=CertifiedConfig(gain=2.0, kind="lipschitz"),
    )  # fmt: skip
    model = build_model(config)
    assert isinstance(model, Model)
    return model.eval()


def trial(model: Model, found: Deviation, x: Tensor, norm: Any, steps: int, seed: int) -> tuple[int, int, float]:
    """(trials, violations, largest share of the certificate) of one batch."""
    threat = Threat(norm, EPS[norm]).check(x)
    region, limit = threat.around(x), found.deviation(EPS[norm])
    with torch.no_grad():
        clean = model(x)
    point = threat.random_start(x, Draws.of(x, seed), surface=True)
    bad, share = torch.zeros(len(x), dtype=torch.bool), 0.0
    for i in range(steps + 1):
        point = point.detach().requires_grad_()
        apart = (model(point) - clean).flatten(1)
        moved = apart.detach().double().square().mean(1).sqrt()
        inside = threat.norm_of(point.detach().double() - x.double()) <= EPS[norm]
        bad |= inside & (moved > limit)
        share = max(share, float((moved / limit)[inside].amax()) if bool(inside.any()) else 0.0)
        (grad,) = torch.autograd.grad(apart.square().sum(), point)
        step = threat.radius(x) * (0.5 * 0.8**i)
        point = region.project(point.detach() + step * threat.steepest(grad))
    return len(x), int(bad.sum()), share


def run_checks(checks: int, steps: int) -> dict[str, Any]:
    cases = [(k, pooling, norm) for k, pooling in ((1, "mean"), (3, "last"), (2, "none")) for norm in ("l2", "linf")]
    rows: dict[str, dict[str, Any]] = {}
    done, seed = 0, 0
    while done < checks:
        k, pooling, norm = cases[seed % len(cases)]
        model = make_regressor(k, pooling, seed // len(cases) % 4)
        gain = certified_gain(model.gain_parts(LENGTH))
        size = min(BATCH, checks - done)
        x = torch.randn(size, LENGTH, CHANNELS, generator=torch.Generator().manual_seed(seed))
        found = certify_deviation(model, x, None, gain, norm=norm)
        n, bad, share = trial(model, found, x, norm, steps, seed)
        row = rows.setdefault(f"{k} outputs, {pooling}, {norm}", {"trials": 0, "violations": 0, "largest_share": 0.0})
        row["trials"] += n
        row["violations"] += bad
        row["largest_share"] = max(row["largest_share"], share)
        done, seed = done + n, seed + 1
    total = {key: sum(row[key] for row in rows.values()) for key in ("trials", "violations")}
    return {**total, "steps": steps, "cases": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checks", type=int, default=100_000)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    begun = time.perf_counter()
    found = run_checks(given.checks, given.steps)
    record = about(processor(1)) | {**found, "seconds": round(time.perf_counter() - begun, 1)}
    print(json.dumps(record, indent=1))
    if given.out is not None:
        given.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
