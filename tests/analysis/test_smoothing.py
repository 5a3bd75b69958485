"""Randomised smoothing: exact confidence bounds, a classifier whose smoothing is known, independence of batches."""

from __future__ import annotations

import json
import math

import pytest
import torch
from torch import Tensor, nn

from resolvent.analysis.certificates.smoothing import SmoothingResult, SmoothingSettings, clopper_pearson, smooth
from resolvent.attacks.draws import Draws


class Line(nn.Module):
    """Class 1 where w . x > 0: the smoothed classifier is the same, its radius the distance to the plane."""

    w = torch.tensor([0.6, 0.8])

    def forward(self, x: Tensor) -> Tensor:
        z = x.flatten(1) @ self.w.to(x.dtype)
        return torch.stack([-z, z], 1)


def settings(**change: float) -> SmoothingSettings:
    return SmoothingSettings(**{"sigma": 0.5, "n0": 50, "n": 2000, "alpha": 1e-3, **change})


@pytest.mark.parametrize(("k", "n", "alpha"), [(10, 10, 0.05), (990, 1000, 1e-3), (1, 7, 0.01), (600, 1000, 0.05)])
def test_clopper_pearson_by_its_definition(k: int, n: int, alpha: float) -> None:
    """At the bound p the chance to see k or more successes is alpha: the binomial tail, summed."""
    p = float(clopper_pearson(torch.tensor([k]), n, alpha)[0])
    tail = math.fsum(math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k, n + 1))
    assert tail == pytest.approx(alpha, rel=1e-8)


def test_clopper_pearson_at_the_ends() -> None:
    bound = clopper_pearson(torch.tensor([0, 100]), 100, 0.01)
    assert bound[0] == 0.0
    assert float(bound[1]) == pytest.approx(0.01 ** (1 / 100), rel=1e-12)


def test_radius_of_a_plane() -> None:
    """Certified radii stay below the distance to the plane and come close to it."""
    x = torch.tensor([[0.3, 0.4], [0.6, 0.8], [-0.2, -0.1], [0.0, 0.0]])
    y = torch.tensor([1, 1, 0, 1])
    found = smooth(Line(), x, y, settings(n=20_000))
    distance = (x @ Line.w).abs()
    assert bool((found.radius <= distance.double()).all())
    assert float(found.radius[0]) > 0.9 * float(distance[0])
    assert found.prediction.tolist() == [1, 1, 0, -1]  # on the plane itself it must abstain
    assert found.abstained == 1
    assert found.correct.tolist() == [True, True, True, False]
    assert found.certified(0.2).tolist() == [True, True, False, False]
    assert found.curve([0.0, 0.2, 10.0]) == [0.75, 0.5, 0.0]


def same(a: SmoothingResult, b: SmoothingResult) -> bool:
    return torch.equal(a.counts, b.counts) and torch.equal(a.prediction, b.prediction)


def test_batches_do_not_matter() -> None:
    """Any number of rows at once, any cut of the samples, any seed of torch: the same counts."""
    x, y = torch.randn(5, 2), torch.zeros(5, dtype=torch.int64)
    whole = smooth(Line(), x, y, settings(n=300))
    torch.manual_seed(99)
    assert same(smooth(Line(), x, y, settings(n=300, rows=7)), whole)
    part = smooth(Line(), x[2:], y[2:], settings(n=300), draws=Draws.of(x[2:], 0, 2))
    assert torch.equal(part.counts, whole.counts[2:])
    assert not same(smooth(Line(), x, y, settings(n=300, seed=1)), whole)


def test_selection_and_estimation_use_different_noise() -> None:
    """n0 = n copies of the same noise would vote alike; the counts differ."""
    x, y = torch.zeros(40, 2), torch.zeros(40, dtype=torch.int64)
    seen: list[Tensor] = []

    def spy(x: Tensor) -> Tensor:
        seen.append(x.clone())
        return Line()(x)

    smooth(spy, x, y, settings(n0=20, n=20, rows=10_000))
    assert not torch.equal(seen[0], seen[1])
    assert float(torch.cat(seen).std()) == pytest.approx(0.5, rel=0.05)


def test_coverage() -> None:
    """The bound fails for at most alpha of the samples: 2000 samples at a known probability, alpha = 0.05."""
    p, n, alpha = 0.8, 200, 0.05
    counts = torch.distributions.Binomial(n, torch.tensor(p)).sample((2000,)).long()
    failures = (clopper_pearson(counts, n, alpha) > p).double().mean()
    assert float(failures) <= alpha + 3 * math.sqrt(alpha * (1 - alpha) / 2000)


def test_a_model_that_returns_nan_gets_no_radius() -> None:
    def broken(x: Tensor) -> Tensor:
        return Line()(x).masked_fill(x[:, :1] > -9, math.nan)

    found = smooth(broken, torch.ones(2, 2), torch.ones(2, dtype=torch.int64), settings(n=100))
    assert found.abstained == 2
    assert found.radius.tolist() == [0.0, 0.0]


def test_modes_and_gradients_are_put_back() -> None:
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(2, 3))
    smooth(model, torch.ones(1, 2), torch.zeros(1, dtype=torch.int64), settings(n=10))
    assert model.training
    assert all(p.requires_grad for p in model.parameters())


def test_record_is_plain_json() -> None:
    found = smooth(Line(), torch.ones(1, 2), torch.ones(1, dtype=torch.int64), settings(n=100))
    record = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert record["largest_radius"] == pytest.approx(float(found.radius[0]))
    assert record["confidence_of_each_sample"] == 0.999


@pytest.mark.parametrize(
    "change", [{"sigma": 0.0}, {"sigma": math.nan}, {"alpha": 0.0}, {"alpha": 1.0}, {"n": 0}, {"n0": 1.5}]
)
def test_refusals(change: dict[str, float]) -> None:
    with pytest.raises((ValueError, TypeError), match=next(iter(change))):
        settings(**change)


def test_refuses_wrong_samples() -> None:
    with pytest.raises(ValueError, match="NaN"):
        smooth(Line(), torch.full((1, 2), math.nan), torch.zeros(1, dtype=torch.int64), settings())
    with pytest.raises(ValueError, match="draws must number"):
        smooth(
            Line(), torch.ones(2, 2), torch.zeros(2, dtype=torch.int64), settings(), draws=Draws.of(torch.ones(3, 2))
        )


def test_padding_gets_no_noise_and_does_not_count() -> None:
    """The vote on a padded sample is that on the short sequence, whatever stands in its padding."""

    def f(x: Tensor, lengths: Tensor | None = None) -> Tensor:
        own = torch.ones(x.shape[:2]) if lengths is None else torch.arange(x.shape[1]) < lengths[:, None]
        assert bool((x[~own.bool()] == 9.0).all())
        z = (x[..., 0] * own).sum(1)
        return torch.stack([z, -z], 1)

    x, lengths = torch.full((3, 5, 1), 0.2), torch.tensor([2, 3, 5])
    x[torch.arange(5) >= lengths[:, None]] = 9.0
    settings = SmoothingSettings(0.3, n0=20, n=400)
    found = smooth(f, x, torch.zeros(3, dtype=torch.int64), settings, lengths=lengths)
    # the noise of z is normal with deviation 0.3 sqrt(length): the share of votes has a closed form
    share = torch.special.ndtr(0.2 * lengths / (0.3 * lengths.sqrt()))
    assert float((found.counts / 400 - share).abs().max()) < 0.08
    assert bool(found.correct.all())
