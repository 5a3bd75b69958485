"""Recorded passes of layers on a GPU: the numbers of the passes themselves, in loops as people write them."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import resolvent as rv
from resolvent.layers.recorded import known, without_recording
from resolvent.layers.recorded.known import PATIENCE
from resolvent.ops.step import recorded as step
from resolvent.runtime.graph.watched import is_watched

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
LAYERS: dict[str, Callable[[int], nn.Module]] = {
    "S4D": rv.S4D, "DSS": rv.DSS, "EMA": rv.EMA, "S4": rv.S4, "S5": rv.S5, "LRU": rv.LRU, "S6": rv.S6,
    "RGLRU": rv.RGLRU, "L2RU": rv.L2RU, "Mamba": rv.Mamba, "S4D both ways": lambda d: rv.S4D(d, bidirectional=True),
}  # fmt: skip
CLOSE = 1e-4  # of kernels that add up in another order


def _train(layer: nn.Module, half: bool, lengths: Tensor | None, steps: int = PATIENCE + 3) -> list[Tensor]:
    """Values and all gradients of some steps; the loss of the last step stays alive, as in most loops."""
    torch.manual_seed(1)
    found, loss = [], None
    for _ in range(steps):
        x = torch.randn(4, 300, 32, device="cuda", requires_grad=True)
        with torch.autocast("cuda", torch.bfloat16, enabled=half):
            y = layer(x, lengths=lengths)[0]
            loss = (y.float() * y.float().cos()).sum()
        loss.backward()
        slopes = x.grad, *(p.grad for p in layer.parameters())
        found += [t.detach().clone() for t in (y, *slopes) if t is not None]  # compiled, they may be overwritten
        layer.zero_grad(set_to_none=True)
    return found


def _count(layer: nn.Module) -> int:
    own = known._known.get(layer)
    return 0 if own is None else sum(len(kind.recordings) for kind in own.kinds.values())


def _explain(layer: nn.Module, x: Tensor) -> str:
    """Why there is no recording: whether calls are watched, and what is known of the layer."""
    own = known._known.get(layer)
    kinds = [] if own is None else [vars(kind) for kind in own.kinds.values()]
    finite = [bool(t.isfinite().all()) for t in (x, *layer.parameters())]
    return f"watched: {is_watched(x, None)}; finite: {finite}; off: {own and own.is_off}; kinds: {kinds}"


def _far(found: Tensor, want: Tensor) -> float:
    return float((found.double() - want.double()).norm() / want.double().norm().clamp_min(1e-30))


@pytest.mark.parametrize("lengths", [None, [300, 17, 100, 256]], ids=["whole", "padded"])
@pytest.mark.parametrize("half", [True, False], ids=["bf16", "float32"])
@pytest.mark.parametrize("name", LAYERS)
def test_a_recorded_pass_has_the_numbers_of_the_pass(name: str, half: bool, lengths: Any) -> None:
    torch.manual_seed(0)
    layer = LAYERS[name](32).cuda()
    own = None if lengths is None else torch.tensor(lengths, device="cuda")
    with without_recording():
        want = _train(layer, half, own)
    found = _train(layer, half, own)
    assert _count(layer) == 1
    assert max(map(_far, found, want)) < (2e-2 if half else CLOSE)


class Around(nn.Module):
    """As people put a layer into modules of their own."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.norm, self.layer, self.out = nn.LayerNorm(32), layer, nn.Linear(32, 32)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> tuple[Tensor]:
        y = self.layer(self.norm(x), lengths=lengths)[0]
        return (x + self.out(nn.functional.gelu(y)),)


