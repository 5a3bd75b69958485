"""Certified deviation of real outputs: a linear map in closed form, ascent that never passes it, and refusals."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from resolvent.analysis import certified_gain, certify_deviation
from resolvent.attacks import RegressionSettings, Threat, evaluate_regression
from resolvent.models import Model, build_model
from resolvent.models.config import CertifiedConfig, ChannelsConfig, LipschitzConfig, ModelConfig, RegressionConfig


class Flat(nn.Module):
    def __init__(self, n: int, m: int) -> None:
        super().__init__()
        self.out = nn.Linear(n, m).double()

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        own = torch.ones(x.shape[:2]) if lengths is None else torch.arange(x.shape[1]) < lengths[:, None]
        found: Tensor = self.out((x * own[..., None]).flatten(1))
        return found


@pytest.mark.parametrize("norm", ["l2", "linf", "l1"])
def test_it_bounds_a_linear_map(norm: Any) -> None:
    torch.manual_seed(0)
    model, x = Flat(6, 2), torch.randn(5, 3, 2, dtype=torch.float64)
    y = torch.randn(5, 2, dtype=torch.float64)
    L = float(torch.linalg.matrix_norm(model.out.weight.detach(), 2))
    found = certify_deviation(model, x, y, L, norm=norm)
    exact = L * 0.2 / math.sqrt(2) * (math.sqrt(6) if norm == "linf" else 1.0)
    assert found.deviation(0.2).numpy() == pytest.approx(exact, rel=1e-6)
    assert bool((found.deviation(0.2) >= exact).all())
    error = (model(x) - y).square().mean(1).sqrt().detach()
    assert torch.allclose(found.error(0.2) - found.deviation(0.2), error)
    radius = found.radius(float(error.median()) + 0.1)
    assert torch.allclose(found.error(float(radius.max()))[radius.argmax()], error.median() + 0.1, rtol=1e-6)
    assert bool((radius == 0).any())


def test_padding_leaves_fewer_entries() -> None:
    model, x = Flat(6, 1), torch.randn(2, 3, 2, dtype=torch.float64)
    found = certify_deviation(model, x, None, 1.0, norm="linf", lengths=torch.tensor([3, 1]))
    assert float(found.slope[0] / found.slope[1]) == pytest.approx(math.sqrt(3))


@pytest.mark.parametrize(("outputs", "pooling"), [(1, "mean"), (3, "last"), (2, "none")])
@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_no_attack_passes_it(outputs: int, pooling: Any, norm: Any) -> None:
    torch.manual_seed(1)
    head = RegressionConfig(outputs, pooling)
    config = ModelConfig(
        input=ChannelsConfig(2), block=LipschitzConfig(), head=head, d_model=6, layers=1, norm="none",
        certified=CertifiedConfig(gain=2.0, kind="lipschitz"),
    )  # fmt: skip
    model = build_model(config)
    assert isinstance(model, Model)
    model.eval()
    x, eps = torch.randn(20, 12, 2), 0.2
    y = model(x).detach() + 0.1
    found = certify_deviation(model, x, y, certified_gain(model.gain_parts(12)), norm=norm)
    worst = evaluate_regression(model, (x, y), Threat(norm, eps), settings=RegressionSettings(thorough=False))
    assert bool((worst.error <= found.error(eps)).all())
    assert float((worst.error - found.clean).max()) > 0.005 * float(found.deviation(eps).max())


def test_what_is_refused() -> None:
    model, x = Flat(6, 2), torch.randn(2, 3, 2, dtype=torch.float64)
    for y, message in ((torch.zeros(2, dtype=torch.int64), "real targets"), (torch.zeros(2, 5), "target for each")):
        with pytest.raises((ValueError, TypeError), match=message):
            certify_deviation(model, x, y, 1.0)
    with pytest.raises(ValueError, match="norm"):
        certify_deviation(model, x, None, 1.0, norm="l3")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="eps"):
        certify_deviation(model, x, None, 1.0).deviation(-1.0)
