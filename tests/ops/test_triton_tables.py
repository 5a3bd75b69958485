"""The kernels that make the tables of S5 and LRU, interpreted on the CPU, against their formulas in float64."""

from __future__ import annotations

import pytest
import torch
import triton_interpreter  # noqa: F401
from torch import Tensor

from resolvent.layers import LRU, S5, lru, s5
from resolvent.layers.mimo import TableMaker
from resolvent.ops.modes import mimo_triton

CASES = {
    "zoh": (s5.TABLES, "zoh clip 2.0"),
    "free": (s5.TABLES, "zoh 1.0"),
    "bilinear": (s5.TABLES, "bilinear clip 1.0"),
    "lru": (lru.TABLES, " 1.0"),
}


def _parameters(maker: TableMaker, d: int = 5) -> list[Tensor]:
    torch.manual_seed(0)
    if maker is s5.TABLES:
        own = S5(d, 10)
        return [p.detach().clone() for p in (own.lam, own.log_step, own.B, own.C)]
    layer = LRU(d, 5)
    return [p.detach().clone() for p in (layer.nu_log, layer.theta_log, layer.gamma_log, layer.B, layer.C)]


def _truth(maker: TableMaker, given: list[Tensor], option: str, g: list[Tensor | None]) -> tuple[list[Tensor], ...]:
    own = [p.double().requires_grad_() for p in given]
    made = maker._flatten(own, option, 0, False)
    asked = [(t, w.double()) for t, w in zip(made, g, strict=True) if w is not None]
    slopes = torch.autograd.grad([t for t, _ in asked], own, [w for _, w in asked], allow_unused=True)
    return made, [torch.zeros_like(p) if t is None else t for t, p in zip(slopes, own, strict=True)]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("asked", [(0, 1, 2), (1,), (0, 2)])
@pytest.mark.parametrize("d", [1, 300])
def test_tables_and_gradients_are_those_of_float64(case: str, asked: tuple[int, ...], d: int) -> None:
    maker, option = CASES[case]
    given = _parameters(maker, d)
    if case == "zoh":  # short steps, long ones, and a parameter that is held
        given[1][:4] = torch.tensor([-9.0, 1.0, 5.0, -5.0])
        given[0][4, 0] = 1.0
    if case == "lru":
        given[0][0], given[2][1] = 21.0, 21.0
    made = mimo_triton.tables(given, option)
    g = [torch.randn_like(t) if i in asked else None for i, t in enumerate(made)]
    want, slopes = _truth(maker, given, option, g)
    for x, y in zip((*made, *mimo_triton.slopes(given, g, option)), (*want, *slopes), strict=True):
        assert x.shape == y.shape
        assert (x - y).norm() <= 1e-6 * y.norm()


@pytest.mark.parametrize("case", ["zoh", "lru"])
def test_moduli_stay_below_one(case: str) -> None:
    """As the formulas in float32 hold them: there, a slope is that of the direction alone."""
    maker, option = CASES[case]
    given = _parameters(maker)
    if case == "zoh":
        given[0][:, 0], given[1][:] = 0.0, -9.0
    else:
        given[0][:] = -30.0
    made = mimo_triton.tables(given, option)
    assert bool((made[0].double().norm(dim=-1) < 1).all())
    g: list[Tensor | None] = [torch.randn_like(t) for t in made]
    own = [p.requires_grad_() for p in given]
    want = torch.autograd.grad(maker._flatten(own, option, 0, False), own, g)
    for x, y in zip(mimo_triton.slopes(given, g, option), want, strict=True):
        assert (x - y).norm() <= 1e-4 * y.norm() + 1e-9


@pytest.mark.parametrize("case", CASES)
def test_what_is_no_number_is_seen(case: str) -> None:
    maker, option = CASES[case]
    for i in range(len(_parameters(maker)) - 1):
        given = _parameters(maker)
        given[i].view(-1)[0] = torch.nan
        assert any(bool(t.isnan().any()) for t in mimo_triton.tables(given, option)), i


@pytest.mark.parametrize("maker", [s5.TABLES, lru.TABLES], ids=["s5", "lru"])
def test_a_probe_tells_right_kernels_from_wrong_ones(maker: TableMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    here, right = torch.device("cpu"), mimo_triton.slopes
    assert maker.opaque.agrees(mimo_triton, here, torch.float32)
    monkeypatch.setattr(mimo_triton, "slopes", lambda *given: [1.01 * t for t in right(*given)])
    assert not maker.opaque.agrees(mimo_triton, here, torch.float32)


@pytest.mark.parametrize("case", CASES)
def test_gradients_of_gradients_under_autograd(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    maker, option = CASES[case]
    monkeypatch.setattr(maker.opaque, "kernels", lambda like, option: mimo_triton)

    def slopes(dtype: torch.dtype) -> list[Tensor]:
        own = [p.to(dtype).requires_grad_() for p in _parameters(maker)]
        quick = dtype == torch.float32
        made = maker.opaque.tables(own, option, 0, False) if quick else maker._flatten(own, option, 0, False)
        first = torch.autograd.grad(sum((t + t.square()).sum() for t in made), own, create_graph=True)
        return [*first, *torch.autograd.grad(sum(t.square().sum() for t in first), own)]

    for x, y in zip(slopes(torch.float32), slopes(torch.float64), strict=True):
        assert (x - y).norm() <= 1e-4 * y.norm()


def test_parameters_that_are_held_have_no_slope() -> None:
    for case, held in (
        ("zoh", (1, 31.0)),
        ("zoh", (1, -41.0)),
        ("lru", (0, 21.0)),
        ("lru", (1, 21.0)),
        ("lru", (2, 21.0)),
    ):
        maker, option = CASES[case]
        given = _parameters(maker)
        given[held[0]].fill_(held[1])
        found = mimo_triton.slopes(given, [torch.ones_like(t) for t in mimo_triton.tables(given, option)], option)
        assert not found[held[0]].any()
        assert all(bool(t.isfinite().all()) for t in found)
