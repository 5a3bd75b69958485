"""The LRU of prescribed gain: its bound against the H-infinity norm and against search, for any weights."""

from __future__ import annotations

import pytest
import torch

from helpers import assert_close
from resolvent.analysis import hinf_norm
from resolvent.blocks import LipschitzResidual, NormalisedLRU
from resolvent.blocks.certified.normalised import lru_bound
from resolvent.layers import LRU
from resolvent.layers.contract import frozen
from resolvent.lowering.parts import parts_of
from resolvent.models import build_model, load_model, presets, save_model, verify_certified
from resolvent.models.certified import by_construction

F64 = torch.float64


def drawn(seed: int, scale: float, gamma: float = 1.3, d: int = 3, n: int = 5) -> NormalisedLRU:
    torch.manual_seed(seed)
    layer = NormalisedLRU(LRU(d, n), gamma)
    with torch.no_grad():
        for p in layer.parameters():
            p.mul_(scale)
    return layer


@pytest.mark.parametrize("scale", [0.0, 0.1, 1.0, 30.0])
@pytest.mark.parametrize("seed", range(5))
def test_the_gain_holds_for_any_weights(seed: int, scale: float) -> None:
    layer = drawn(seed, scale, gamma=0.1 + seed)
    found = float(hinf_norm(layer.system()).upper)
    assert found <= layer.gain() * (1 + 1e-6)
    assert layer.gain() <= float(layer.gamma)


def test_the_bound_is_reached_by_a_single_mode() -> None:
    """One state, D = 0: both peak where the phase turns, and no more is counted than there is."""
    layer = LRU(1, 1)
    with torch.no_grad():
        layer.D.zero_()
        layer.theta_log.fill_(-20.0)  # a real pole
        layer.B[..., 1] = 0
        layer.C[..., 1] = 0
    layer.double()
    exact = float(hinf_norm(layer.system()).upper)
    assert exact <= float(lru_bound(layer.tables()).detach()) * (1 + 1e-6) <= 1.02 * exact


def test_it_is_the_scaled_layer_in_every_form() -> None:
    torch.manual_seed(0)
    block = NormalisedLRU(LRU(3, 4), 0.7, trainable_gamma=True).double()
    x = torch.randn(2, 11, 3, dtype=F64)
    y, _ = block(x)
    assert_close(y, block.layer(x)[0] * block.scale())
    assert_close(y, block.system().simulate(x)[0].real)
    state, steps = block.initial_state(2), []
    for t in range(11):
        y_t, state = block.step(x[:, t], state)
        steps.append(y_t)
    assert_close(torch.stack(steps, 1), y)
    with frozen(block):
        assert block.scale() is block.scale()
        assert torch.equal(block(x)[0], y)


def test_the_scale_is_differentiable() -> None:
    layer = drawn(0, 1.0).double()
    names = [name for name, _ in layer.named_parameters()]
    values = tuple(p.detach().clone().requires_grad_() for p in layer.parameters())

    def scale(*given: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(Scaled(layer), dict(zip(prefixed(names), given, strict=True)), ())

    assert torch.autograd.gradcheck(scale, values)


class Scaled(torch.nn.Module):
    def __init__(self, inner: NormalisedLRU) -> None:
        super().__init__()
        self.inner = inner

    def forward(self) -> torch.Tensor:
        return self.inner.scale()


def prefixed(names: list[str]) -> list[str]:
    return [f"inner.{name}" for name in names]


def test_a_residual_block_with_it_is_1_lipschitz() -> None:
    block = LipschitzResidual(drawn(1, 5.0), "relu").double()
    assert by_construction(parts_of(block, "block")) <= 1
    x, e = torch.randn(40, 30, 3, dtype=F64), 1e-3 * torch.randn(40, 30, 3, dtype=F64)
    moved = (block(x + e)[0] - block(x)[0]).flatten(1).norm(dim=1) / e.flatten(1).norm(dim=1)
    assert float(moved.detach().max()) <= 1


@pytest.mark.slow
def test_the_classifier_keeps_its_gain_through_absurd_training(tmp_path: object) -> None:
    torch.manual_seed(0)
    model = build_model(presets.lru_classifier(1, 4, gain=2.0, d_model=2, hidden=8, memory=6))
    x, y = torch.randn(32, 12, 1), torch.randint(4, (32,))
    optimiser = torch.optim.SGD(model.parameters(), lr=30.0)
    for _ in range(20):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimiser.step()
    assert verify_certified(model) <= 2.0
    save_model(model, tmp_path)
    assert torch.equal(load_model(tmp_path)(x), model(x))


@pytest.mark.parametrize("gamma", [0.0, -1.0, float("nan"), float("inf"), True, "1"])
def test_a_gain_that_is_no_positive_number_is_refused(gamma: object) -> None:
    with pytest.raises(ValueError, match="gamma, the gain, must be a positive number"):
        NormalisedLRU(LRU(2, 2), gamma)


def test_two_directions_are_refused() -> None:
    with pytest.raises(ValueError, match="bidirectional=False"):
        NormalisedLRU(LRU(2, 2, bidirectional=True))
