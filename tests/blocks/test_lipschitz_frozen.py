"""Lipschitz scaffolds inside frozen(): the same values, every table once, gradients to the input alone."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from helpers import assert_close
from resolvent.blocks import Gate, LipschitzResidual, Sandwich, SandwichMLP, Spectral, StatePool
from resolvent.blocks.certified import gate as gate_module
from resolvent.blocks.certified import sandwich as sandwich_module
from resolvent.blocks.certified import spectral as spectral_module
from resolvent.blocks.certified import state_pool as pool_module
from resolvent.layers import L2RU
from resolvent.layers.contract import frozen
from resolvent.models import build_model, presets

# the module, and the function that makes its tables with how often one pass calls it
CASES: dict[str, tuple[Callable[[], nn.Module], object, str, int]] = {
    "spectral": (lambda: Spectral(5, 3, bias=True), spectral_module, "cap_norm", 1),
    "sandwich": (lambda: Sandwich(5, 4), sandwich_module, "cayley_rows", 1),
    "mlp": (lambda: SandwichMLP(5, (7, 6), 3), sandwich_module, "cayley_rows", 3),
    "gate": (lambda: Gate(5, 4), gate_module, "norm_bound", 2),
    "pool": (lambda: StatePool(5, 4), pool_module, "cayley_rows", 1),
}


def counting(monkeypatch: pytest.MonkeyPatch, home: object, name: str) -> list[int]:
    calls, real = [0], getattr(home, name)

    def counted(*args: Tensor) -> object:
        calls[0] += 1
        return real(*args)

    monkeypatch.setattr(home, name, counted)
    return calls


@pytest.mark.parametrize("name", CASES)
def test_tables_are_made_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, home, function, each = CASES[name]
    torch.manual_seed(0)
    module, x = make(), torch.randn(3, 9, 5)
    open_value = module(x)
    calls = counting(monkeypatch, home, function)
    with frozen(module):
        with torch.inference_mode():
            module(x)
        for _ in range(3):
            x_in = x.clone().requires_grad_()
            value = module(x_in)
            (gradient,) = torch.autograd.grad(value.sum(), x_in)
        assert calls[0] == each
        assert not any(p.requires_grad for p in module.parameters())
    assert torch.equal(value, open_value)
    x_in = x.clone().requires_grad_()
    assert_close(gradient, torch.autograd.grad(module(x_in).sum(), x_in)[0])
    assert calls[0] == 2 * each
    assert all(p.requires_grad for p in module.parameters())


@pytest.mark.parametrize("name", CASES)
def test_a_step_of_training_between_two_contexts_is_seen(name: str) -> None:
    make, *_ = CASES[name]
    torch.manual_seed(0)
    module, x = make(), torch.randn(3, 9, 5)
    with frozen(module):
        before = module(x)
    module(x).square().sum().backward()
    torch.optim.SGD(module.parameters(), lr=0.1).step()
    with frozen(module):
        after = module(x)
        module.double()
        assert_close(module(x.double()).float(), after)
        with pytest.raises(RuntimeError, match="Leave the frozen"):
            copy.deepcopy(module)
        with pytest.raises(RuntimeError, match="weights were loaded inside"):
            module.load_state_dict(module.state_dict())
    assert not torch.allclose(before, after)


def test_lengths_have_powers_of_their_own() -> None:
    pool = StatePool(2, 4)
    x = torch.randn(3, 7, 2)
    expected = [pool(x[:, :l]) for l in (3, 7, 5)]
    with frozen(pool):
        assert all(torch.equal(pool(x[:, :l]), y) for l, y in zip((3, 7, 5), expected, strict=True))


def test_a_whole_certified_model(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = build_model(presets.l2ru_classifier(2, 4, d_model=3, hidden=8, memory=6)).eval()
    x = torch.randn(4, 9, 2)
    expected = model(x)
    homes = ((spectral_module, "cap_norm"), (sandwich_module, "cayley_rows"), (pool_module, "cayley_rows"))
    calls = [counting(monkeypatch, home, name) for home, name in homes]
    with model.frozen():
        for _ in range(4):
            found = model(x)
    assert torch.equal(found, expected)
    assert [c[0] for c in calls] == [2, 3, 1]  # encoder and decoder; two blocks and the hidden layer; the pool


def test_the_share_of_a_residual_block_follows_its_gamma() -> None:
    block = LipschitzResidual(L2RU(3, 4, 0.5, trainable_gamma=True), "relu")
    with frozen(block):
        first = block.share()
        assert block.share() is first
    with torch.no_grad():
        block.layer.log_gamma.fill_(1.0)
    with frozen(block):
        assert float(block.share()) < float(first)
