"""Responses of banks whose layers have no kernel of their own, on a GPU, against torch's operations in float64."""

from __future__ import annotations

import pytest
import torch

from helpers import assert_close, filters
from resolvent.layers import DSS
from resolvent.lowering.responses import impulse_responses
from resolvent.ssm import bank_response
from resolvent.ssm.impulse import impulse

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("length", [1, 100, 784, 1024])
def test_a_stack_of_softmax_layers(length: int) -> None:
    torch.manual_seed(0)
    layers = [DSS(8, kernel="softmax").cuda() for _ in range(2)]
    assert bank_response.serves(layers[0]._bank(length))
    made = impulse_responses([node for layer in layers for node in filters(layer)], length, half=True)
    for layer, K in zip(layers, made, strict=True):
        assert K.dtype == torch.float32
        want = impulse(layer._bank(length), length)
        assert_close(K, want, dtype=torch.float32)
        leaves, g = list(layer.parameters()), torch.randn_like(want)
        slopes = torch.autograd.grad(want, leaves, g, retain_graph=True)
        found = torch.autograd.grad(K, leaves, g.float(), retain_graph=True)
        assert_close(found, slopes, gradient=True)  # together: over one step that of log_dt is rounding alone