@pytest.mark.parametrize("way", ["alone", "around", "reduce-overhead"])
@pytest.mark.parametrize("half", [True, False], ids=["bf16", "float32"])
@pytest.mark.parametrize("name", LAYERS)
def test_a_compiled_pass_is_the_recorded_one(name: str, half: bool, way: str) -> None:
    """`alone`, the state is returned: its gradients, which are zero, are recorded too."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    layer = LAYERS[name](32).cuda()
    model = layer if way == "alone" else Around(layer).cuda()
    steps = 2 * PATIENCE + 4
    with without_recording():
        want = _train(model, half, None, steps)
    fast: Any = torch.compile(model, fullgraph=True, mode=way if way == "reduce-overhead" else None)
    found = _train(fast, half, None, steps)
    assert _count(layer) == 1
    assert max(map(_far, found, want)) < (2e-2 if half else CLOSE)


@pytest.mark.parametrize("name", ["S4D", "S5", "S6", "Mamba"])
def test_one_compiled_graph_serves_all_lengths_and_equal_layers(name: str) -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()
    blocks = [Around(LAYERS[name](32)).cuda() for _ in range(10)]
    for block in blocks:
        block.compile(fullgraph=True)
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):  # of eight graphs
        for length in (300, 77, 64, 129):
            found = []
            for own in (nn.Module.__call__, lambda block, x: block.forward(x)):
                x = torch.linspace(-1e3, 1e3, 2 * length * 32, device="cuda").view(2, length, 32).sin()
                x.requires_grad_()  # channels apart from one another: a norm of equal ones is all rounding
                y = x
                for block in blocks:
                    (y,) = own(block, y)
                found.append(torch.autograd.grad(y.square().mean(), x)[0])
            assert _far(*found) < CLOSE


@pytest.mark.parametrize("name", LAYERS)
def test_what_a_recording_cannot_give_is_run(name: str) -> None:
    """A second way back, two passes at once, the gradient of a state, second derivatives; and nothing is kept alive."""
    torch.manual_seed(0)
    layer = LAYERS[name](32).cuda()
    x = torch.randn(2, 200, 32, device="cuda", requires_grad=True)
    for _ in range(PATIENCE + 1):
        layer(x)[0].sum().backward()
    assert _count(layer) == 1, _explain(layer, x)
    y, state = layer(x)
    with without_recording():
        right, end = layer(x)
    want = torch.autograd.grad(right.square().sum(), x, retain_graph=True)[0]
    for _ in range(2):
        assert _far(torch.autograd.grad(y.square().sum(), x, retain_graph=True)[0], want) < CLOSE
    others = layer(x)[0], layer(2 * x)[0]
    with without_recording():
        apart = layer(x)[0], layer(2 * x)[0]
    slopes = [torch.autograd.grad(a.square().sum() + b.square().sum(), x)[0] for a, b in (others, apart)]
    assert _far(*slopes) < CLOSE
    if state is not None:
        ends = [torch.autograd.grad(_one(t).abs().sum(), x, retain_graph=True)[0] for t in (state, end)]
        assert _far(*ends) < CLOSE
    twice = []
    for value in (y, right):
        slope = torch.autograd.grad(value.square().sum(), x, create_graph=True)[0]
        twice.append(torch.autograd.grad(slope.square().sum(), x)[0])
    assert _far(*twice) < CLOSE
    known = weakref.ref(layer)
    del layer, y, state, right, end, others, apart, value
    gc.collect()
    assert known() is None


def _one(state: Any) -> Tensor:
    while not isinstance(state, Tensor):
        state = next(iter(state.values())) if isinstance(state, dict) else state[0]
    return state


def test_steps_of_an_optimiser_are_seen() -> None:
    torch.manual_seed(0)
    layer = rv.S4D(16).cuda()
    optimiser = torch.optim.AdamW(layer.parameters(), lr=1e-2, fused=True)
    x = torch.randn(3, 128, 16, device="cuda")
    for _ in range(PATIENCE + 4):
        loss = layer(x)[0].square().mean()
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
    assert _count(layer) == 1
    with without_recording():
        want = layer(x)[0]
    assert _far(layer(x)[0], want) < CLOSE


def test_random_numbers_stay_the_users() -> None:
    layer = rv.LRU(16).cuda()

    def draw() -> Tensor:
        torch.manual_seed(5)
        for _ in range(PATIENCE + 2):
            layer(torch.randn(2, 50, 16, device="cuda"))[0].sum().backward()
        return torch.randn(4, device="cuda")

    with without_recording():
        want = draw()
    assert torch.equal(draw(), want)


def test_what_cannot_be_captured_leaves_no_trace() -> None:
    """Neither a layer's pass nor a step: the stream, random numbers and other layers' recordings are as before."""
    torch.manual_seed(0)
    form = rv.L2RU(8, form="dense").cuda()
    for _ in range(PATIENCE + 2):
        form(torch.randn(2, 100, 8, device="cuda", requires_grad=True))[0].sum().backward()
    assert _count(form) == 0

    def reads(x: Tensor, _: object) -> tuple[Tensor, Tensor]:
        return x * float(x.sum()), x

    x, tables = torch.randn(2, 8, device="cuda"), dict[str, object]()
    with torch.no_grad():
        assert [step.replay(tables, reads, x, x) for _ in range(3)] == [None] * 3
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    assert torch.randn(3, device="cuda").isfinite().all()
    layer = rv.S4D(32).cuda()
    _train(layer, False, None)
    assert _count(layer) == 1
