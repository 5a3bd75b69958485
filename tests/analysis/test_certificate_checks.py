"""A few thousand of the million checks of benchmarks.attacks.certificate_checks; they would see a wrong radius."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
from benchmarks.attacks import certificate_checks as checks  # noqa: E402
from benchmarks.attacks.certificate_cases import Case, make_case  # noqa: E402
from resolvent.analysis import certified_gain, certify, certify_logits  # noqa: E402
from resolvent.analysis.certificates.gain_rounding import logit_error  # noqa: E402
from resolvent.lowering.parts import parts_of  # noqa: E402
from resolvent.models import ClassifierConfig, Model, ModelConfig, ResidualConfig, S4DConfig, build_model  # noqa: E402


@pytest.mark.parametrize("seed", [3, 8, 16, 21])
def test_no_certificate_is_broken(seed: int) -> None:
    done, wrong, shares = checks.check_case(make_case(seed, 12), seed)
    assert done.total() > 300
    assert wrong.total() == 0
    assert all(share < 0.5 for share in shares)


def linear_case(offset: float) -> Case:
    """A residual model without norm, small margins, and inputs that share a large offset."""
    torch.manual_seed(0)
    block = ResidualConfig(S4DConfig(d_state=8), mixer="linear", activation="relu")
    model = build_model(ModelConfig(block=block, head=ClassifierConfig(3), d_model=4, layers=2, norm="none")).eval()
    assert isinstance(model, Model)
    x = torch.randn(64, 16, 1) + offset
    with torch.no_grad():
        z = model(x)
        model.head.out.bias -= z.mean(0)  # answers hang on small differences of large numbers
        return Case("offset", model, x, model(x).argmax(-1), None)


@pytest.mark.parametrize("offset", [0.0, 1e3, 1e6])
def test_offsets_do_not_deceive(offset: float) -> None:
    done, wrong, _ = checks.check_case(linear_case(offset), 1)
    assert wrong.total() == 0
    assert done["l2"] > 0 or offset > 0


class Flat(nn.Module):
    """A linear map that cancels an offset of its first channel, but not the rounding of it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.out = nn.Linear(24, 3)
        first = self.out.weight.data.view(3, 8, 3)[..., 0]
        first -= first.mean(1, keepdim=True)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        return self.out(x.flatten(1))


def broken(f: Flat, x: Tensor, y: Tensor, radius: Tensor) -> int:
    """How many attempts within the radius change the answer."""
    sure = radius > 0
    part = Case("flat", f, x[sure], y[sure], None)  # type: ignore[arg-type]
    moved = checks.perturbed(part, "l2", radius[sure], torch.Generator().manual_seed(0))
    return sum(int((f(at).argmax(-1) != held.y).sum()) for held, at in moved)


def test_logits_alone_would_deceive_and_a_radius_that_is_too_large_is_seen() -> None:
    """Where the bound is tight, radii without what inputs lose on their way do not hold, nor do larger ones."""
    f = Flat().eval()
    gain = certified_gain(parts_of(f.out, "out"), head=f.out.weight)
    x = torch.randn(200, 8, 3)
    y = f(x).argmax(-1)
    radius = certify(f, x, y, gain).radius
    assert int((radius > 0).sum()) > 190
    assert broken(f, x, y, radius) == 0
    assert broken(f, x, y, 1.01 * radius) > 0
    for offset, least in ((1e4, 50), (1e6, 0)):
        moved = x + torch.tensor([offset, 0.0, 0.0])
        y = f(moved).argmax(-1)
        radius = certify(f, moved, y, gain).radius
        assert int((radius > 0).sum()) >= least
        assert broken(f, moved, y, radius) == 0
    naive = certify_logits(f(moved).detach(), y, gain).radius
    assert broken(f, moved, y, naive) > 50


def test_perturbations_stay_inside() -> None:
    case = make_case(8, 12)
    radius = torch.rand(12, dtype=torch.float64)
    for norm in ("l2", "linf"):
        for held, moved in checks.perturbed(case, norm, radius, torch.Generator().manual_seed(0)):
            d = moved.double() - held.x.double()
            size = d.flatten(1).norm(dim=1) if norm == "l2" else d.flatten(1).abs().amax(1)
            assert bool((size <= radius.repeat(len(size) // 12) * (1 + 1e-14)).all())


def test_the_allowance_grows_with_the_input_and_vanishes_in_float64() -> None:
    case = linear_case(0.0)
    gain = certified_gain(case.model.gain_parts(16))
    single, double = (logit_error(gain, 16, torch.finfo(t).eps, torch.finfo(t).tiny)
                      for t in (torch.float32, torch.float64))  # fmt: skip
    assert single.at(2e6) > 1.9 * single.at(1e6)
    assert double.at(1.0) < 1e-8 * single.at(1.0)


def test_a_gain_of_longer_sequences_is_refused() -> None:
    case = linear_case(0.0)
    gain = certified_gain(case.model.gain_parts(16))
    with pytest.raises(ValueError, match="at least 16 steps, and one of x has 5; compose"):
        certify(case.model, case.x, case.y, gain, lengths=torch.full((64,), 5))
    with pytest.raises(ValueError, match="at least 16 steps"):
        certify(case.model, case.x[:, :9], case.y, gain)


def test_the_record_of_the_million() -> None:
    record = json.loads((ROOT / "benchmarks" / "results" / "certificate_checks.json").read_text())
    assert record["checks"] >= 1_000_000
    assert record["violated"] == 0
    assert set(record["by_route"]) == {"gain", "interval", "l2", "linear", "linf"}
    assert all(route["checks"] > 50_000 and route["violated"] == 0 for route in record["by_route"].values())
