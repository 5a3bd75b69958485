"""Perturbations with a shape over time: few steps against exhaustive search, bands against numpy, both obeyed."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from victims import Padded, Recurrent, labelled, sequences

from resolvent.attacks import APGD, FAB, FGSM, PGD, SparseSteps, Square, Threat, autoattack, dlr, margin
from resolvent.attacks.rows import fit_threat


def outside_band(delta: np.ndarray[Any, Any], low: float, high: float) -> float:
    """The largest value of what numpy's FFT finds outside of the band."""
    n = len(delta)
    spectrum, at = np.fft.fft(delta, axis=0), np.abs(np.fft.fftfreq(n))
    spectrum[(at >= low - 1e-9) & (at <= high + 1e-9)] = 0
    return float(np.abs(np.fft.ifft(spectrum, axis=0)).max())


ATTACKS: tuple[Any, ...] = (PGD(steps=5), FGSM(), APGD(steps=10), APGD(dlr, steps=6, stop=False), PGD(5, keep="last"))


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda a: a.name)
@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
@pytest.mark.parametrize("eps", [0.3, (0.1, 0.3, 0.2)], ids=["one", "channels"])
def test_every_attack_obeys_steps_and_band(attack: Any, norm: str, eps: Any) -> None:
    model, x = Recurrent(), sequences(l=12, n=10)
    y, order = labelled(model, x), {"linf": np.inf, "l2": 2, "l1": 1}[norm]
    limit = np.broadcast_to(np.asarray(eps), x.shape[1:])
    for shape in ({"steps": 2}, {"band": (0.0, 0.2)}):
        found = attack(model, x, y, Threat(norm, eps, (-0.5, 1.5), **shape))  # type: ignore[arg-type]
        assert float(found.norm.max()) > 0
        for point, home in zip(found.x_adv.double().numpy(), x.double().numpy(), strict=True):
            delta = point - home
            assert np.linalg.norm((delta / limit).ravel(), order) <= 1 + 1e-6
            assert -0.5 - 1e-6 <= point.min() <= point.max() <= 1.5 + 1e-6
            if "steps" in shape:
                assert (delta != 0).any(1).sum() <= 2
            else:
                assert outside_band(delta, 0.0, 0.2) <= 1e-6


def test_padded_samples_have_the_frequencies_of_their_own_steps() -> None:
    model, x = Padded(), sequences(l=16, n=6)
    lengths = torch.tensor([16, 9, 9, 12, 5, 16])
    y = labelled(model, x)
    found = PGD(steps=6)(model, x, y, Threat("linf", 0.2, band=(0.05, 0.3)), lengths=lengths)
    delta = (found.x_adv - x).double().numpy()
    for row, n in zip(delta, lengths.tolist(), strict=True):
        assert not row[n:].any()
        assert outside_band(row[:n], 0.05, 0.3) <= 1e-6
    few = SparseSteps(swaps=3)(model, x, y, Threat("linf", 0.2, steps=2), lengths=lengths)
    touched = (few.x_adv != x).any(2)
    assert int(touched.sum(1).max()) <= 2
    assert not bool((touched & (torch.arange(16) >= lengths[:, None])).any())


def test_tight_bounds_leave_what_a_band_can_do() -> None:
    """x at its bound everywhere: a cosine that must not fall below 0 anywhere needs a mean."""
    x = torch.zeros(3, 16, 1)
    threat = Threat("linf", 0.3, (0.0, 1.0), band=(0.0, 0.1)).check(x)
    point = threat.project(x + torch.rand(3, 16, 1, generator=torch.Generator().manual_seed(0)), x)
    assert float(point.amax()) > 0.1
    assert bool(threat.contains(point, x).all())
    for row in point.double().numpy():
        assert outside_band(row, 0.0, 0.1) <= 1e-6


def test_the_projection_is_the_nearest_point() -> None:
    """Against a search over all sets of steps, and for a band against a solver of scipy."""

    generator = torch.Generator().manual_seed(4)
    x = torch.rand(1, 7, 2, generator=generator, dtype=torch.float64)
    want = x + torch.randn(x.shape, generator=generator, dtype=torch.float64)
    for norm in ("linf", "l2"):
        threat = Threat(norm, 0.4, None if norm == "l2" else (0.0, 1.0), steps=2)  # type: ignore[arg-type]
        got = float((threat.project(want, x) - want).norm())
        distances = []
        for pair in combinations(range(7), 2):
            mask = torch.zeros(1, 7, dtype=torch.bool)
            mask[0, list(pair)] = True
            plain = Threat(norm, 0.4, threat.bounds, mask).check(x)  # type: ignore[arg-type]
            distances.append(float((plain.project(want, x) - want).norm()))
        assert got == pytest.approx(min(distances), abs=1e-9)
    basis = np.stack([np.ones(8), *(g(2 * np.pi * np.arange(8) / 8) for g in (np.cos, np.sin))], 1)
    delta = torch.randn(1, 8, 1, generator=generator, dtype=torch.float64)
    home = torch.zeros_like(delta)
    near = Threat("linf", 0.3, band=(0.0, 0.125)).project(delta, home)[0, :, 0].numpy()
    exact = _nearest(basis, delta[0, :, 0].numpy(), 0.3)
    assert np.linalg.norm(near - delta[0, :, 0].numpy()) <= 1.02 * np.linalg.norm(exact - delta[0, :, 0].numpy())


def _nearest(basis: np.ndarray[Any, Any], want: np.ndarray[Any, Any], eps: float) -> np.ndarray[Any, Any]:
    from scipy.optimize import minimize

    rules = [{"type": "ineq", "fun": lambda c: eps - basis @ c}, {"type": "ineq", "fun": lambda c: eps + basis @ c}]
    found = minimize(lambda c: float(((basis @ c - want) ** 2).sum()), np.zeros(basis.shape[1]), constraints=rules)
    return basis @ found.x


