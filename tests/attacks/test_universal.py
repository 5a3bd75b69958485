"""One delta for all: it beats noise of its size on samples that it was not made from, and keeps to its threat."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from victims import Recurrent, labelled, sequences

from resolvent.attacks import Draws, Threat, Universal, UniversalSettings, margin, universal


def drawn(threat: Threat, x: torch.Tensor, seed: int) -> Universal:
    home = torch.zeros_like(x[:1])
    free = Threat(threat.norm, threat.eps, steps=threat.steps, band=threat.band).check(home)
    return Universal(free.random_start(home, Draws.of(home, seed), surface=True), threat, 0.0)


@pytest.mark.parametrize(
    "threat",
    [
        Threat("linf", 0.3, (-1.0, 2.0)),
        Threat("l2", 1.5),
        Threat("linf", 1.5, steps=2),
        Threat("linf", 0.4, band=(0.0, 0.2)),
        Threat("linf", (0.1, 0.5, 0.5)),
    ],
    ids=["linf", "l2", "steps", "band", "channels"],
)
def test_it_beats_noise_on_new_samples(threat: Threat) -> None:
    model, x = Recurrent(), sequences(n=160, l=10)
    y = labelled(model, x, wrong=0)
    made = universal(model, (x[:80], y[:80]), threat, UniversalSettings(epochs=6, batch_size=20))
    home = torch.zeros_like(x[:1])
    alone = Threat(threat.norm, threat.eps, steps=threat.steps, band=threat.band).check(home)
    assert bool(alone.contains(made.delta, home).all())
    if threat.bounds is not None:
        assert bool((made.apply(x) >= -1.0).all() & (made.apply(x) <= 2.0).all())
    new = x[80:], y[80:]
    tried = [drawn(threat, x, seed) for seed in range(10)]
    noise = min(tried, key=lambda d: d.accuracy(model, (x[:80], y[:80])))  # chosen as delta was: on the first samples
    assert made.accuracy(model, new) < noise.accuracy(model, new)


@pytest.mark.parametrize(("norm", "eps"), [("l1", 2.0), ("l2", 1.0)])
def test_no_budget_is_spent_beyond_the_bounds(norm: Any, eps: float) -> None:
    """Of a linear margin w x, x half way between bounds, the best delta is known: entries at a half, heaviest first."""
    w = torch.tensor([8.0, 1.0, 4.0, 6.0, 0.1, 5.0, 0.2, 0.1])
    x, y = torch.full((3, 8), 0.5), torch.zeros(3, dtype=torch.int64)
    f = lambda u: torch.stack([0.0 * u[:, 0], (u - 0.5) @ w - 100], 1)  # noqa: E731
    settings = UniversalSettings(epochs=40, objective=margin)
    made = universal(f, (x, y), Threat(norm, eps, (0.0, 1.0)), settings)
    best = 0.5 * float(w.sort(descending=True).values[:4].sum())  # four entries at a half: eps in either norm
    assert made.loss + 100 >= 0.97 * best


def test_padding_is_left_alone() -> None:
    model, x = Recurrent(), sequences(n=20, l=8)
    lengths = torch.randint(2, 9, (20,), generator=torch.Generator().manual_seed(0))
    made = universal(lambda u, n: model(u), (x, labelled(model, x), lengths), Threat("linf", 0.2))
    moved = made.apply(x, lengths) != x
    assert not bool((moved.any(2) & (torch.arange(8) >= lengths[:, None])).any())


def test_what_does_not_fit_is_refused() -> None:
    model, x = Recurrent(), sequences()
    y = labelled(model, x)
    with pytest.raises(ValueError, match="one eps"):
        universal(model, (x, y), Threat("linf", torch.full((24,), 0.1)))
    with pytest.raises(ValueError, match="leaves its band"):
        universal(model, (x, y), Threat("linf", 0.1, (0.0, 1.0), band=(0.0, 0.2)))
    with pytest.raises(ValueError, match="channels"):
        universal(model, (x, y), Threat("linf", (0.1, 0.2)))


def test_bounds_and_masks_of_each_sample_go_with_it() -> None:
    model, x = Recurrent(), sequences()
    low, high = x - 0.05 * torch.arange(len(x)).view(-1, 1, 1), x + 0.01  # the first may not fall at all
    mask = torch.arange(len(x))[:, None] % 2 == torch.zeros(1, x.shape[1], dtype=torch.int64)
    settings = UniversalSettings(epochs=2, batch_size=5)
    made = universal(model, (x, labelled(model, x)), Threat("linf", 0.2, (low, high), mask), settings)
    moved = made.apply(x)
    assert bool(((moved >= low) & (moved <= high)).all())
    assert torch.equal((moved != x).flatten(1).any(1), torch.arange(len(x)) % 2 == 0)
