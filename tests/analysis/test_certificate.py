"""Certified radii against linear classifiers whose robustness is known, against attacks, and against tampering."""

from __future__ import annotations

import json
import math

import pytest
import torch
from torch import Tensor, nn

from resolvent.analysis.certificates.certificate import Certificate, certify, certify_logits, verify
from resolvent.analysis.certificates.gain import BrokenClaim, NoBound, certified_gain
from resolvent.analysis.certificates.precision import eps_of
from resolvent.analysis.certificates.report import (
    CertifySettings,
    Crossed,
    Sandwich,
    certificate_report,
    check_sandwich,
    default_grid,
)
from resolvent.analysis.certificates.smoothing import SmoothingSettings
from resolvent.attacks import Threat, pgd
from resolvent.attacks.victim import Victim
from resolvent.ssm.part import Part


class Flat(nn.Module):
    """A linear classifier on sequences (b, l, d): its true radii are distances to planes."""

    def __init__(self, n: int = 6, k: int = 3) -> None:
        super().__init__()
        self.out = nn.Linear(n, k).double()

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        own = torch.ones(x.shape[:2]) if lengths is None else torch.arange(x.shape[1]) < lengths[:, None]
        return self.out((x * own[..., None]).flatten(1))

    def parts(self) -> list[Part]:
        size = float(torch.linalg.matrix_norm(self.out.weight.detach(), 2))
        return [Part("out", "linear", size), Part("out.bias", "bias", 1.0)]


def data(model: Flat, b: int = 40) -> tuple[Tensor, Tensor]:
    x = torch.randn(b, 3, 2, dtype=torch.float64)
    return x, model(x).detach().argmax(1)


def true_radius(model: Flat, x: Tensor, y: Tensor, order: float) -> Tensor:
    """The distance to the nearest decision plane: margin / dual norm of w_y - w_j."""
    z, W = model(x).detach(), model.out.weight.detach()
    dual = {2: 2, 1: math.inf, math.inf: 1}[order]
    out = torch.full((len(x), z.shape[1]), math.inf, dtype=torch.float64)
    for i, own in enumerate(y.tolist()):
        for j in range(z.shape[1]):
            if j != own:
                out[i, j] = (z[i, own] - z[i, j]) / torch.linalg.vector_norm(W[own] - W[j], dual)
    return out.amin(1)


def test_pairwise_radii_of_a_linear_classifier_are_exact() -> None:
    model = Flat()
    x, y = data(model)
    gain = certified_gain(model.parts(), head=model.out.weight)
    found = certify(model, x, y, gain)
    want = true_radius(model, x, y, 2)
    assert found.pairwise
    assert bool((found.radius <= want).all())
    assert float((found.radius / want).min()) > 1 - 1e-5  # the slack and the rounding of margins


@pytest.mark.parametrize("norm", ["l2", "l1", "linf"])
def test_radii_are_below_the_true_ones_in_every_norm(norm: str) -> None:
    model = Flat()
    x, y = data(model)
    found = certify(model, x, y, certified_gain(model.parts()), norm=norm)
    want = true_radius(model, x, y, {"l2": 2, "l1": 1, "linf": math.inf}[norm])
    assert bool((found.radius > 0).all())
    assert bool((found.radius <= want).all())


def test_norm_conversion_and_lengths() -> None:
    model = Flat()
    x, y = data(model, 3)
    gain = certified_gain(model.parts())
    l2, l1, linf = (certify(model, x, y, gain, norm=n).radius for n in ("l2", "l1", "linf"))
    assert torch.equal(l1, l2)
    assert float((linf * math.sqrt(6) - l2).abs().max()) < 1e-14
    lengths = torch.tensor([1, 2, 3])
    y = model(x, lengths).argmax(-1)
    l2, short = (certify(model, x, y, gain, norm=n, lengths=lengths).radius for n in ("l2", "linf"))
    assert float((short * torch.tensor([2.0, 4.0, 6.0]).sqrt() - l2).abs().max()) < 1e-7


