"""Square's compiled steps against the same steps in torch's operations: values, verdicts, counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import pytest
import torch
from torch import Tensor

from resolvent.attacks import AttackResult, Threat
from resolvent.attacks.square.attack import Square
from resolvent.attacks.square.layout import layout_of
from resolvent.attacks.square.step import Bump, Corner, find_compiled, step_for
from resolvent.attacks.threat.threat import Norm
from resolvent.scan import use

pytest.importorskip("numba", reason="compiled steps need the extra numba")
SHAPES = [(2, 6, 7), (1, 9, 9), (13, 4), (11, 1), (9,)]
EPS: dict[Norm, float] = {"linf": 0.12, "l2": 0.45}


def drawn(shape: tuple[int, ...], dtype: torch.dtype, seed: int, b: int = 5) -> Tensor:
    return torch.rand(b, *shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("norm", EPS)
def test_every_window_is_the_same(norm: Norm, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = drawn(shape, dtype, 0)
    threat = Threat(norm, EPS[norm], bounds=(0.0, 1.0)).check(x)
    step = step_for(x, threat, layout := layout_of(x))
    assert isinstance(step, Corner | Bump)
    assert find_compiled(x) is not None
    assert layout.frame(layout.extent(0.3, 1))
    sample = torch.tensor([0, 0, 1, 3, 3, 3, 4])
    best = threat.project(x + 0.3 * (drawn(shape, dtype, 1) - 0.5), x).flatten(1)
    for share in (0.8, 0.3, 0.1, 0.02):
        u = drawn((layout.width,), torch.float32, int(1000 * share), b=len(sample))
        found, want = step.next(best, share, u, sample), step.select(sample)._next(best[sample], share, u)
        assert torch.equal(found, want) if norm == "linf" else torch.allclose(found, want, rtol=0, atol=_room(dtype))
        assert not torch.equal(found, best[sample])


def _room(dtype: torch.dtype) -> float:
    return 1e-5 if dtype == torch.float32 else 1e-12


def test_a_mask_holds_the_bump_back() -> None:
    """Without an order of its own a masked image keeps its frame: what may not change stays."""
    x = drawn((2, 6, 7), torch.float64, 0)
    mask = drawn((2, 6, 7), torch.float64, 3, b=1) > 0.4
    threat = Threat("l2", 0.5, mask=mask).check(x)
    step = step_for(x, threat, layout := layout_of(x))
    assert isinstance(step, Bump)
    best, u = x.flatten(1).clone(), drawn((layout.width,), torch.float32, 9)
    for share in (0.5, 0.2):
        found, want = step.next(best, share, u), step._next(best, share, u)
        assert torch.allclose(found, want, rtol=0, atol=1e-12)
        assert torch.equal(found[:, ~mask.flatten()], x.flatten(1)[:, ~mask.flatten()])
        best = found


def classifier(n: int, spoiled: bool) -> Callable[[Tensor], Tensor]:
    W = torch.randn(n, 4, generator=torch.Generator().manual_seed(2)).double()

    def f(x: Tensor) -> Tensor:
        logits = torch.tanh(((x.flatten(1).double() - 0.5)[:, :, None] * W).sum(1))
        if spoiled:  # every seventh direction or so gives no number
            logits = torch.where((x.flatten(1).sum(1, keepdim=True) * 50).sin() > 0.8, torch.nan, logits)
        return logits

    return f


@pytest.mark.parametrize("loss", ["margin", "ce"])
@pytest.mark.parametrize("spoiled", [False, True])
@pytest.mark.parametrize("shape", [(1, 6, 6), (12, 3)])
def test_the_whole_search_is_the_same(shape: tuple[int, ...], spoiled: bool, loss: Literal["margin", "ce"]) -> None:
    x = drawn(shape, torch.float32, 4, b=9)
    n = x[0].numel()
    y = classifier(n, False)(x).argmax(1)
    attack = Square(n_queries=60, loss=loss)

    def run() -> AttackResult:
        return attack(classifier(n, spoiled), x, y, Threat("linf", 0.05, bounds=(0.0, 1.0)))

    found = run()
    with use("torch"):
        want = run()
    for name in ("x_adv", "success", "loss", "margin", "queries", "non_finite"):
        assert torch.equal(getattr(found, name), getattr(want, name)), name
    assert bool(found.success.any())
    assert not bool(found.success.all())
    assert bool(found.non_finite.any()) == spoiled


def test_ranks_that_are_equal_give_different_channels() -> None:
    x = drawn((7, 4), torch.float64, 5, b=1)
    threat = Threat("linf", 0.1).check(x)
    step = step_for(x, threat, layout := layout_of(x))
    u = torch.full((1, layout.width), 0.25)
    moved = (step.next(x.flatten(1), 0.3, u) != x.flatten(1)).view(7, 4)
    channels, length = layout.extent(0.3, 1)
    assert int(moved.any(0).sum()) == channels
    assert int(moved.sum()) == channels * length


@pytest.mark.parametrize("kind", ["corner", "bump"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_compiled_steps_are_used(kind: str, dtype: torch.dtype) -> None:
    """A probe that fails would leave every query to torch, which takes twice as long."""
    assert find_compiled(torch.zeros(2, 9, dtype=dtype), kind) is not None
