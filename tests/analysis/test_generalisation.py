"""Theorem 3.3 and Proposition 3.4: capacities rebuilt term by term, the derived bound, the printed one, refusals."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from resolvent.analysis.generalisation.bound import (
    attention_capacity,
    dudley,
    generalisation_bound,
    printed_capacity,
    selective_capacity,
)
from resolvent.analysis.generalisation.norms import SelectiveNorms, check_data_bound, data_bound, selective_norms
from resolvent.analysis.generalisation.sums import log_sums, second_sum_printed
from resolvent.layers.scalar_s6 import ScalarS6

NORMS = SelectiveNorms(
    B_u=1.3, B_w=0.7, B_B=1.1, B_C=0.9, B_A=2.0, B_q=0.4, p=-0.3, s_A=-0.2, N=4, d=3, T=17,
    M_B=2.3, M_C=1.9, M_w=1.0, M_q=0.6, M_A=7.0,
)  # fmt: skip


# -- sums --------------------------------------------------------------------------------------------------------------


def sums(rho: float, T: int) -> tuple[float, float]:
    log_s1, log_s2 = log_sums(math.log(rho), T)
    return math.exp(log_s1), math.exp(log_s2)


def second_sum_by_terms(rho: float, T: int) -> float:
    return math.fsum(t * rho**t for t in range(T))


@pytest.mark.parametrize("T", [1, 2, 3, 25, 400, 1000])
def test_sums_equal_their_terms(T: int) -> None:
    """To 1e-12 for rho from 0.5 to 1.5: at 1, close to it, and where the method changes."""
    grid = [0.5 + i / 40 for i in range(41)]
    for rho in [*grid, 1.0, 1 - 1e-12, 1 + 1e-9, 1 - 1e-5, 0.8999999, 0.9000001, 1.1111111]:
        (s1, s2), want = sums(rho, T), second_sum_by_terms(rho, T)
        assert abs(s2 - want) <= 1e-12 * want, rho
        assert abs(s1 - math.fsum(rho**t for t in range(T))) <= 1e-12 * s1, rho


def test_sums_against_120_digits() -> None:
    mp = pytest.importorskip("mpmath").mp
    with mp.workdps(120):
        for rho in ("0.5", "0.97", "0.9999999", "1.0000001", "1.2"):
            r, T = mp.mpf(rho), 5000
            closed = r * (1 - r**T) / (1 - r) ** 2 - T * r**T / (1 - r)
            assert abs(log_sums(float(mp.log(r)), T)[1] - float(mp.log(closed))) <= 1e-12


def test_closed_form_of_lemma_e6_and_the_printed_sign() -> None:
    rho, T = 0.8, 30
    closed = rho * (1 - rho**T) / (1 - rho) ** 2 - T * rho**T / (1 - rho)
    assert abs(closed - sums(rho, T)[1]) <= 1e-12 * closed
    assert second_sum_printed(rho, T) == pytest.approx(closed + 2 * T * rho**T / (1 - rho), rel=1e-12)
    assert sums(1.0, 100)[1] == pytest.approx((100**2 - 100) / 2, rel=1e-14)
    with pytest.raises(ValueError, match="pole"):
        second_sum_printed(1.0, 5)


def test_sums_do_not_overflow() -> None:
    log_s1, log_s2 = log_sums(3.0, 100_000)
    assert log_s1 == pytest.approx(3.0 * 99_999 - math.log(-math.expm1(-3.0)), rel=1e-14)
    assert log_s2 == pytest.approx(log_s1 + math.log(99_999), rel=1e-9)


# -- rho and steps -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("s_A", [-0.7, -0.01, 0.0, 0.05, 0.6])
def test_rho_bounds_the_products_of_state_matrices(s_A: float) -> None:
    """||A_t|| <= rho^t for every input in the ball, both signs; the printed rho fails for positive ones."""
    norms = replace(NORMS, s_A=s_A)
    steps = [norms.shortest_step, norms.widest_step, (norms.shortest_step + norms.widest_step) / 2]
    largest = max(s_A * dt for dt in steps)
    assert largest <= norms.log_rho + 1e-15
    if s_A > 0:
        assert norms.log_rho_printed < largest


def test_steps_are_those_of_softplus() -> None:
    assert NORMS.widest_step == pytest.approx(math.log(1 + math.exp(0.3 + 0.4 * 1.3)), rel=1e-14)
    assert NORMS.widest_step_printed == pytest.approx(math.log(1 + math.exp(-0.3 + 0.4 * 1.3)), rel=1e-14)
    # Assumption 3.5 says 1 for p = e
    assert replace(NORMS, p=math.e, B_q=0.0).widest_step == pytest.approx(2.7822, abs=5e-5)
    assert replace(NORMS, p=math.log(math.e - 1), B_q=0.0).widest_step == pytest.approx(1.0, rel=1e-14)


@pytest.mark.parametrize("p", [-3.0, -0.3, 0.0, 3.0])
def test_steps_hold_for_every_model_that_the_bound_counts(p: float) -> None:
    """|p'| <= |p| and |q . u| <= B_q B_u: as the covering number of Theorem 3.3 counts them."""
    norms = replace(NORMS, p=p)
    for share in (-1.0, -0.5, 0.0, 0.7, 1.0):
        for input_share in (-1.0, 0.2, 1.0):
            step = math.log1p(math.exp(share * abs(p) + input_share * norms.B_q * norms.B_u))
            assert norms.shortest_step * (1 - 1e-12) <= step <= norms.widest_step * (1 + 1e-12)


