"""Real outputs: the worst error of a linear model in closed form, thresholds, resuming, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from resolvent.attacks import Draws, RegressionSettings, SegmentSearch, Threat, evaluate_regression
from resolvent.attacks.regression.objective import root_mean_square, squared_error

QUICK = RegressionSettings(thorough=False)


class Filter(nn.Module):
    """A linear map of all steps to k outputs."""

    def __init__(self, l: int, k: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(k, l, generator=torch.Generator().manual_seed(k)))

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :, 0] @ self.w.T


def case(k: int, n: int = 6, l: int = 9) -> tuple[Filter, Tensor, Tensor]:
    model = Filter(l, k)
    x = torch.randn(n, l, 1, generator=torch.Generator().manual_seed(1))
    return model, x, model(x).detach()


@pytest.mark.parametrize(("norm", "dual"), [("l2", 2.0), ("linf", 1.0)])
def test_the_worst_error_of_one_linear_output(norm: Any, dual: float) -> None:
    """y = f(x) exactly: the squared error has no slope there, and the attack must find eps ||w||_dual all the same."""
    model, x, y = case(1)
    found = evaluate_regression(model, (x, y), Threat(norm, 0.3), settings=QUICK)
    exact = 0.3 * float(torch.linalg.vector_norm(model.w.detach(), dual))
    assert found.error.numpy() == pytest.approx(exact, rel=1e-4)
    assert torch.equal(found.clean, torch.zeros_like(found.clean))
    assert not found.flags


def test_the_worst_error_of_several_linear_outputs() -> None:
    model, x, y = case(3)
    found = evaluate_regression(model, (x, y), Threat("l2", 0.3), settings=QUICK)
    exact = 0.3 * float(torch.linalg.matrix_norm(model.w.detach(), 2)) / 3**0.5
    assert float(found.error.max()) <= exact * (1 + 1e-5)
    assert float(found.error.min()) >= 0.99 * exact
    noise = Threat("l2", 0.3).check(x).random_start(x, Draws.of(x), surface=True)
    assert bool((found.error > root_mean_square(model(noise), y).detach()).all())


def test_a_tolerance_and_resuming(tmp_path: Path) -> None:
    model, x, y = case(2, n=12)
    y = y + 0.3 * torch.randn(y.shape, generator=torch.Generator().manual_seed(5))
    threat = Threat("linf", (0.05,), (-10.0, 10.0))
    one = evaluate_regression(model, (x, y), threat, 0.5, settings=QUICK, folder=tmp_path)
    assert one.within is not None
    assert 0 < one.within < float((one.clean <= 0.5).double().mean())
    assert list(one.table.values()) == sorted(one.table.values(), reverse=True)
    assert "within" in str(one)
    assert bool(threat.check(x).contains(one.x_adv, x).all())
    assert torch.allclose(root_mean_square(model(one.x_adv), y).detach(), one.error)

    class Dead(Filter):
        def forward(self, x: Tensor) -> Tensor:
            assert not torch.is_grad_enabled(), "an attack that is on disk is not run again"
            return super().forward(x)

    again = Dead(9, 2)
    again.load_state_dict(model.state_dict())
    two = evaluate_regression(again, (x, y), threat, 0.5, settings=QUICK, folder=tmp_path)
    assert torch.equal(one.error, two.error)
    with pytest.raises(ValueError, match="tolerance"):
        evaluate_regression(model, (x, y), threat, 0.6, settings=QUICK, folder=tmp_path)


def test_masked_gradients_are_told() -> None:
    class Stairs(Filter):
        def forward(self, x: Tensor) -> Tensor:
            z = super().forward(x)
            return (z * 20).round() / 20 + 0 * z

    model = Stairs(9, 1)
    x = torch.randn(6, 9, 1, generator=torch.Generator().manual_seed(1))
    found = evaluate_regression(model, (x, model(x).detach()), Threat("linf", 0.3), settings=QUICK)
    assert any("masked" in flag for flag in found.flags)


def test_padding_and_shapes_over_time() -> None:
    model, x, _ = case(1)
    lengths = torch.tensor([9, 4, 5, 9, 6, 7])

    def padded(u: Tensor, n: Tensor) -> Tensor:
        return model(u * (torch.arange(9) < n[:, None])[:, :, None])

    target = padded(x, lengths).detach()
    found = evaluate_regression(padded, (x, target, lengths), Threat("linf", 0.2, steps=2), settings=QUICK)
    moved = (found.x_adv != x).any(2)
    assert int(moved.sum(1).max()) <= 2
    assert not bool((moved & (torch.arange(9) >= lengths[:, None])).any())
    best = [model.w[0, :n].abs().sort(descending=True).values[:2].sum() * 0.2 for n in lengths]
    assert found.error.numpy() == pytest.approx(torch.stack(best).detach().double().numpy(), rel=1e-4)


def test_what_is_refused() -> None:
    model, x, y = case(1)
    with pytest.raises(TypeError, match="real targets"):
        evaluate_regression(model, (x, torch.zeros(6, dtype=torch.int64)), Threat("l2", 0.1))
    with pytest.raises(ValueError, match="target for each output"):
        evaluate_regression(model, (x, torch.zeros(6, 4)), Threat("l2", 0.1))
    with pytest.raises(ValueError, match="tolerance"):
        evaluate_regression(model, (x, y), Threat("l2", 0.1), -1.0)
    assert SegmentSearch(squared_error, 5)(model, x, y, Threat("l2", 0.1)).queries.tolist() == [5] * 6
