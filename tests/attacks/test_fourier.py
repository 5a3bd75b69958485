"""Fourier-mode noise: the wave itself, where it enters, and results that do not depend on the batch size."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from helpers import assert_close
from resolvent.attacks import Draws, FourierNoise, FourierSettings, Site, disturbed, fourier_sweep, noises
from resolvent.attacks.fourier.attack import with_noise
from resolvent.layers import S4D
from resolvent.models import ChannelsConfig, ClassifierConfig, ModelConfig, ResidualConfig, S4DConfig, build_model
from resolvent.models.config import RetrievalConfig, TokensConfig


class Heard(nn.Module):
    """Passes its input on and remembers it."""

    def forward(self, x: Tensor, *_: object) -> Tensor:
        self.x = x
        return x


def test_one_mode_is_the_papers_formula() -> None:
    draws = Draws(3, torch.arange(2))
    dt = torch.tensor([0.001, 0.1])
    heard = Heard()
    with disturbed([Site(heard, dt)], FourierNoise(0.5, 325.4), draws):
        heard(torch.zeros(2, 700, 2, dtype=torch.float64))
    u = draws.fold(0).uniform(0, 0, (1, 2), torch.float64).numpy()
    want = 0.5 * u * np.cos(325.4 * np.arange(700)[:, None] * dt.double().numpy())
    assert_close(heard.x, torch.from_numpy(want))
    assert float(heard.x.abs().max()) <= 0.5
    heard(torch.zeros(1, 3, 2))
    assert float(heard.x.abs().max()) == 0, "the hook stayed"


def test_a_band_has_the_energy_of_one_mode_and_stays_inside() -> None:
    length = 4096
    noise = FourierNoise(1.0, (0.5, 1.0), modes=32)
    wave = noise.wave(Draws(0, torch.arange(64)), torch.arange(length), 1)[..., 0].numpy()
    power = np.abs(np.fft.rfft(wave * np.hanning(length))) ** 2
    omega = 2 * math.pi * np.arange(power.shape[-1]) / length
    inside = (omega > 0.49) & (omega < 1.01)
    assert power[:, inside].sum() / power.sum() > 0.9999
    assert np.mean(wave**2) == pytest.approx(1 / 6, rel=0.05)  # E[u^2] E[cos^2] = 1/3 * 1/2
    assert min(noise.frequencies) > 0.5
    assert max(noise.frequencies) < 1.0


def test_noise_at_the_input_keeps_the_bounds() -> None:
    x = torch.rand(3, 20, 2)
    moved = with_noise(x, FourierNoise(5.0, 1.0), Draws.of(x), (0.0, 1.0))
    assert float(moved.min()) >= 0
    assert float(moved.max()) <= 1
    assert not torch.equal(moved, x)


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    block = ResidualConfig(S4DConfig(8), mixer="linear")
    return build_model(ModelConfig(ChannelsConfig(1), block, ClassifierConfig(3, "mean"), 6, 2))


def layers(model: nn.Module) -> list[Site]:
    return [Site(m, m.system().dt) for m in model.modules() if isinstance(m, S4D)]


@pytest.mark.parametrize("inside", [True, False])
def test_a_sweep_does_not_depend_on_the_batch_size(model: nn.Module, inside: bool) -> None:
    x = torch.rand(23, 40, 1)
    y = model(x).argmax(-1)  # all right without noise
    points = noises([0.0, 1.0, 30.0], [5.0, (1.0, 9.0)])
    sites = layers(model) if inside else []
    found = [fourier_sweep(model, (x, y), points, sites, FourierSettings(batch_size=b)) for b in (23, 5, 1)]
    assert found[0] == found[1] == found[2]
    assert found[0].clean == 1.0
    assert found[0].points[0].score == 1.0
    assert found[0].worst.score < 1.0
    assert found[0].worst.amplitude == 30.0
    assert "frequency 1 to 9" in str(found[0])


def test_the_seed_and_the_place_change_the_noise(model: nn.Module) -> None:
    heard = [Heard(), Heard()]
    both = nn.Sequential(*heard)
    x = torch.zeros(4, 10, 3)
    with disturbed([Site(m) for m in heard], FourierNoise(1.0, 0.3), Draws(0, torch.arange(4))):
        both(x)
    first, second = heard[0].x.clone(), heard[1].x - heard[0].x
    assert not torch.allclose(first, second)
    with disturbed([Site(m) for m in heard], FourierNoise(1.0, 0.3), Draws(1, torch.arange(4))):
        both(x)
    assert not torch.allclose(first, heard[0].x)


def test_two_documents_through_one_tower_get_noise_of_their_own() -> None:
    block = ResidualConfig(S4DConfig(4), mixer="linear")
    pair = build_model(ModelConfig(TokensConfig(5), block, RetrievalConfig(), 4, 1))
    x, y = torch.randint(0, 5, (6, 2, 9)), torch.zeros(6, dtype=torch.int64)
    whole = fourier_sweep(pair, (x, y), noises([50.0], [3.0]), layers(pair), FourierSettings(batch_size=6))
    single = fourier_sweep(pair, (x, y), noises([50.0], [3.0]), layers(pair), FourierSettings(batch_size=1))
    assert whole == single


def test_regression_is_scored_by_its_squared_error() -> None:
    found = fourier_sweep(lambda x: x.mean(1), (torch.zeros(2, 8, 1), torch.ones(2, 1)), [FourierNoise(1.0, 0.0)])
    assert found.clean == -1.0
    assert found.regression
    assert -1.0 < found.worst.score < 0  # a constant of u in [0, 1) brings the mean nearer to 1


def test_padding_stays_out(model: nn.Module) -> None:
    x, lengths = torch.rand(2, 12, 1), torch.tensor([12, 5])
    y = torch.zeros(2, dtype=torch.int64)
    padded = fourier_sweep(model, (x, y, lengths), noises([9.0], [3.0]), layers(model))
    x[1, 5:] = 77.0
    assert fourier_sweep(model, (x, y, lengths), noises([9.0], [3.0]), layers(model)) == padded


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FourierNoise(-1.0, 1.0), "amplitude must be finite"),
        (lambda: FourierNoise(1.0, (2.0, 1.0)), "low <= high"),
        (lambda: FourierNoise(1.0, (1.0, 2.0), 0), "modes must be at least 1"),
        (lambda: FourierNoise(1.0, float("nan")), "frequency must be finite"),
        (lambda: Site(nn.Identity(), 0.0), "dt must be positive"),
        (lambda: fourier_sweep(nn.Identity(), (torch.zeros(2, 3), torch.zeros(2)), noises([1], [1])), "needs real x"),
        (lambda: fourier_sweep(nn.Identity(), (torch.zeros(2, 3, 1), torch.zeros(2)), []), "no noise to try"),
    ],
)
def test_bad_input(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()  # type: ignore[operator]