def test_the_bound_does_not_depend_on_the_sign_of_p_and_p_is_not_rounded() -> None:
    there, back = (selective_capacity(replace(NORMS, p=sign * 3.0, T=1000)).value for sign in (1, -1))
    assert there == back  # with p itself the two differed by a factor of 14
    W = torch.ones(2, 2)
    assert selective_norms(W, W, -W, -0.4, torch.ones(2), torch.ones(2), 1.0, T=3).p == -0.4


# -- capacity ----------------------------------------------------------------------------------------------------------


def by_hand(n: SelectiveNorms) -> float:
    """(79) in plain numbers, with the logarithms of (73)-(78) and the cover of p."""
    rho = math.exp(n.log_rho)
    S1 = math.fsum(rho**t for t in range(n.T))
    S2 = math.fsum(t * rho**t for t in range(n.T))
    dt, nd, out = n.widest_step, n.N * n.d, n.B_w * n.B_B * n.B_C * n.B_u**3
    M_B, M_C, M_w, M_q, M_A = (n.one_norm(k) for k in "BCwqA")
    drift = out * (S1 + dt * n.B_A * S2)
    pairs = [
        (n.B_u**2 * M_B**2 * math.log(2 * nd + 1), n.B_w * n.B_C * n.B_u**2 * dt * S1),
        ((n.B_B * n.B_u**2 * dt * S1) ** 2 * M_C**2 * math.log(2 * nd * n.d + 1), n.B_w * n.B_u),
        (2 * M_A**2 * nd * math.log(2 * nd), dt**2 * out * S2),
        ((n.B_B * n.B_C * n.B_u**3 * dt * S1) ** 2 * M_w**2 * math.log(2 * n.d + 1), 1.0),
        (n.B_u**2 * M_q**2 * math.log(2 * n.d + 1), drift),
        (2 / math.e * n.p**2, drift),
    ]
    return sum(a ** (1 / 3) * b ** (2 / 3) for a, b in pairs) ** 1.5


@pytest.mark.parametrize("s_A", [-0.2, 0.0, 0.3])
def test_capacity_is_the_sum_of_its_covers(s_A: float) -> None:
    norms = replace(NORMS, s_A=s_A)
    assert selective_capacity(norms).value == pytest.approx(by_hand(norms), rel=1e-12)


def test_lemma_c9_is_the_minimum() -> None:
    """The optimum over the covers' radii, searched for: no split of epsilon beats (sum a^(1/3) b^(2/3))^3."""
    a, b = torch.rand(4, dtype=torch.float64) + 0.1, torch.rand(4, dtype=torch.float64) + 0.1
    best = float((a ** (1 / 3) * b ** (2 / 3)).sum() ** 3)
    share = torch.rand(20_000, 4, dtype=torch.float64) + 1e-3
    eps = share / (share * b).sum(1, keepdim=True)  # sum of b eps = 1
    costs = (a / eps**2).sum(1)
    assert float(costs.min()) >= best
    assert float(costs.min()) <= 1.2 * best


