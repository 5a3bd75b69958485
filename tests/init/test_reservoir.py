"""Random systems: stable, of the time scales described, half of them without gain at frequency 0."""

from __future__ import annotations

import torch

import resolvent as rv


def test_systems_are_stable_and_half_of_them_see_changes_alone() -> None:
    lam_bar, C = rv.init.reservoir(400, 4, length=600, generator=torch.Generator().manual_seed(0))
    assert lam_bar.shape == C.shape == (400, 4)
    assert float(lam_bar.abs().max()) < 1
    constant = (C / (1 - lam_bar)).real.sum(1).abs()  # the response to a constant input, up to a factor
    assert 150 < int((constant < 1e-9).sum()) < 250
    tau = -1 / lam_bar.abs().log()
    assert 0.7 * 0.49 < float(tau.min()) < 1.5
    assert 80 < float(tau.max()) < 600 / 6 * 2.02
    assert float(lam_bar.angle().max()) <= 0.95 * torch.pi + 1e-12


def test_equal_generators_draw_equal_systems_and_a_step_is_enough() -> None:
    one, two = (rv.init.reservoir(3, 2, 1, torch.Generator().manual_seed(5)) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
    assert bool(one[0].isfinite().all() and one[1].isfinite().all())
