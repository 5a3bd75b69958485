"""What S4, S4D, DSS and EMA must all keep: whole = chunks = steps = dense simulation, with first and second gradients.

The oracles step one by one; none of them uses blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from helpers import assert_close, random_cuts
from resolvent.layers.contract import Layer
from resolvent.layers.dss import DSS
from resolvent.layers.ema import EMA
from resolvent.layers.s4 import S4
from resolvent.layers.s4d import S4D
from resolvent.ops.blocked import operation as blocked

CASES: dict[str, Callable[..., Layer]] = {
    "S4D-legs": lambda **k: S4D(3, 8, **k),
    "S4D-lin-bilinear": lambda **k: S4D(3, 8, init="lin", discretisation="bilinear", **k),
    "S4D-real": lambda **k: S4D(3, 5, init="real", **k),
    "S4-legs": lambda **k: S4(3, 8, **k),
    "S4-legt": lambda **k: S4(3, 8, init="legt", rank=2, n_ssm=3, **k),
    "S4-zoh": lambda **k: S4(3, 8, discretisation="zoh", **k),
    "DSS-exp": lambda **k: DSS(3, 6, **k),
    "DSS-softmax": lambda **k: DSS(3, 6, kernel="softmax", length=200, **k),
    "EMA": lambda **k: EMA(3, 5, **k),
}
COMPILED = ("S4D-legs", "S4-legs", "DSS-softmax", "EMA")
case = pytest.mark.parametrize("make", CASES.values(), ids=CASES)
LENGTHS = (1, 2, 63, 64, 65, 112, 150)


@pytest.fixture
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of at most four steps: a short sequence then has several, and slow oracles stay quick."""
    monkeypatch.setattr(blocked, "BLOCK", 4)


