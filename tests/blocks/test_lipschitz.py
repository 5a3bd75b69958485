"""Lipschitz scaffolds: constants that hold for any weights, approached by search and passed by none."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from helpers import assert_close
from resolvent.blocks import Gate, LipschitzResidual, Sandwich, SandwichMLP, Spectral, StatePool
from resolvent.blocks.certified.residual import SIGMAS, make_sigma
from resolvent.layers import L2RU

F64 = torch.float64
SCALES = (0.3, 10.0, 1e4)

MAPS: dict[str, Callable[[], nn.Module]] = {
    "spectral": lambda: Spectral(5, 3, largest=0.7, bias=True),
    "sandwich": lambda: Sandwich(5, 4),
    "narrow sandwich": lambda: Sandwich(5, 1),
    "mlp": lambda: SandwichMLP(5, (7, 6), 3, lipschitz=2.5),
    "linear mlp": lambda: SandwichMLP(5, (), 3),
    "gate": lambda: Gate(5, 4),
}
CLAIMS = {"spectral": 0.7, "mlp": 2.5}


def scrambled(module: nn.Module, scale: float, seed: int = 0) -> nn.Module:
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(scale * torch.randn(p.shape, generator=g))
    return module


def steepest(f: Callable[[Tensor], Tensor], x: Tensor, rounds: int = 6) -> float:
    """The norm of the Jacobian at the steepest point that power iteration and ascent over x find."""
    x = x.clone().requires_grad_()
    best, optimiser = 0.0, torch.optim.Adam([x], lr=0.1)
    for _ in range(rounds):
        J = torch.autograd.functional.jacobian(lambda u: f(u[None])[0].flatten(), x, create_graph=True)
        norm = torch.linalg.matrix_norm(J.flatten(1), 2)
        best = max(best, float(norm.detach()))
        if not norm.requires_grad:
            return best
        optimiser.zero_grad()
        (-norm).backward()
        optimiser.step()
    return best


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("scale", SCALES)
def test_maps_keep_their_constant(name: str, scale: float) -> None:
    module = scrambled(MAPS[name](), scale)
    claim = CLAIMS.get(name, 1.0)
    assert module.gain() <= claim
    wide = module.double()
    for seed in range(3):
        g = torch.Generator().manual_seed(seed)
        a, b = torch.randn(2, 200, 5, generator=g, dtype=F64) * 10 ** (seed - 1)
        assert ((wide(a) - wide(b)).norm(dim=-1) <= wide.gain() * (a - b).norm(dim=-1) * (1 + 1e-12)).all()
    assert steepest(wide, torch.randn(5, dtype=F64)) <= wide.gain() * (1 + 1e-9)


def test_constants_are_reached() -> None:
    """The search finds slopes close to the claim, so the claim is not an idle one."""
    torch.manual_seed(0)
    assert steepest(MAPS["spectral"]().double(), torch.zeros(5, dtype=F64), 1) > 0.95 * 0.7
    x = torch.randn(5, dtype=F64)
    assert steepest(Sandwich(5, 40).double(), x) > 0.8
    assert steepest(SandwichMLP(5, (60,), 5, lipschitz=2.5).double(), x) > 0.45 * 2.5


def test_sandwich_scale_stands_at_the_ends_only() -> None:
    """Four times the constant: input and output scaled by two each, however many layers there are."""
    torch.manual_seed(1)
    one = SandwichMLP(3, (4, 4, 4), 2).double()
    four = SandwichMLP(3, (4, 4, 4), 2, lipschitz=4.0).double()
    four.load_state_dict(one.state_dict())
    x = torch.randn(6, 3, dtype=F64)
    assert_close(four(x), 2 * one(2 * x))


def test_without_biases_zero_stays_zero() -> None:
    zero = torch.zeros(2, 5)
    for module in (Spectral(5, 3), Sandwich(5, 4, bias=False), SandwichMLP(5, (4,), 3, bias=False), Gate(5)):
        assert (scrambled(module, 1.0)(zero) == 0).all()


@pytest.mark.parametrize("sigma", SIGMAS)
@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_residual_block_is_1_lipschitz(sigma: str, scale: float) -> None:
    torch.manual_seed(0)
    layer = L2RU(3, 4, 0.8, trainable_gamma=True)
    block = LipschitzResidual(layer, sigma)  # type: ignore[arg-type]
    scrambled(block, scale)
    with torch.no_grad():
        layer.log_gamma.fill_(1.0)
    block.double()
    a, b = torch.randn(2, 100, 30, 3, dtype=F64)
    moved = (block(a)[0] - block(b)[0]).flatten(1).norm(dim=1)
    assert (moved <= (a - b).flatten(1).norm(dim=1)).all()
    assert steepest(lambda x: block(x)[0], torch.randn(5, 3, dtype=F64), 3) <= 1


def test_residual_block_streams() -> None:
    torch.manual_seed(0)
    block = LipschitzResidual(L2RU(3, 4), "gate").double()
    x = torch.randn(2, 9, 3, dtype=F64)
    y, end = block(x)
    state, outputs = None, []
    for x_t in x.unbind(1):
        y_t, state = block.step(x_t, state)
        outputs.append(y_t)
    assert_close((y, end), (torch.stack(outputs, 1), state))
    assert {id(p) for g in block.optim_groups() for p in g["params"]} == {id(p) for p in block.parameters()}


def test_unknown_sigma_is_refused() -> None:
    with pytest.raises(ValueError, match="gelu"):
        make_sigma("gelu", 3)  # type: ignore[arg-type]


@pytest.mark.parametrize(("l", "m"), [(1, 2), (5, 8), (8, 8), (23, 8)])
def test_state_pool_is_the_recurrence(l: int, m: int) -> None:
    """One product with powers = the recurrence step by step; padding left out; chunks continue."""
    torch.manual_seed(l)
    pool = scrambled(StatePool(3, m), 0.7).double()
    assert isinstance(pool, StatePool)
    x = torch.randn(2, l, 3, dtype=F64)
    A, b = pool.matrices()
    z = torch.zeros(2, 3, m, dtype=F64)
    for x_t in x.unbind(1):
        z = torch.einsum("dij,bdj->bdi", A, z) + b[..., 0] * x_t[..., None]
    assert_close(pool(x), z.flatten(1))
    state = pool.initial(2, x)
    half, state = pool.running(x[:, : l // 2 + 1], state)
    assert_close(half[:, -1], pool(x[:, : l // 2 + 1]))
    if l > 1:
        assert_close(pool.running(x[:, l // 2 + 1 :], state)[0][:, -1], pool(x))
    lengths = torch.tensor([l, 1])
    padded = x.clone()
    padded[1, 1:] = torch.nan
    assert_close(pool(padded, lengths), torch.cat([pool(x[:1]), pool(x[1:, :1])]))


def test_state_pool_starts_as_an_isometry_of_the_last_steps() -> None:
    pool = StatePool(2, 16).double()
    x = torch.randn(4, 16, 2, dtype=F64)
    assert_close(pool(x).norm(dim=1), x.flatten(1).norm(dim=1), tolerance=1e-4)  # each step is scaled by 1 - 2e-6
    assert pool.gain() == 1.0


@pytest.mark.parametrize("scale", SCALES)
def test_state_pool_stores_no_more_than_it_is_given(scale: float) -> None:
    pool = scrambled(StatePool(2, 6), scale)
    assert pool.gain() == 1.0
    x = torch.randn(50, 40, 2, dtype=F64)
    pool.double()
    assert (pool(x).norm(dim=1) <= x.flatten(1).norm(dim=1)).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Spectral(3, 2, largest=0.0), "largest"),
        (lambda: SandwichMLP(3, (4,), 2, lipschitz=-1.0), "lipschitz"),
        (lambda: StatePool(2, 5), "even"),
        (lambda: Gate(0), "d_in"),
        (lambda: Sandwich(3, 0), "d_out"),
    ],
)
def test_bad_settings_are_refused(make: Callable[[], nn.Module], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.slow
def test_absurd_training_keeps_every_constant() -> None:
    """100 steps of Adam at a rate of 3 that push two outputs apart."""
    torch.manual_seed(0)
    net = nn.ModuleList([Spectral(4, 6), StatePool(6, 4), SandwichMLP(24, (8, 8), 5)])

    def run(x: Tensor) -> Tensor:
        h = x
        for module in net:
            h = module(h)
        return h

    a, b = torch.randn(2, 32, 12, 4)
    optimiser = torch.optim.Adam(net.parameters(), lr=3.0)
    for _ in range(100):
        optimiser.zero_grad()
        (-(run(a) - run(b)).norm(dim=1).sum()).backward()
        optimiser.step()
    bound = math.prod(module.gain() for module in net)
    assert bound <= 1
    moved = (run(a) - run(b)).norm(dim=1) / (a - b).flatten(1).norm(dim=1)
    assert moved.max() <= bound