def test_equation_14() -> None:
    n = NORMS

    def rest(step: float) -> float:
        wide = step ** (2 / 3) * n.N ** (1 / 3) * n.d ** (1 / 3) + n.B_q ** (2 / 3) * n.B_u ** (2 / 3)
        return step * n.B_w * n.B_u**3 * n.B_B * n.B_C * n.B_A * wide**1.5

    widest, shortest = (math.log(1 + math.exp(sign * (0.3 + 0.4 * 1.3))) for sign in (1, -1))
    total = second_sum_by_terms(math.exp(-0.2 * shortest), n.T)
    assert selective_capacity(n).short == pytest.approx(rest(widest) * total, rel=1e-12)
    widest, shortest = (math.log(1 + math.exp(-0.3 + sign * 0.4 * 1.3)) for sign in (1, -1))  # p = -0.3 itself
    total = second_sum_printed(math.exp(-0.2 * shortest), n.T)
    assert printed_capacity(n) == pytest.approx(rest(widest) * total, rel=1e-12)
    assert printed_capacity(replace(n, s_A=0.0)) is None  # (15) has a pole there


def test_attention_is_the_selective_bound_without_what_it_lacks() -> None:
    """With dt = 1 and A = 0 the three shared covers are those of Proposition 3.4."""
    n = replace(NORMS, p=math.log(math.e - 1), B_q=0.0, M_q=0.0, s_A=0.0, B_A=0.0, M_A=0.0)
    selective, attention = selective_capacity(n), attention_capacity(n)
    for name in ("W_B", "W_C", "w"):
        assert selective.log_terms[name] == pytest.approx(attention.log_terms[name], rel=1e-12)
    assert selective.log_terms["A"] == selective.log_terms["q"] == -math.inf
    assert attention.short == pytest.approx(n.T * n.B_w * n.B_B * n.B_C * n.B_u**3, rel=1e-12)


def test_capacity_is_flat_in_T_where_states_decay_and_exponential_where_they_grow() -> None:
    decays = [selective_capacity(replace(NORMS, T=T)).value for T in (500, 5000)]
    assert decays[1] == pytest.approx(decays[0], rel=1e-6)
    grows = [selective_capacity(replace(NORMS, s_A=0.1, T=T)).log_value for T in (1000, 2000)]
    rate = replace(NORMS, s_A=0.1).log_rho
    assert grows[1] - grows[0] == pytest.approx(1000 * rate + math.log(2), rel=1e-3)


# -- the bound ---------------------------------------------------------------------------------------------------------


def test_dudley_is_the_infimum() -> None:
    C, m, c = 3.0, 10_000, 2.0
    alphas = [1e-4 * 1.01**k for k in range(1000) if 1e-4 * 1.01**k < c]
    best = min(4 * a + 12 * C / math.sqrt(m) * math.log(c / a) for a in alphas)
    assert dudley(math.log(C), m, c) <= best
    assert dudley(math.log(C), m, c) == pytest.approx(best, rel=1e-3)
    assert dudley(50.0, m, c) == 4 * c  # the integral is empty: never the negative number of the formula
    assert dudley(-math.inf, m, c) == 0.0


def test_bound_has_the_factor_that_the_print_lacks() -> None:
    small = replace(NORMS, B_w=1e-4, M_w=2e-4)
    m, delta, l, c = 10**6, 0.1, 2.0, 3.0
    found = generalisation_bound(small, m, delta, lipschitz=l, ceiling=c)
    C, tail = selective_capacity(small).value, 3 * c * math.sqrt(math.log(2 / delta) / (2 * m))
    rademacher = 12 * l * C / math.sqrt(m) * (1 + math.log(c * math.sqrt(m) / (3 * l * C)))
    assert found.value == pytest.approx(2 * rademacher + tail, rel=1e-12)
    assert not found.vacuous
    P = printed_capacity(small)
    assert P is not None
    printed = 12 * l * P / math.sqrt(m) * (1 + math.log(c * math.sqrt(m) / (3 * P))) + tail
    assert found.printed == pytest.approx(printed, rel=1e-12)


def test_bound_of_a_growing_model_is_vacuous_and_plain_json() -> None:
    import json

    found = generalisation_bound(replace(NORMS, s_A=1.5, T=5000), 1000)
    assert found.vacuous
    assert found.value < math.inf
    json.dumps(found.as_dict(), allow_nan=False)


