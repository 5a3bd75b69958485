"""Bounds on the output error against dense matrices, sampling, and attacks on real layers."""

from __future__ import annotations

import json
import math

import pytest
import torch
from torch import Tensor

from helpers import assert_close
from resolvent.analysis.certificates.error_bounds import ErrorBounds, error_bounds, triangle_eigenvalues
from resolvent.layers import LRU, S4D, S6
from resolvent.layers.scalar_s6 import ScalarS6
from resolvent.ssm.system import Diagonal, System


def matrix(system: System, l: int) -> Tensor:
    """H (..., l p, l m) column by column, from the simulation of one impulse each."""
    m, columns = system.inputs, []
    for s in range(l):
        for i in range(m):
            u = torch.zeros(l, m, dtype=torch.float64)
            u[s, i] = 1.0
            y = system.simulate(u)[0]
            columns.append((y.real if y.is_complex() else y).flatten(-2))
    return torch.stack(columns, -1)


def fixed(seed: int = 0, n: int = 3, m: int = 2, p: int = 2) -> System:
    g = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=g)

    A = draw(n, n)
    return System(0.9 * A / torch.linalg.matrix_norm(A, 2), draw(n, m), draw(p, n), draw(p, m), dt=1.0)


def scalar(lam: list[float], c: list[float], d: float = 0.0) -> System:
    one = torch.ones(len(lam), 1, dtype=torch.float64)
    return System(
        Diagonal(torch.tensor(lam, dtype=torch.float64)),
        one,
        torch.tensor([c], dtype=torch.float64),
        torch.tensor([[d]], dtype=torch.float64),
        dt=1.0,
    )


