"""Ridge regression in closed form against scikit-learn's, and its left-out predictions against leaving rows out."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from resolvent.models.reservoir.ridge import fit_ridge

linear_model = pytest.importorskip("sklearn.linear_model")
ALPHAS = (1e-3, 0.1, 3.0, 50.0)


def sample(n: int, p: int, rank: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(n * 100 + p)
    F = torch.randn(n, p, dtype=torch.float64, generator=generator)
    if rank is not None:
        F = F[:, :rank] @ torch.randn(rank, p, dtype=torch.float64, generator=generator)
    return F + 5, F[:, :2] + torch.randn(n, 2, dtype=torch.float64, generator=generator)


@pytest.mark.parametrize(("n", "p", "rank"), [(12, 40, None), (40, 7, None), (15, 15, None), (20, 30, 4), (30, 9, 3)])
def test_it_is_scikit_learns_ridge_with_the_same_alpha(n: int, p: int, rank: int | None) -> None:
    F, Y = sample(n, p, rank)
    found = fit_ridge(F, Y, ALPHAS)
    known = linear_model.RidgeCV(ALPHAS).fit(F.numpy(), Y.numpy())
    assert found.alpha == known.alpha_
    np.testing.assert_allclose(found.weight.mT, known.coef_, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(found.bias, known.intercept_, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize(("n", "p"), [(9, 25), (25, 4)])
def test_left_out_predictions_are_those_without_the_row(n: int, p: int) -> None:
    F, Y = sample(n, p)
    found = fit_ridge(F, Y, (0.7,))
    for i in range(n):
        rest = torch.arange(n) != i
        known = linear_model.Ridge(0.7).fit(F[rest].numpy(), Y[rest].numpy())
        np.testing.assert_allclose(found.left_out[i], known.predict(F[i : i + 1].numpy())[0], rtol=1e-8, atol=1e-9)