class Gates(nn.Module):
    """Products of pairs of steps: which are best together is not told by each alone. The other class never wins."""

    def __init__(self, l: int, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.first = nn.Parameter(torch.randn(l, generator=generator, dtype=torch.float64))
        self.pair = nn.Parameter(torch.randn(l, l, generator=generator, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        s = torch.tanh(x.sum(2))  # (b, l)
        score = s @ self.first + torch.einsum("bi,bj,ij->b", s, s, self.pair)
        return torch.stack([torch.full_like(score, 1e3), score], 1)


@pytest.mark.parametrize(("l", "k"), [(12, 1), (8, 2), pytest.param(12, 3, marks=pytest.mark.slow)])
def test_few_steps_match_an_exhaustive_search(l: int, k: int) -> None:
    model, n, eps = Gates(l, seed=l + k).requires_grad_(False), 3, 0.5
    x = torch.randn(n, l, 2, generator=torch.Generator().manual_seed(l), dtype=torch.float64)
    y = torch.zeros(n, dtype=torch.int64)
    found = SparseSteps(swaps=12 * k, restarts=k, objective=margin)(model, x, y, Threat("linf", eps, steps=k))
    masks = torch.zeros(0, l, dtype=torch.bool)
    for chosen in combinations(range(l), k):
        masks = torch.cat([masks, torch.tensor([[t in chosen for t in range(l)]])])
    best = torch.stack([_on(model, row, masks, eps).amax() for row in x])  # over all sets of k steps
    clean = margin(model(x), y)
    assert float(((found.loss - clean) / (best - clean)).min()) > 0.98
    few = masks[torch.randperm(len(masks), generator=torch.Generator().manual_seed(0))[:10]]
    random = torch.stack([_on(model, row, few, eps).amax() for row in x])
    assert bool((found.loss >= random - 1e-9).all())
    assert float((found.loss - clean).sum()) >= float((random - clean).sum())


def _on(model: nn.Module, row: Tensor, masks: Tensor, eps: float) -> Tensor:
    """The highest margin that PGD from three starts finds on each set of steps: (sets,)."""
    x, y = row.expand(len(masks), *row.shape).contiguous(), torch.zeros(len(masks), dtype=torch.int64)
    tried = PGD(steps=25, restarts=3, objective=margin)(model, x, y, Threat("linf", eps, mask=masks))
    plain = PGD(steps=25, random_start=False, objective=margin)(model, x, y, Threat("linf", eps, mask=masks))
    return torch.maximum(tried.loss, plain.loss)


def test_shapes_through_autoattack() -> None:
    model, x = Recurrent(), sequences(l=8, n=12)
    y = labelled(model, x)
    for threat in (Threat("linf", 0.5, steps=2), Threat("l2", 0.8, band=(0.0, 0.25))):
        whole = autoattack(model, x, y, threat.unshaped(), "fast").accuracy
        result = autoattack(model, x, y, threat, "fast")
        assert result.accuracy >= whole
        assert bool(fit_threat(threat, x, None).contains(result.x_adv, x).all())
        assert ("steps" in result.threat) == (threat.steps is not None)
        assert len({Square().name, FAB().name} & set(result.stages)) == 0


def test_attacks_on_whole_balls_refuse_a_shape() -> None:
    model, x = Recurrent(), sequences()
    for attack in (FAB(), Square(n_queries=3)):
        with pytest.raises(ValueError, match="knows no budget of time steps"):
            attack(model, x, labelled(model, x), Threat("linf", 0.1, steps=1))


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ({"steps": 7}, "6"),
        ({"steps": 0}, "at least 1"),
        ({"steps": 1.5}, "whole number"),
        ({"band": (0.1, 0.7)}, "Nyquist"),
        ({"band": (0.3, 0.2)}, "low <= high"),
        ({"band": (0.2, 0.3)}, "no frequency of 6 steps"),
        ({"band": 0.2}, "band must be"),
        ({"band": torch.ones(9, dtype=torch.bool)}, "4 entries"),
        ({"steps": 1, "band": (0.0, 0.5)}, "steps or band"),
        ({"band": (0.0, 0.2), "mask": torch.tensor([[True, False, True, True, True, True]])}, "gaps"),
    ],
)
def test_a_shape_that_does_not_fit_is_refused(shape: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        Threat("linf", 0.1, **shape).check(sequences())


def test_a_frequency_mask_may_be_given_bin_by_bin() -> None:
    x = torch.zeros(2, 8, 1)
    inside = torch.tensor([False, True, False, True, False])
    point = Threat("linf", 0.5, band=inside).project(torch.randn(2, 8, 1), x)
    spectrum = torch.fft.rfft(point, dim=1).abs()[:, :, 0]
    assert float(spectrum[:, ~inside].max()) < 1e-6
    assert float(spectrum[:, inside].min()) > 1e-3


def test_nothing_changes_for_other_samples_when_one_leaves() -> None:
    model, x = Recurrent(), sequences(l=9)
    y = labelled(model, x)
    for threat in (Threat("linf", 0.3, steps=2), Threat("linf", 0.3, (0.0, 1.0), band=(0.0, 0.3))):
        from resolvent.attacks import Draws

        whole = PGD(steps=5)(model, x, y, threat).x_adv
        part = PGD(steps=5)(model, x[4:7], y[4:7], threat, draws=Draws.of(x[4:7], first=4)).x_adv
        assert torch.allclose(whole[4:7], part, atol=1e-6)