def test_bound_falls_with_samples() -> None:
    small = replace(NORMS, B_w=1e-3, M_w=2e-3)
    values = [generalisation_bound(small, m).value for m in (10**4, 10**6, 10**8)]
    assert values == sorted(values, reverse=True)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"m": 0}, "m must be at least 1"),
        ({"m": 10.0}, "m must be a whole number"),
        ({"m": True}, "m must be a whole number"),
        ({"m": 11}, "m >= N d = 12"),
        ({"delta": 0.0}, "delta must lie strictly"),
        ({"delta": 1.0}, "delta must lie strictly"),
        ({"delta": math.nan}, "delta must lie strictly"),
        ({"ceiling": math.inf}, "ceiling of the loss"),
        ({"lipschitz": 0.0}, "lipschitz of the loss"),
    ],
)
def test_bound_refuses(change: dict[str, float], words: str) -> None:
    with pytest.raises(TypeError if "whole" in words else ValueError, match=words):
        generalisation_bound(NORMS, **{"m": 1000, **change})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"B_w": math.nan}, "finite number"),
        ({"s_A": math.inf}, "finite number"),
        ({"B_u": -1.0}, "cannot be negative"),
        ({"T": 0}, "T must be at least 1"),
        ({"B_A": 0.1}, "cannot be less than"),
    ],
)
def test_norms_refuse(change: dict[str, float], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        replace(NORMS, **change)


# -- reading a layer ---------------------------------------------------------------------------------------------------


def test_norms_of_a_layer() -> None:
    layer = ScalarS6(5, 3, abscissa=0.1)
    u, w = torch.randn(2, 9, 5), torch.randn(2, 5)
    found = selective_norms(layer.W_B, layer.W_C, layer.A, layer.p, layer.q, w, u)
    assert (found.N, found.d, found.T) == (3, 5, 9)
    assert found.s_A == pytest.approx(0.1, rel=1e-6)
    largest = float(torch.linalg.svdvals(layer.W_B.detach().double())[0])
    assert abs(found.B_B - largest) <= 1e-12 * largest
    assert found.B_B <= float(layer.W_B.norm()) <= found.one_norm("B")
    assert found.B_w == pytest.approx(float(w.norm(dim=1).max()), rel=1e-6)
    assert found.B_u == pytest.approx(float(u.norm(dim=-1).max()), rel=1e-6)
    check_data_bound(u, found.B_u)


def test_samples_outside_the_stated_bound_are_refused() -> None:
    u = torch.full((4, 6, 3), 0.1)
    u[2, 5] = 9.0
    with pytest.raises(ValueError, match=r"1 of 4 samples lie outside the stated bound .* first sample 2"):
        generalisation_bound(NORMS, 1000, u=u)
    u[2, 5] = math.nan
    with pytest.raises(ValueError, match="outside"):
        check_data_bound(u, 1.0)
    with pytest.raises(ValueError, match="NaN"):
        data_bound(u)


def test_norms_of_wrong_tensors() -> None:
    layer = ScalarS6(5, 3)
    with pytest.raises(ValueError, match=r"A \(5, 3\)"):
        selective_norms(layer.W_B, layer.W_C, layer.A.mT, layer.p, layer.q, torch.ones(5), 1.0, T=3)
    with pytest.raises(ValueError, match="T is not known"):
        selective_norms(layer.W_B, layer.W_C, layer.A, layer.p, layer.q, torch.ones(5), torch.ones(7, 5))


def test_the_unrolled_state_keeps_its_bound() -> None:
    """Lemma E.4 on the real layer: ||x[T]|| <= M_Delta B_B B_u^2 S1, for decaying and growing states."""
    for s_A in (-0.3, 0.2):
        layer = ScalarS6(4, 3, abscissa=s_A).double()
        u = torch.randn(8, 12, 4, dtype=torch.float64)
        norms = selective_norms(layer.W_B, layer.W_C, layer.A, layer.p, layer.q, torch.ones(4), u)
        bound = norms.widest_step * norms.B_B * norms.B_u**2 * math.exp(log_sums(norms.log_rho, norms.T)[0])
        _, state = layer(u)
        assert float(state.flatten(1).norm(dim=1).max()) <= bound


def test_linear_attention_is_the_layer_with_A_zero_and_unit_steps() -> None:
    """y[T] = sum_t (W_C u[T]) . (W_B u[t]) u[t] (16) to 1e-12."""
    d, n, l = 4, 3, 11
    layer = ScalarS6(d, n).double()
    with torch.no_grad():
        layer.A.zero_()
        layer.q.zero_()
        layer.p.fill_(math.log(math.e - 1))
    u = torch.randn(2, l, d, dtype=torch.float64)
    y, _ = layer(u)
    query, key = u @ layer.W_C.mT, u @ layer.W_B.mT  # (b, l, n)
    attention = torch.tril(query @ key.mT) @ u
    assert float((y - attention).abs().max() / attention.abs().max()) <= 1e-12