def test_answers_are_those_of_the_model_with_lengths() -> None:
    """Padding that would turn the answer does not count, neither for right and wrong nor for the margin."""
    model = Flat()
    x, _ = data(model, 40)
    lengths = torch.randint(1, 3, (40,))
    x[torch.arange(3) >= lengths[:, None]] = 30.0
    y = model(x, lengths).argmax(-1)
    assert not torch.equal(model(x).argmax(-1), y)
    found = certify(model, x, y, certified_gain(model.parts()), lengths=lengths)
    assert bool(found.correct.all())
    alone = [certify(model, x[i : i + 1], y[i : i + 1], certified_gain(model.parts()), lengths=lengths[i : i + 1])
             for i in range(40)]  # fmt: skip
    assert torch.allclose(found.radius, torch.cat([one.radius for one in alone]), rtol=1e-12)
    for wrong in (torch.tensor([1]), torch.zeros(40, dtype=torch.int64), torch.full((40,), 4), torch.ones(40)):
        with pytest.raises(ValueError, match="lengths must"):
            certify(model, x, y, 1.0, lengths=wrong)


def test_margins_ties_and_wrong_predictions() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 3.0, 1.0]], dtype=torch.float64)
    found = certify_logits(logits, torch.tensor([0, 0, 0]), 2.0)
    assert float(found.radius[0]) == pytest.approx(1 / (2 * math.sqrt(2)), rel=1e-9)
    assert found.radius[1:].tolist() == [0.0, 0.0]
    assert found.correct.tolist() == [True, False, False]
    assert found.certified(0.0).tolist() == [True, False, False]
    assert found.curve([0.0, 0.3, 0.4]) == pytest.approx([1 / 3, 1 / 3, 0.0])


@pytest.mark.parametrize(("allowed", "eps"), [("highest", 2.0**-23), ("high", 2.0**-10), ("medium", 2.0**-7)])
def test_coarser_products_of_float32_count(allowed: str, eps: float) -> None:
    """Where torch may round them so, whether or not this processor does."""
    x, before = torch.zeros(1, 2, 3), torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision(allowed)
        assert eps_of(x) == eps
        assert eps_of(x.double()) == 2.0**-52
    finally:
        torch.set_float32_matmul_precision(before)


def test_rounding_is_taken_off() -> None:
    """A margin that the rounding of float32 could have made certifies nothing."""
    logits = torch.tensor([[100.0, 100.0 - 1e-4]])
    found = certify_logits(logits, torch.tensor([0]), 1.0)
    assert float(found.radius) == 0.0
    assert float(certify_logits(logits, torch.tensor([0]), 1.0, rounding=0.0).radius) > 0


def test_batches_and_modes() -> None:
    model = Flat()
    x, y = data(model)
    gain = certified_gain(model.parts())
    whole, parts = certify(model, x, y, gain), certify(Victim(model, 7), x, y, gain)
    assert float((whole.radius - parts.radius).abs().max()) < 1e-12
    assert model.training


# -- the attack's side -------------------------------------------------------------------------------------------------


def test_an_attack_never_breaks_what_is_certified() -> None:
    model = Flat()
    x, y = data(model)
    gain = certified_gain(model.parts(), head=model.out.weight)
    eps = float(certify(model, x, y, gain).radius.median())
    result = pgd(model, x, y, Threat("l2", eps), steps=40)
    record = certificate_report(model, gain, x, y, CertifySettings(eps), robust=~result.success)
    s = record["sandwich"]
    assert s["certified"] <= s["attacked"] <= s["clean"] == 1.0
    assert s["certified"] == pytest.approx(0.5, abs=0.03)
    assert s["attacked"] < 0.75  # for a linear model the two ends are close
    assert "<= robust accuracy <=" in record["text"]
    json.dumps(record, allow_nan=False)


def test_crossing_bounds_are_an_error_that_names_the_samples() -> None:
    certified = torch.tensor([True, True, False, True])
    robust = torch.tensor([True, False, False, False])
    correct = torch.ones(4, dtype=torch.bool)
    with pytest.raises(Crossed, match=r"2 samples are certified at l2 eps 0.5 and broken .* within 0.5: 1, 3"):
        check_sandwich(certified, robust, correct, norm="l2", eps=0.5)
    with pytest.raises(Crossed, match="misclassified"):
        check_sandwich(certified, None, torch.tensor([False, True, True, True]))
    with pytest.raises(TypeError, match="bool"):
        check_sandwich(certified.float(), robust, correct)
    with pytest.raises(TypeError, match="robust must be"):
        check_sandwich(certified, robust[:3], correct)