def check_against_matrix(found: ErrorBounds, H: Tensor, p: int, mean: float, moment: float) -> None:
    """At every length: the leading block of H."""
    l = found.length
    for k in (1, 2, l // 2 + 1, l):
        block = H[..., : k * p, : k * H.shape[-1] // l]
        assert_close(found.lower[..., k - 1], mean**2 * block.sum(-1).square().sum(-1))
        exact = (moment - mean**2) * block.square().sum((-1, -2)) + mean**2 * block.sum(-1).square().sum(-1)
        assert_close(found.exact[..., k - 1], exact)


@pytest.mark.parametrize("delay", [False, True])
def test_fixed_dense_system(delay: bool) -> None:
    system = fixed().delayed() if delay else fixed()
    found = error_bounds(system, 9, mean=0.3, second_moment=0.5)
    H = matrix(system, 9)
    check_against_matrix(found, H, 2, 0.3, 0.5)
    rows = H.abs().sum(-1).unflatten(-1, (9, 2)).square().sum(-1)  # (l,)
    assert_close(found.upper, 0.5 * rows.cumsum(-1))


def test_layer_systems_of_every_kind() -> None:
    layers = [S4D(3, 8).double(), LRU(3, 8).double()]
    for layer in layers:
        system = layer.system()
        found = error_bounds(system, 12, mean=0.1, second_moment=0.04)
        check_against_matrix(found, matrix(system, 12), system.outputs, 0.1, 0.04)
        assert bool((found.lower <= found.exact).all())
        assert bool((found.exact <= found.upper).all())


@pytest.mark.parametrize("make", [lambda: S6(3, 4), lambda: ScalarS6(3, 4, abscissa=0.05)], ids=["S6", "ScalarS6"])
def test_selective_layers_at_one_input(make: object) -> None:
    layer = make().double()  # type: ignore[operator]
    x = torch.randn(2, 7, 3, dtype=torch.float64)
    system = layer.linearise(x)
    found = error_bounds(system, mean=0.2, second_moment=0.3)
    H = torch.stack([_varying_matrix(system, i, j, 7) for i in range(2) for j in range(3)]).unflatten(0, (2, 3))
    check_against_matrix(found, H, 1, 0.2, 0.3)
    tight = 0.3 * H.abs().sum(-1).square().cumsum(-1)
    assert bool((found.upper >= tight * (1 - 1e-12)).all())


def _varying_matrix(system: System, i: int, j: int, l: int) -> Tensor:
    lam, B, C, D = (t[i, j] for t in (system.A.lam, system.B, system.C, system.D))
    H = torch.zeros(l, l, dtype=torch.float64)
    for s in range(l):
        state = B[s, :, 0]
        H[s, s] = C[s, 0] @ state + D[s, 0, 0]
        for t in range(s + 1, l):
            state = lam[t] * state
            H[t, s] = C[t, 0] @ state
    return H.detach()


def test_exact_value_by_sampling() -> None:
    system, mean, spread, l = fixed(1), 0.4, 0.7, 6
    e = mean + spread * torch.randn(200_000, l, 2, dtype=torch.float64)
    y, _ = system.simulate(e)
    measured = float(y.square().sum((-1, -2)).mean())
    exact = float(error_bounds(system, l, mean=mean, second_moment=mean**2 + spread**2).exact[-1])
    assert measured == pytest.approx(exact, rel=1e-2)  # 200 000 samples: a standard error of 0.2 %


def test_upper_bound_holds_for_dependent_entries_and_is_met_by_positive_kernels() -> None:
    system, l = scalar([0.9, 0.5], [1.0, 2.0], 0.5), 15
    found = error_bounds(system, l, second_moment=4.0)
    y, _ = system.simulate(torch.full((l, 1), 2.0, dtype=torch.float64))  # all entries equal: wholly dependent
    assert_close(found.upper[-1], y.square().sum())
    assert float(found.exact[-1]) < float(found.upper[-1])


def test_triangle_eigenvalues() -> None:
    for l in (1, 2, 7, 40):
        E = torch.tril(torch.ones(l, l, dtype=torch.float64))
        values = torch.linalg.eigvalsh(E.mT @ E)
        assert triangle_eigenvalues(l) == pytest.approx((float(values[0]), float(values[-1])), rel=1e-10)


def test_the_theorem_holds_where_it_is_claimed() -> None:
    """Corrected squares, positive scalar modes: both sides around the exact value, at every length."""
    found = error_bounds(scalar([0.95, 0.6], [1.0, 0.5], 0.2), 40, mean=0.3, second_moment=0.25)
    assert found.reason == ""
    assert found.theorem_lower is not None
    assert found.theorem_upper is not None
    assert bool((found.theorem_lower <= found.lower * (1 + 1e-12)).all())
    assert bool((found.upper <= found.theorem_upper * (1 + 1e-12)).all())
    assert bool((found.theorem_lower > 0).all())


def test_equation_11_as_printed_loses_the_squares() -> None:
    """For one mode (C A^j B)^2 is lam^2j; with lam^j in its place even the upper side fails for lam > 1."""
    found = error_bounds(scalar([1.2], [1.0]), 30, mean=1.0, second_moment=1.0)
    _, c2 = triangle_eigenvalues(30)
    printed = c2 * sum(1.2**j for j in range(30))
    assert printed < float(found.exact[-1])
    assert found.theorem_upper is not None
    assert float(found.exact[-1]) <= float(found.theorem_upper[-1])


def test_cancelling_modes_have_no_lower_side() -> None:
    """C B of both signs: the printed form would claim a positive error for a system that has none."""
    found = error_bounds(scalar([0.7, 0.7], [1.0, -1.0]), 10, mean=1.0, second_moment=1.0)
    assert found.theorem_lower is None
    assert "cancel" in found.reason
    assert float(found.exact[-1]) == 0.0
    assert found.theorem_upper is not None
    complex_system = S4D(1, 4).double().system()
    assert error_bounds(complex_system, 5, mean=1.0, second_moment=1.0).theorem_lower is None
    dense = error_bounds(fixed(), 5, second_moment=1.0)
    assert dense.theorem_upper is None
    assert "Dense" in dense.reason


def test_measured_error_of_the_worst_perturbation_stays_below() -> None:
    """The sign attack on the last step of an S4D channel: the largest |y_t| that |e| <= eps can make."""
    layer, eps, l = S4D(2, 8).double(), 0.1, 20
    system = layer.system()
    x = torch.randn(1, l, 2, dtype=torch.float64, requires_grad=True)
    y, _ = layer(x)
    (grad,) = torch.autograd.grad(y[0, -1].sum(), x)
    with torch.no_grad():
        error = (layer(x + eps * grad.sign())[0] - y)[0].square().sum(0)  # (d,)
    found = error_bounds(system, l, second_moment=eps**2, measured=error)
    assert found.as_dict()["measured"] == pytest.approx(float(error.sum()))
    with pytest.raises(ValueError, match="above the bound"):
        error_bounds(system, l, second_moment=eps**2, measured=found.upper[..., -1] * 1.01)


def test_growth_is_plain_data_and_grows() -> None:
    found = error_bounds(S4D(3, 4).system(), 16, mean=0.1, second_moment=0.02)
    record = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    for name in ("lower", "exact", "upper"):
        curve = record["growth"][name]
        assert len(curve) == 16
        assert curve == sorted(curve)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"length": 0}, "length must be"),
        ({"length": None}, "length must be"),
        ({"length": 3.5}, "length must be"),
        ({"mean": 2.0}, "at least"),
        ({"second_moment": -1.0}, "finite"),
        ({"second_moment": math.nan}, "finite"),
    ],
)
def test_refusals(change: dict[str, float], words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words):
        error_bounds(fixed(), **{"length": 4, "second_moment": 1.0, **change})


def test_refuses_what_is_no_discrete_system() -> None:
    with pytest.raises(TypeError, match="System"):
        error_bounds("S4D", 4, second_moment=1.0)  # type: ignore[arg-type]
    one = torch.ones(1, 1)
    with pytest.raises(ValueError, match="continuous"):
        error_bounds(System(one, one, one, one), 4, second_moment=1.0)
    system = ScalarS6(2, 2).linearise(torch.randn(1, 5, 2))
    with pytest.raises(ValueError, match="its own length 5"):
        error_bounds(system, 4, second_moment=1.0)
