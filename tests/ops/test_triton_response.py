"""The kernels that make the response of any bank of modes, interpreted on the CPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton_interpreter  # noqa: F401
from torch import Tensor

from helpers import filters
from resolvent.layers import DSS
from resolvent.lowering import responses
from resolvent.ops.blocked.tables import DiagonalBank
from resolvent.ops.modes import bank_response_triton as kernels
from resolvent.ssm import bank_response
from resolvent.ssm.impulse import impulse

HERE = torch.device("cpu")


def _bank(d: int, n: int, length: int, growth: float) -> DiagonalBank:
    """Modes that decay, and some that grow by e^growth over the length, fed in as small as they become large."""
    torch.manual_seed(0)
    rate = torch.rand(d, n, dtype=torch.float64)
    z = torch.complex(torch.where(rate > 0.6, growth / length, -rate), 40 * torch.randn(d, n, dtype=torch.float64))
    gain = torch.where(z.real > 0, (z * (1 - length)).exp(), 1)
    return DiagonalBank(z.exp(), torch.randn(d, n, dtype=torch.complex128), torch.randn(d).double(), gain)


@pytest.mark.parametrize(
    ("d", "n", "length", "growth"),
    [(1, 1, 1, 0.0), (3, 5, 7, 80.0), (2, 16, 64, 3.0), (2, 17, 131, 80.0), (1, 3, 300, -2.0)],
)
def test_values_and_gradients_are_those_of_float64(d: int, n: int, length: int, growth: float) -> None:
    bank = _bank(d, n, length, growth)
    own: list[Any] = [t.detach().requires_grad_() for t in (bank.lam, bank.weight, bank.D, bank.gain)]
    again = DiagonalBank(*own)
    want, got = impulse(again, length), bank_response.make_response(again, length)
    assert got.dtype == torch.float32
    assert (got - want).norm() <= 1e-6 * want.norm()
    g = torch.randn_like(want)
    wanted = torch.autograd.grad(want, own, g, materialize_grads=True)
    found = torch.autograd.grad(got, own, g.float(), materialize_grads=True)
    for slope, truth in zip(found, wanted, strict=True):
        assert (slope - truth).norm() <= 1e-5 * truth.norm()
    assert bank_response.agrees(kernels, HERE, length)


def test_the_probe_tells_right_kernels_from_wrong_ones() -> None:
    def late(*given: Any) -> Tensor:
        return kernels.response(*given).roll(1)

    wrong = SimpleNamespace(response=late, response_gradients=kernels.response_gradients)
    half = SimpleNamespace(response=kernels.response, response_gradients=lambda *t: (t[0], t[1]))
    assert not bank_response.agrees(wrong, HERE, 40)
    assert not bank_response.agrees(half, HERE, 40)


def test_a_mode_that_is_gone_at_once_leaves_its_first_number() -> None:
    bank = DiagonalBank(torch.zeros(1, 1).to(torch.complex128), torch.ones(1, 1).to(torch.complex128))
    torch.testing.assert_close(bank_response.make_response(bank, 4), torch.tensor([[1.0, 0, 0, 0]]), rtol=0, atol=1e-7)


def test_gradients_of_gradients() -> None:
    bank = _bank(2, 3, 9, 4.0)
    own = bank.weight.detach().requires_grad_()
    found = []
    for make in (bank_response.make_response, impulse):
        K: Any = make(DiagonalBank(bank.lam, own, bank.D, bank.gain), 9)
        (slope,) = torch.autograd.grad(K.square().sum(), own, create_graph=True)
        found.append(torch.autograd.grad(slope.abs().square().sum(), own)[0])
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)


def test_a_stack_of_softmax_layers_takes_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, in half precision; in float32 the truth."""
    torch.manual_seed(0)
    layers = [DSS(3, 4, kernel="softmax") for _ in range(2)]
    nodes = [node for layer in layers for node in filters(layer)]
    monkeypatch.setattr(responses, "_can_batch", lambda layers: True)
    want = responses.impulse_responses(nodes, 33, half=True)
    monkeypatch.setattr(bank_response, "serves", lambda bank: True)
    got = responses.impulse_responses(nodes, 33, half=True)
    for layer, K, truth in zip(layers, got, want, strict=True):
        assert K.dtype == torch.float32
        assert (K - truth).norm() <= 1e-6 * truth.norm()
        leaves = [p for name, p in layer.named_parameters() if p.requires_grad]
        slopes = [torch.autograd.grad(t.square().sum(), leaves, retain_graph=True) for t in (K, truth)]
        for found, wanted in zip(*slopes, strict=True):
            assert (found - wanted).norm() <= 1e-5 * wanted.norm()
    assert responses.impulse_responses(nodes, 33)[0].dtype == torch.float64
