"""frozen(): nested, overlapping, interrupted, copied, under other modes."""

from __future__ import annotations

import copy

import pytest
import torch

from resolvent.layers import DSS, LRU, RGLRU, S4D, S5, S6, Attention, Layer, ScalarS6, ShortConv

CASES = [S4D(8, 8), DSS(8, 4), S5(8, 8), LRU(8, 4), S6(8, 4), RGLRU(8)]
STEPPERS = [*CASES, ScalarS6(8, 4, abscissa=-0.1), Attention(8), ShortConv(8)]


def named(layer: Layer) -> str:
    return type(layer).__name__


@pytest.mark.parametrize("layer", CASES, ids=named)
def test_overlapping_contexts_thaw_with_the_last(layer: Layer) -> None:
    x = torch.randn(2, 9, 8)
    first, second = layer.frozen(), layer.frozen()
    first.__enter__()
    second.__enter__()
    layer(x)
    first.__exit__(None, None, None)
    assert not any(p.requires_grad for p in layer.parameters())
    second.__exit__(None, None, None)
    assert layer._tables is None
    assert all(p.requires_grad for p in layer.parameters())


def test_parameters_that_were_fixed_stay_fixed() -> None:
    layer = S4D(4, 8)
    layer.D.requires_grad_(False)
    with layer.frozen(), layer.frozen():
        pass
    assert not layer.D.requires_grad
    assert layer.C.requires_grad


def test_an_error_on_the_way_in_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = S4D(4, 8)
    monkeypatch.setattr(layer, "_derive_all", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError), layer.frozen():
        pass
    assert layer._tables is None
    assert all(p.requires_grad for p in layer.parameters())


@pytest.mark.parametrize("layer", CASES, ids=named)
def test_predict_in_inference_mode_then_attack(layer: Layer) -> None:
    x = torch.randn(2, 9, 8)
    with layer.frozen():
        with torch.inference_mode():
            layer(x)
        (gradient,) = torch.autograd.grad(layer(x.requires_grad_())[0].sum(), x)
    assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("layer", CASES, ids=named)
def test_a_cast_inside_makes_new_tables(layer: Layer) -> None:
    layer, x = copy.deepcopy(layer), torch.randn(2, 9, 8, dtype=torch.float64)
    with layer.frozen():
        layer(x.float())
        layer.double()
        found = layer(x)[0]
    assert torch.allclose(found, layer(x)[0], rtol=1e-12, atol=1e-12)


def test_copies_are_refused_inside() -> None:
    layer = S4D(4, 8)
    with layer.frozen(), pytest.raises(RuntimeError, match="Leave the frozen"):
        copy.deepcopy(layer)
    assert copy.deepcopy(layer).C.requires_grad


@pytest.mark.parametrize("layer", STEPPERS, ids=named)
def test_autocast_leaves_steps_alone(layer: Layer) -> None:
    x = torch.randn(2, 5, 8)
    with torch.no_grad():
        plain, state = layer.step(x[:, 0])
        plain, _ = layer.step(x[:, 1], state)
        with torch.autocast("cpu", torch.bfloat16):
            cast, state = layer.step(x[:, 0])
            cast, _ = layer.step(x[:, 1], state)
    assert torch.equal(cast, plain)


@pytest.mark.parametrize("layer", CASES, ids=named)
def test_a_compiled_call_takes_an_eager_state(layer: Layer) -> None:
    x = torch.randn(2, 9, 8)
    _, state = layer(x)
    want = layer(x, state)[0]
    found = torch.compile(layer, fullgraph=True, backend="aot_eager")(x, state)[0]
    assert torch.allclose(found, want, rtol=1e-5, atol=1e-6)


def test_lengths_on_another_device_are_refused() -> None:
    with pytest.raises(ValueError, match=r"use lengths\.to"):
        S4D(4, 8)(torch.randn(2, 5, 4), lengths=torch.tensor([3, 3], device="meta"))


def test_finite_is_asked_of_what_is_not_padding() -> None:
    layer, x = S4D(4, 8, check_finite=True), torch.randn(2, 5, 4)
    x[0, 3:] = float("nan")
    layer(x, lengths=torch.tensor([3, 5]))
    with pytest.raises(ValueError, match=r"at \(0, 3, 0\)"):
        layer(x, lengths=torch.tensor([4, 5]))