def stepped(layer: Layer, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
    ys = []
    for t in range(x.shape[1]):
        y_t, state = layer.step(x[:, t], state)
        ys.append(y_t)
    return torch.stack(ys, 1), state


def double(make: Callable[..., Layer], **options: Any) -> Layer:
    return make(**options).double()


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


@case
@pytest.mark.parametrize("length", LENGTHS)
def test_whole_is_steps_is_dense_simulation(make: Callable[..., Layer], length: int) -> None:
    layer, x = double(make), noise(2, length, 3)
    y, state = layer(x)
    assert_close(y, layer.system().block_diagonal().simulate(x)[0].real)
    y_steps, state_steps = stepped(layer, x)
    assert_close(y, y_steps)
    assert_close(state, state_steps)


@case
def test_single_precision_is_close_to_double(make: Callable[..., Layer]) -> None:
    layer, x = make(), torch.randn(1, 150, 3)
    y, _ = layer(x)
    y_steps, _ = stepped(layer, x)
    exact, _ = layer.double()(x.double())
    assert_close(y, exact, dtype=torch.float32)
    assert_close(y_steps, exact, dtype=torch.float32)


@case
def test_random_chunks_from_a_random_state(make: Callable[..., Layer]) -> None:
    layer, x = double(make), noise(2, 190, 3)
    generator = torch.Generator().manual_seed(1)
    _, state = layer(noise(2, 7, 3))
    y, end = layer(x, state)
    for pieces in (2, 5):
        ys, carried = [], state
        for part in x.split(random_cuts(190, pieces, generator), 1):
            y_part, carried = layer(part, carried)
            ys.append(y_part)
        assert_close(torch.cat(ys, 1), y)
        assert_close(carried, end)


@case
@pytest.mark.parametrize("lengths", [(1, 64, 150), (65, 128, 2)])
def test_padding_equals_the_short_sequence(make: Callable[..., Layer], lengths: tuple[int, ...]) -> None:
    layer, x = double(make), noise(3, 150, 3)
    y, state = layer(x, lengths=torch.tensor(lengths))
    for i, n in enumerate(lengths):
        y_short, state_short = layer(x[i : i + 1, :n])
        assert_close(y[i : i + 1, :n], y_short)
        assert not y[i, n:].any()
        assert_close(_row(state, i), state_short)


@case
@pytest.mark.usefixtures("short_blocks")
@pytest.mark.parametrize("length", [3, 14])
def test_gradients_of_first_and_second_order(make: Callable[..., Layer], length: int) -> None:
    layer, x = double(make), noise(2, length, 3).requires_grad_()
    _, state = layer(noise(2, 5, 3))
    start = [t.detach().clone().requires_grad_(t.dtype != torch.int64) for t in _leaves(state)]
    inputs = [x, *(t for t in start if t.requires_grad), *layer.parameters()]
    results = []
    for run in (layer, lambda x, s: stepped(layer, x, s)):
        y, end = run(x, tuple(start) if isinstance(state, tuple) else start[0])
        loss = (y**2).sum() + _leaves(end)[0].abs().square().sum()
        first = torch.autograd.grad(loss, inputs, create_graph=True)
        again = torch.autograd.grad(sum((g.abs() ** 2).sum() for g in first), inputs, allow_unused=True)
        results.append((first, [g for g in again if g is not None]))
    for order in (0, 1):
        for got, want in zip(results[0][order], results[1][order], strict=True):
            # torch's matrix exponential has second derivatives that are good to 1e-9 only
            loose = 1e-8 if order == 1 and make is CASES["S4-zoh"] else None
            assert_close(got, want, gradient=True, tolerance=loose)


@case
@pytest.mark.usefixtures("short_blocks")
def test_gradients_at_lengths(make: Callable[..., Layer]) -> None:
    layer, x = double(make), noise(2, 14, 3).requires_grad_()
    inputs = [x, *layer.parameters()]
    y, state = layer(x, lengths=torch.tensor([6, 13]))
    got = torch.autograd.grad((y**2).sum() + _leaves(state)[0].abs().square().sum(), inputs)
    loss = torch.zeros((), dtype=torch.float64)
    for i, n in enumerate((6, 13)):
        y, state = stepped(layer, x[i : i + 1, :n])
        loss = loss + (y**2).sum() + _leaves(state)[0].abs().square().sum()
    for g, want in zip(got, torch.autograd.grad(loss, inputs), strict=True):
        assert_close(g, want, gradient=True)


@pytest.mark.parametrize("make", [CASES[n] for n in COMPILED], ids=COMPILED)
@pytest.mark.usefixtures("short_blocks")
def test_compiles_without_breaks(make: Callable[..., Layer]) -> None:
    torch._dynamo.reset()
    layer, x = double(make), noise(2, 10, 3).requires_grad_()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    y, want = compiled(x)[0], layer(x)[0]
    assert_close(y, want)
    for got, expected in zip(
        *(torch.autograd.grad((t**2).sum(), [x, *layer.parameters()]) for t in (y, want)), strict=True
    ):
        assert_close(got, expected, gradient=True)


@case
def test_vmap_and_jvp(make: Callable[..., Layer]) -> None:
    layer, x, tangent = double(make), noise(3, 70, 3), noise(3, 70, 3)
    y, _ = layer(x)
    mapped = torch.vmap(lambda one: layer(one[None])[0][0])(x)
    assert_close(mapped, y)
    _, dy = torch.func.jvp(lambda u: layer(u)[0], (x,), (tangent,))
    assert_close(dy, layer(tangent)[0])  # linear in x
    starts = torch.stack([_leaves(layer(noise(1, 4, 3))[1])[0].detach() for _ in range(2)])
    if isinstance(layer.initial_state(1), tuple):
        return
    over_states = torch.vmap(lambda h: layer(x[:1], h)[0])(starts)
    assert_close(over_states, torch.stack([layer(x[:1], h)[0] for h in starts]))


@case
def test_frozen_keeps_values_and_lets_input_gradients_alone_flow(make: Callable[..., Layer]) -> None:
    layer, x = double(make), noise(2, 70, 3).requires_grad_()
    y, _ = layer(x)
    (want,) = torch.autograd.grad((y**2).sum(), x)
    y_t, _ = layer.step(x[:, 0])
    with layer.frozen():
        for _ in range(2):
            y_frozen, _ = layer(x)
            (y_frozen**2).sum().backward()
            assert torch.equal(y_frozen, y)
            assert_close(x.grad, want, gradient=True)
            assert torch.equal(layer.step(x[:, 0])[0], y_t)
            x.grad = None
    assert all(p.grad is None and p.requires_grad for p in layer.parameters())


@case
def test_half_precision_input_is_accumulated_in_single(make: Callable[..., Layer]) -> None:
    layer, x = make(), torch.randn(2, 70, 3).bfloat16()
    y, _ = layer(x)
    assert y.dtype == torch.bfloat16
    assert_close(y.float(), layer(x.float())[0], dtype=torch.bfloat16)
    assert next(layer.bfloat16().parameters()).dtype == torch.float32


@case
def test_optimiser_groups_hold_every_parameter_once(make: Callable[..., Layer]) -> None:
    layer = make(bidirectional=True)
    groups = layer.optim_groups()
    held = [id(p) for g in groups for p in g["params"]]
    assert sorted(held) == sorted(id(p) for p in layer.parameters())
    torch.optim.AdamW(groups, lr=4e-3, weight_decay=0.05)


@case
def test_an_outer_initialisation_does_not_reach_in(make: Callable[..., Layer]) -> None:
    layer = make()
    before = {k: v.clone() for k, v in layer.state_dict().items()}

    def init(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding | nn.Conv1d):
            nn.init.normal_(module.weight)

    nn.Sequential(nn.Linear(3, 3), layer).apply(init)
    assert all(torch.equal(before[k], v) for k, v in layer.state_dict().items())


@case
@pytest.mark.parametrize("value", [-1e4, 1e4])
def test_extreme_parameters_stay_finite_and_stable(make: Callable[..., Layer], value: float) -> None:
    if make is CASES["S4-zoh"]:
        pytest.skip("the matrix exponential of S4's zoh option makes no promise for extreme dt A")
    x = torch.randn(2, 70, 3)
    for name, _ in make().named_parameters():
        layer = make()
        with torch.no_grad():
            dict(layer.named_parameters())[name].fill_(value)
        y, state = layer(x)
        assert torch.isfinite(y).all(), name
        assert torch.isfinite(_leaves(state)[0]).all(), name
        y.sum().backward()
        assert all(torch.isfinite(p.grad).all() for p in layer.parameters()), name
        A = layer.system().A
        if make is not CASES["DSS-softmax"]:  # whose Re(lam) is free by design
            assert torch.linalg.eigvals(A.dense().to(torch.complex128)).abs().max() < 1, name


@case
def test_wrong_inputs_are_refused(make: Callable[..., Layer]) -> None:
    layer, x = make(), torch.randn(2, 5, 3)
    _, state = layer(x)
    for bad, error in [
        (lambda: layer(x[0]), ValueError),
        (lambda: layer(x[..., :2]), ValueError),
        (lambda: layer(x.double()), TypeError),
        (lambda: layer(x, lengths=torch.tensor([0, 5])), ValueError),
        (lambda: layer(x[:1], state), ValueError),
        (lambda: layer.step(x), ValueError),
        (lambda: make(bidirectional=True).step(x[:, 0]), ValueError),
        (lambda: make(bidirectional=True).system(), ValueError),
    ]:
        with pytest.raises(error, match=type(layer).__name__):
            bad()


@pytest.mark.slow
@case
def test_a_hundred_thousand_steps_do_not_drift(make: Callable[..., Layer]) -> None:
    if make is CASES["DSS-softmax"]:
        pytest.skip("declared for 200 steps")
    layer, x = make(), torch.randn(1, 100_000, 3)
    with torch.no_grad(), layer.frozen():
        y, _ = stepped(layer, x)
    exact, _ = layer.double()(x.double())
    assert_close(y, exact, tolerance=1e-3)  # the bound promised for streaming


def _leaves(state: Any) -> tuple[Tensor, ...]:
    return state if isinstance(state, tuple) else (state,)


def _row(state: Any, i: int) -> Any:
    return tuple(t[i : i + 1] for t in state) if isinstance(state, tuple) else state[i : i + 1]
