"""The worst tone: found from the transfer function at the spikes of S4D-LegS, and heard through the actual layer."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from resolvent.analysis import frequency_response, worst_frequency
from resolvent.attacks import Draws, FourierNoise, Site, disturbed
from resolvent.init import ptd
from resolvent.layers import S4D
from resolvent.ssm import Dense, System, discretise
from resolvent.ssm.hippo import dplr, hippo

N, SPIKE = 32, 325.426


def legs(n: int, C: Tensor) -> System:
    A, B = hippo("legs", n)
    return System(Dense(A), B[:, None], C, torch.zeros(len(C), 1, dtype=torch.float64))


def diagonal(n: int, C: Tensor) -> System:
    """S4D-LegS with the theory's half of B, in the coordinates of LegS."""
    lam, _, B, V = dplr("legs", n, halves=False)
    S = (V * lam) @ V.mH
    half = (V @ B / 2).real
    return System(Dense(S.real), half[:, None], C, torch.zeros(len(C), 1, dtype=torch.float64))


def unit(n: int, k: int) -> Tensor:
    return torch.eye(n, dtype=torch.float64)[k : k + 1]


@pytest.mark.parametrize(("k", "height"), [(0, 0.63713), (N - 1, 5.0101)])
def test_against_legs_the_spike_is_found(k: int, height: float) -> None:
    C = unit(N, k)
    found = worst_frequency(diagonal(N, C), legs(N, C))
    assert found.frequency == pytest.approx(SPIKE, abs=2e-3)
    assert found.gain == pytest.approx(height, rel=1e-4)
    assert found.per_step is None


def test_without_a_reference_the_largest_gain_counts() -> None:
    """The last read-out peaks at the spike; the first at w = 0, where LegS answers 1, too."""
    last, first = (worst_frequency(diagonal(N, unit(N, k))) for k in (N - 1, 0))
    assert last.frequency == pytest.approx(SPIKE, abs=2e-3)
    assert (first.frequency, first.gain) == (pytest.approx(0, abs=1e-6), pytest.approx(1.0, rel=1e-6))
    both = worst_frequency({"first": diagonal(N, unit(N, 0)), "last": diagonal(N, unit(N, N - 1))})
    assert both == worst_frequency({"last": diagonal(N, unit(N, N - 1))})


def test_whatever_is_read_out() -> None:
    found = worst_frequency(diagonal(N, torch.eye(N, dtype=torch.float64)))
    assert found.gain == pytest.approx(20.388, rel=1e-4)  # ~ 2 N / pi
    assert found.frequency == pytest.approx(SPIKE, abs=2e-3)


def test_a_bank_of_layers_tells_its_channel_in_time_and_in_steps() -> None:
    layer = tuned(0.004, 3, "legs")
    found = worst_frequency({"layer": layer.system()}, discretise(legs(N, unit(N, 0)), 0.004, "zoh"))
    assert found.name == "layer"
    assert found.per_step == pytest.approx(found.frequency * 0.004)
    assert found.frequency == pytest.approx(SPIKE, rel=1e-3)
    with pytest.raises(ValueError, match="no system"):
        worst_frequency({})


def tuned(dt: float, d: int, init: str) -> S4D:
    """A layer without D whose every channel reads the first LegS state, with the theory's half of B for "legs"."""
    layer = S4D(d, N, init=init, skip=False).double()
    V = dplr("legs", N)[3] / 2 if init == "legs" else ptd("legs", N).half()[1]
    with torch.no_grad():
        layer.C.copy_(torch.view_as_real(V[0].resolve_conj()).expand(d, -1, -1))
        layer.log_dt.fill_(math.log(dt))
    return layer


def heard(layer: S4D, omega: float, dt: float, length: int) -> float:
    """The amplitude at which a tone of amplitude one leaves the layer, over its last whole turns."""
    noise, draws = FourierNoise(1.0, omega), Draws(0, torch.arange(1))
    size = float(draws.fold(0).uniform(0, 0, (1, 1), torch.float64))
    with torch.no_grad(), disturbed([Site(layer, dt)], noise, draws):
        y = layer(torch.zeros(1, length, 1, dtype=torch.float64))[0][0, :, 0] / size
    turns = round(2 * math.pi / (omega * dt) * 50)
    k = torch.arange(length - turns, length, dtype=torch.float64)
    basis = torch.stack([torch.cos(omega * dt * k), torch.sin(omega * dt * k)], 1)
    return float(torch.linalg.lstsq(basis, y[-turns:, None]).solution.norm())


def test_the_spike_is_heard_through_the_layer_and_not_with_ptd() -> None:
    """Steps of 1/1000: a tenth of those where 325 would fold over; 20,000 of them: all else has died away."""
    dt, length = 1e-3, 20_000
    legs_gain = float(frequency_response(legs(N, unit(N, 0)), [SPIKE]).abs())
    assert legs_gain == pytest.approx(3.07e-3, rel=2e-3)
    gains = {}
    for init in ("legs", "ptd"):
        layer = tuned(dt, 1, init)
        gains[init] = heard(layer, SPIKE, dt, length)
        own = float(frequency_response(layer.system(), [SPIKE * dt]).detach().abs())
        assert gains[init] == pytest.approx(own, rel=2e-3)  # what is left of the transient: e^-10 of its own size
    assert gains["legs"] / legs_gain == pytest.approx(207, rel=1e-2)
    assert gains["ptd"] < 1.2 * legs_gain
    assert gains["legs"] / gains["ptd"] > 170
