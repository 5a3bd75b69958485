"""The short way through a step in frozen(): the same numbers, only where nobody watches, never from stale tables."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from torch import Tensor

from helpers import assert_close
from resolvent.layers import DSS, EMA, LRU, S4D, S5, S6, Layer, fast_step
from resolvent.scan import use

pytest.importorskip("numba", reason="the compiled steps are in the `cpu` extra")
CASES = [S4D(6, 14), S4D(6, 5, init="real"), DSS(6, 9), EMA(6, 4, silu=False), S5(6, 8), LRU(6, 3), S6(6, 9)]
named = pytest.mark.parametrize("layer", CASES, ids=lambda layer: type(layer).__name__)
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")


def start(layer: Layer, batch: int) -> tuple[Tensor, Tensor]:
    x = torch.randn(batch, 6, dtype=layer.dtype)
    with torch.no_grad():
        return x, layer(torch.randn(batch, 5, 6, dtype=layer.dtype))[1]


def long_way(layer: Layer, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """By plain torch operations: a gradient is asked for."""
    y, new = layer.step(x.clone().requires_grad_(), state)
    assert y.requires_grad
    return y.detach(), new.detach()


@named
@pytest.mark.parametrize("batch", [1, 3, 70])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_gives_the_numbers_of_the_long_way(layer: Layer, batch: int, dtype: torch.dtype) -> None:
    layer = copy.deepcopy(layer).to(dtype)
    x, state = start(layer, batch)
    kept = x.clone(), state.clone()
    with layer.frozen():
        taken = fast_step.try_step(layer, x, state)
        assert taken is not None
        assert_close(taken, long_way(layer, x, state), dtype=dtype)
        assert all(torch.equal(a, b) for a, b in zip(layer.step(x, state), taken, strict=True))
    assert torch.equal(x, kept[0])
    assert torch.equal(state, kept[1])


@named
def test_a_stream_equals_the_whole_sequence(layer: Layer) -> None:
    layer = copy.deepcopy(layer).double()
    x = torch.randn(2, 40, 6, dtype=torch.float64)
    with torch.no_grad(), layer.frozen():
        state, ys = layer.initial_state(2), []
        for x_t in x.unbind(1):
            y_t, state = layer.step(x_t, state)
            ys.append(y_t)
        want, end = layer(x)
    assert_close(torch.stack(ys, 1), want)
    assert_close(state, end)


@named
def test_memory_of_any_order(layer: Layer) -> None:
    x, state = start(layer, 4)
    with layer.frozen():
        want = layer.step(x, state)
        strided = torch.stack([x, x + 1], -1)[..., 0], torch.stack([state, state + 1], 1)[:, 0]
        odd = x.t().contiguous().t(), state.movedim(0, -1).contiguous().movedim(-1, 0)
        for given in (strided, odd, (x.expand(4, 6), state.conj().resolve_conj().conj())):
            assert fast_step.try_step(layer, *given) is not None
            assert_close(layer.step(*given), want, dtype=torch.float32)
        assert_close(layer.step(torch.complex(x, -x).conj().imag, state), want, dtype=torch.float32)


@named
def test_wrong_input_is_refused_as_always(layer: Layer) -> None:
    x, state = start(layer, 2)
    before = state.clone()
    bad = [(x[0], state), (x[:, :5], state), (x[:1], state), (x, state[:1]), (x.double(), state), (x, state[..., :1])]
    with layer.frozen():
        layer.step(x, state)
        for given in bad:
            with pytest.raises((ValueError, TypeError), match="expected"):
                layer.step(*given)
        with pytest.raises(TypeError, match="expected a tensor"):
            layer.step(x.tolist(), state)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="expected x on cpu"):
            layer.step(x.to("meta"), state)
    assert torch.equal(state, before)


@named
def test_no_numbers_that_are_not_finite_where_they_are_checked(layer: Layer) -> None:
    layer = copy.deepcopy(layer)
    x, state = start(layer, 2)
    with layer.frozen():
        layer.step(x, state)
        layer.check_finite = True
        with pytest.raises(ValueError, match="NaN"):
            layer.step(x * float("nan"), state)


@named
def test_whoever_watches_goes_the_long_way(layer: Layer) -> None:
    x, state = start(layer, 3)
    with layer.frozen():
        want = layer.step(x, state)
        for given in ((x.clone().requires_grad_(), state), (x, state.clone().requires_grad_())):
            assert fast_step.try_step(layer, *given) is None
            with torch.no_grad():
                assert fast_step.try_step(layer, *given) is not None
        seen: list[object] = []

        def step(u: Tensor) -> Tensor:
            seen.append(fast_step.try_step(layer, u, state))
            return layer.step(u, state)[0]

        tangent = torch.func.jvp(step, (x,), (torch.ones_like(x),))[1]
        if not isinstance(layer, S6):  # the others are linear in x
            assert_close(tangent, step(x + 1) - step(x), dtype=torch.float32, gradient=True)
        mapped = torch.func.vmap(lambda u, h: layer.step(u[None], h[None])[0][0])(x, state)
        assert seen[0] is None
        assert_close(mapped, want[0], dtype=torch.float32)
        with use("torch"):
            assert fast_step.try_step(layer, x, state) is None
            assert_close(layer.step(x, state), want, dtype=torch.float32)
        compiled = torch.compile(layer.step, fullgraph=True, backend="aot_eager")
        assert_close(compiled(x, state)[0], want[0], dtype=torch.float32)


@named
def test_other_modes_change_nothing(layer: Layer) -> None:
    x, state = start(layer, 2)
    with layer.frozen():
        want = layer.step(x, state)
        with torch.autocast("cpu", torch.bfloat16):
            found = layer.step(x, state)
        assert all(torch.equal(a, b) for a, b in zip(found, want, strict=True))
        half = layer.step(x.bfloat16(), state)[0]
        assert half.dtype == torch.bfloat16
        assert_close(half, want[0], dtype=torch.bfloat16)
    with torch.inference_mode(), layer.frozen():
        found = layer.step(x, state)
    assert_close(found, want, dtype=torch.float32)


# -- never stale -------------------------------------------------------------------------------------------------------


@named
def test_outside_of_frozen_every_change_shows_at_once(layer: Layer) -> None:
    layer = copy.deepcopy(layer)
    x, state = start(layer, 2)
    with layer.frozen():
        layer.step(x, state)
    with torch.no_grad():
        seen = [layer.step(x, state)[0]]
        for change in (_in_place, _by_data, _by_new_data, _by_optimiser, _by_loading):
            change(layer)
            seen.append(layer.step(x, state)[0])
            assert_close(seen[-1], long_way_of(layer, x, state), dtype=torch.float32)
            with layer.frozen():
                assert_close(layer.step(x, state)[0], seen[-1], dtype=torch.float32)
    assert all(not torch.equal(a, b) for a, b in itertools.pairwise(seen))


def long_way_of(layer: Layer, x: Tensor, state: Tensor) -> Tensor:
    with torch.enable_grad():
        return layer.step(x.clone().requires_grad_(), state)[0].detach()


def _in_place(layer: Layer) -> None:
    for p in layer.parameters():
        p.mul_(1.1)


def _by_data(layer: Layer) -> None:
    for p in layer.parameters():
        p.data.mul_(0.9)


def _by_new_data(layer: Layer) -> None:
    for p in layer.parameters():
        p.data = p.data * 1.05


def _by_optimiser(layer: Layer) -> None:
    for p in layer.parameters():
        p.grad = torch.ones_like(p)
    torch.optim.Adam(layer.parameters(), 0.01).step()


def _by_loading(layer: Layer) -> None:
    layer.load_state_dict({name: 0.95 * t for name, t in layer.state_dict().items()})


@named
def test_casts_and_copies_open_lanes_of_their_own(layer: Layer) -> None:
    layer = copy.deepcopy(layer)
    x, state = start(layer, 2)
    with torch.no_grad(), layer.frozen():
        y = layer.step(x, state)[0]
        layer.double()
        wide = torch.complex128 if state.is_complex() else torch.float64
        found = layer.step(x.double(), state.to(wide))[0]
        assert found.dtype == torch.float64
        assert_close(found, y, dtype=torch.float32)
        with pytest.raises(TypeError, match="expected"):
            layer.step(x, state)
    other = copy.deepcopy(layer)
    with torch.no_grad():
        for p in other.parameters():
            p.mul_(1.1)
        with layer.frozen(), other.frozen():
            mine, theirs = (m.step(x.double(), state.to(wide))[0] for m in (layer, other))
    assert_close(mine, found)
    assert not torch.allclose(mine, theirs)


@named
def test_tables_outlive_the_memory_of_a_parameter(layer: Layer) -> None:
    """Parameters must not change inside; one that is given new memory all the same must not leave a dead address."""
    layer = copy.deepcopy(layer)
    x, state = start(layer, 2)
    with torch.no_grad(), layer.frozen():
        want = layer.step(x, state)
        for p in layer.parameters():
            p.data = torch.full_like(p, float("nan"))
        clutter = [torch.full_like(p, float("inf")) for p in layer.parameters()]  # takes the place of what was freed
        found = layer.step(x, state)
    assert clutter
    assert all(torch.equal(a, b) for a, b in zip(found, want, strict=True))