def test_sandwich_without_an_attack() -> None:
    one = torch.tensor([True, False])
    found = check_sandwich(one, None, torch.tensor([True, True]), norm="l2", eps=0.1)
    assert found == Sandwich("l2", 0.1, 1.0, 0.5, None, 2)
    assert "no attack was run" in str(found)


def test_too_small_a_constant_is_caught_by_the_attack() -> None:
    """The check that the two sides make of each other: a gain that is 3 times too small crosses."""
    model = Flat()
    x, y = data(model)
    honest = certify(model, x, y, certified_gain(model.parts(), head=model.out.weight))
    wrong = certify(model, x, y, honest.lipschitz / 3)
    eps = float(wrong.radius.median())
    result = pgd(model, x, y, Threat("l2", eps), steps=40)
    with pytest.raises(Crossed):
        check_sandwich(wrong.certified(eps), ~result.success, wrong.correct, norm="l2", eps=eps)


# -- stored certificates -----------------------------------------------------------------------------------------------


def test_stored_certificates_are_verified_again() -> None:
    model = Flat()
    x, y = data(model)
    gain = certified_gain(model.parts())
    found = certify(model, x, y, gain)
    held = Certificate.from_dict(json.loads(json.dumps(found.as_dict())))
    assert torch.equal(verify(held, model, x, y, gain).radius, found.radius)
    with torch.no_grad():
        model.out.weight.mul_(5.0)
        model.out.bias.mul_(0.1)
    with pytest.raises(BrokenClaim, match="does not hold"):
        verify(held, model, x, y, certified_gain(model.parts()))
    with pytest.raises(ValueError, match="40 samples"):
        verify(held, model, x[:3], y[:3], gain)


def test_a_record_of_a_model_without_a_bound_has_no_radius() -> None:
    model = Flat()
    x, y = data(model, 4)
    broken = [Part("norm", "norm", None, reason="divides"), *model.parts()]
    settings = CertifySettings(0.1, smoothing=SmoothingSettings(0.3, n0=10, n=50))
    record = certificate_report(model, broken, x, y, settings)
    assert record["status"] == "refused"
    assert "norm (norm): divides" in record["reason"]
    assert "certificate" not in record
    assert "curve" not in record
    assert 0 <= record["smoothing"]["certified"] <= 1
    json.dumps(record, allow_nan=False)
    with pytest.raises(NoBound):
        certify(model, x, y, certified_gain(broken))


def test_default_grid() -> None:
    zero = torch.zeros(2, dtype=torch.float64)
    nothing = Certificate(zero, zero, zero.bool(), "l2", 1.0)
    assert default_grid(nothing) == [0.0]
    some = Certificate(zero + 0.49, zero, ~zero.bool(), "l2", 1.0)
    assert default_grid(some)[-1] == 0.49
    assert some.curve(default_grid(some))[-1] == 1.0


@pytest.mark.parametrize("gain", [0.0, -1.0, math.inf, math.nan, True])
def test_refuses_constants(gain: float) -> None:
    with pytest.raises((ValueError, TypeError), match="the Lipschitz constant must be"):
        certify_logits(torch.randn(2, 3), torch.zeros(2, dtype=torch.int64), gain)


def test_refusals() -> None:
    z, y = torch.randn(2, 3), torch.zeros(2, dtype=torch.int64)
    with pytest.raises(ValueError, match="norm must be"):
        certify_logits(z, y, 1.0, norm="l0")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="labels must lie"):
        certify_logits(z, y + 3, 1.0)
    with pytest.raises(ValueError, match="NaN"):
        certify_logits(z * math.nan, y, 1.0)
    with pytest.raises(ValueError, match="eps must be"):
        certify_logits(z, y, 1.0).certified(-0.1)
    for bad in (-1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="eps must be"):
            CertifySettings(bad)
    with pytest.raises(ValueError, match="certifies l2"):
        CertifySettings(0.1, "linf", smoothing=SmoothingSettings(0.1))
    with pytest.raises(ValueError, match="norm must be"):
        CertifySettings(0.1, "l7")  # type: ignore[arg-type]
