"""Compiled passes of layers, one node each way, whose bodies are recordings (a stand-in for CUDA graphs)."""

from __future__ import annotations

import copy
import gc
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from loops import LOOPS, draw, loss_of, sum_of
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func

import resolvent as rv
from graph_stand_in import StandIn
from helpers import assert_close
from resolvent.layers.recorded import known, recording, without_recording
from resolvent.layers.recorded.known import PATIENCE
from resolvent.ops import kept

F64 = torch.float64
LAYERS: dict[str, Callable[[], nn.Module]] = {
    "S4D": lambda: rv.S4D(4, 6), "DSS": lambda: rv.DSS(4, 3, kernel="softmax", length=21), "S5": lambda: rv.S5(4, 6),
    "S6": lambda: rv.S6(4, 3), "RGLRU": lambda: rv.RGLRU(4), "L2RU": lambda: rv.L2RU(4),
    "Mamba": lambda: rv.Mamba(4, 3),
    "both": lambda: rv.S5(4, 6, bidirectional=True), "block": lambda: rv.blocks.Residual(rv.blocks.Hawk(4)),
}  # fmt: skip
WAYS = (
    "two_passes_before_one_way_back", "the_same_layer_twice", "retain_graph", "adversaries", "optimiser",
    "optimiser_that_replaces_data", "data_replaced_before_the_way_back", "hooks_on_tensors", "part_of_the_parameters",
    "asked_for_some", "requires_grad_changed_before_the_way_back", "y_edited_after_the_call",
)  # fmt: skip
STEPS = 2 * PATIENCE + 4  # of which some wait, one tells that states have gradients, too, and some are replayed


@pytest.fixture(autouse=True)
def fresh(graphs: type[StandIn]) -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Traced:
    """A backend that runs what it is given, and counts the graphs and their nodes of ours."""

    def __init__(self) -> None:
        self.graphs, self.nodes = 0, list[str]()

    def __call__(self, graph: Any, inputs: Any) -> Any:
        self.graphs += 1
        self.nodes += [str(node.target) for node in graph.graph.nodes if "resolvent" in str(node.target)]
        return aot_autograd(fw_compiler=lambda own, _: make_boxed_func(own))(graph, inputs)


def _train(run: Any, layer: nn.Module, lengths: Tensor | None = None) -> list[Any]:
    """Values, states and gradients of some steps."""
    torch.manual_seed(1)
    found: list[Any] = []
    for k in range(STEPS):
        x = draw(3, 21, 4)
        y, state = run(x, lengths=lengths)
        value = loss_of(y) if state is None or k % 2 else loss_of(y) + sum_of(state)
        found += [y.detach(), *torch.autograd.grad(value, [x, *layer.parameters()], allow_unused=True)]
    return found


@pytest.mark.parametrize("lengths", [None, torch.tensor([21, 4, 13])], ids=["whole", "padded"])
@pytest.mark.parametrize("name", LAYERS)
def test_a_compiled_pass_is_one_node_with_the_numbers_of_the_pass(name: str, lengths: Any) -> None:
    torch.manual_seed(0)
    layer = LAYERS[name]().double()
    with without_recording():
        want = _train(layer, layer, lengths)
    traced = Traced()
    found = _train(torch.compile(layer, backend=traced, fullgraph=True), layer, lengths)
    assert StandIn.made == (2 if name == "both" else 4)  # there and back, and once more with the state's gradients
    assert len(traced.nodes) == traced.graphs
    assert set(traced.nodes) == {"resolvent.layer_pass.default"}
    assert [g is None for g in found] == [g is None for g in want]
    assert_close([g for g in found if g is not None], [g for g in want if g is not None], dtype=F64)


class Around(nn.Module):
    """As people put a layer into modules of their own."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.norm, self.layer, self.out = nn.LayerNorm(4), layer, nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.out(F.gelu(self.layer(self.norm(x))[0]))


@pytest.mark.parametrize("name", ["RGLRU", "Mamba"])
def test_what_is_around_is_generated_and_takes_no_memory_that_waits(name: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*[Around(LAYERS[name]()) for _ in range(2)]).double()
    fast = torch.compile(model, fullgraph=True)
    for _ in range(PATIENCE + 3):
        x, found = draw(3, 21, 4), []
        for run in (model, fast):
            with without_recording() if run is model else torch.enable_grad():
                y = run(x)
            found.append([y, *torch.autograd.grad(loss_of(y), [x, *model.parameters()])])
        assert_close(found[1], found[0], dtype=F64, gradient=True)
    assert StandIn.made == 4


def test_equal_blocks_and_all_lengths_share_code() -> None:
    blocks = nn.Sequential(*[Around(rv.S4D(4, 6)) for _ in range(10)]).double()
    traced = Traced()
    for block in blocks:
        block.compile(backend=traced, fullgraph=True)
    for length in (21, 33, 8, 64, 5):
        x = draw(2, length, 4)
        got = torch.autograd.grad(loss_of(blocks(x)), x)
        with without_recording():
            y = x
            for block in blocks:
                y = block.forward(y)
        assert_close(got, torch.autograd.grad(loss_of(y), x), dtype=F64)
    assert traced.graphs <= 4  # of the first block and of the others, for one length and for all


@pytest.mark.parametrize("way", WAYS)
def test_a_loop_has_the_numbers_of_the_loop_without_compiler(way: str) -> None:
    run, records = LOOPS[way]
    torch.manual_seed(0)
    layer = rv.RGLRU(4).double()
    other = copy.deepcopy(layer)
    torch.manual_seed(1)
    with without_recording():
        want = run(other)
    torch.manual_seed(1)
    found = run(torch.compile(layer, backend="aot_eager", fullgraph=True))
    assert records is None or (StandIn.made > 0) is records
    assert [g is None for g in found] == [g is None for g in want]
    assert_close([g for g in found if g is not None], [g for g in want if g is not None], dtype=F64)


def test_a_state_that_hangs_on_x_alone_has_no_gradient_where_x_needs_none() -> None:
    run, layer = LOOPS["a_loss_on_the_last_state_where_x_needs_no_gradient"][0], rv.layers.ShortConv(4).double()
    torch.manual_seed(1)
    found = run(torch.compile(layer, backend="aot_eager", fullgraph=True))
    made = StandIn.made
    torch.manual_seed(1)
    with without_recording():
        assert_close(found, run(layer), dtype=F64)
    assert 0 < made <= 4  # not one for every step


def test_uncompiled_and_compiled_passes_share_recordings() -> None:
    layer, x = rv.S4D(4, 6).double(), draw(2, 9, 4)
    fast = torch.compile(lambda x: layer(x)[0], backend="aot_eager", fullgraph=True)
    for k in range(PATIENCE + 3):
        (fast(x) if k % 2 else layer(x)[0]).sum().backward()
    assert StandIn.made == 2


@pytest.mark.parametrize("lost", ["kept", "layer"])
def test_what_was_lost_on_the_way_is_run_again_or_not_needed(lost: str) -> None:
    layer, x = rv.S6(4, 3).double(), draw(2, 9, 4)
    own: list[Any] = [layer, torch.compile(layer, backend="aot_eager", fullgraph=True)]
    parameters = list(layer.parameters())
    with without_recording():
        want = torch.autograd.grad(loss_of(layer(x)[0]), [x, *parameters])
    for _ in range(STEPS):
        y = own[1](x)[0]
        if lost == "kept":
            kept._kept.clear()
        assert_close(torch.autograd.grad(loss_of(y), [x, *parameters]), want, dtype=F64)
    y = own[1](x)[0]
    del layer
    if lost == "layer":
        own.clear()
        torch._dynamo.reset()
        gc.collect()
    assert_close(torch.autograd.grad(loss_of(y), [x, *parameters]), want, dtype=F64)


def test_other_parameters_derivatives_of_derivatives_and_checkpoints() -> None:
    layer, x = rv.LRU(4, 3).double(), draw(2, 9, 4)
    own = {name: (1.1 * p).detach().requires_grad_() for name, p in layer.named_parameters()}

    def swapped(x: Tensor) -> Tensor:
        y: Tensor = torch.func.functional_call(layer, own, (x,))[0]
        return y

    def again(x: Tensor) -> Tensor:
        y: Tensor = torch.utils.checkpoint.checkpoint(lambda x: layer(layer(x)[0].tanh())[0], x, use_reentrant=False)
        return y

    for run, leaves in ((swapped, list(own.values())), (again, list(layer.parameters()))):
        with without_recording():
            want = torch.autograd.grad(loss_of(run(x)), [x, *leaves])
        fast = torch.compile(run, backend="aot_eager", fullgraph=True)
        for _ in range(STEPS):
            assert_close(torch.autograd.grad(loss_of(fast(x)), [x, *leaves]), want, dtype=F64)
    twice = []
    for run in (layer, torch.compile(layer, backend="eager", fullgraph=True)):
        slope = torch.autograd.grad(loss_of(run(x)[0]), x, create_graph=True)[0]
        twice.append(torch.autograd.grad(slope.square().sum(), [x, *layer.parameters()]))
    assert_close(twice[1], twice[0], dtype=F64)


def test_precision_evaluation_and_options_are_those_of_the_call() -> None:
    torch.manual_seed(0)
    layer: Any = rv.Mamba(4, 3)
    fast: Any = torch.compile(layer, backend="aot_eager", fullgraph=True)
    x = torch.randn(2, 9, 4)
    for _ in range(PATIENCE + 2):
        with torch.autocast("cpu", torch.bfloat16):
            found = fast(x)[0], layer(x)[0]
        assert torch.equal(*found)
    made = StandIn.made
    for _ in range(PATIENCE + 2):
        with torch.inference_mode():
            found = fast(x)[0], layer(x)[0]
        assert torch.equal(*found)
    assert StandIn.made == made + 1  # no way back
    layer = rv.S4D(4, 6)
    fast = torch.compile(layer, backend="aot_eager", fullgraph=True)
    before = [fast(x)[0] for _ in range(PATIENCE + 2)][-1]
    layer.discretisation = "bilinear"
    assert not torch.equal(fast(x)[0], before)
    assert torch.equal(fast(x)[0], layer(x)[0])


class Doubled(rv.S4D):
    def _sequence(self, x: Tensor, state: Any, lengths: Any) -> Any:
        y, state = super()._sequence(x, state, lengths)
        return 2 * y, state


def _hooked(layer: nn.Module) -> nn.Module:
    layer.register_forward_hook(lambda _, given, found: (2 * found[0], found[1]))
    return layer


@pytest.mark.parametrize(
    "make", [lambda: Doubled(4, 6), lambda: _hooked(rv.S4D(4, 6)), lambda: rv.blocks.GRU(4)], ids=["own", "hook", "GRU"]
)
def test_own_code_is_left_to_the_compiler(make: Callable[[], nn.Module]) -> None:
    layer, x, traced = make().double(), draw(2, 9, 4), Traced()
    fast = torch.compile(layer, backend=traced)
    for _ in range(PATIENCE + 2):
        assert_close(fast(x)[0], layer(x)[0], dtype=F64)
    assert "resolvent.layer_pass.default" not in traced.nodes


def test_layers_beside_dropout_are_nodes_and_the_dropout_is_not() -> None:
    block, x, traced = rv.Mamba(4, 3, ads=nn.Dropout(0.5)).double(), draw(2, 9, 4), Traced()
    fast = torch.compile(block, backend=traced, fullgraph=True)
    assert not torch.equal(fast(x)[0], fast(x)[0])
    assert traced.nodes == 2 * ["resolvent.layer_pass.default"]  # the convolution and S6
    block.eval()
    assert_close(fast(x)[0], block(x)[0], dtype=F64)
    assert len(traced.nodes) == 3  # all of it


def test_memory_that_runs_out_beside_recordings_gives_them_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    layer, x = rv.S4D(4, 6).double(), draw(2, 9, 4)
    fast = torch.compile(lambda x: layer(x)[0], backend="aot_eager", fullgraph=True)
    want = torch.autograd.grad(loss_of(fast(x)), x)
    for _ in range(PATIENCE + 2):
        fast(x).sum().backward()

    def fail(*_: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with monkeypatch.context() as patched:
        patched.setattr(recording.Recording, "run", fail)
        assert_close(torch.autograd.grad(loss_of(fast(x)), x), want, dtype=F64)
    assert known._known[layer].is_off
    assert_close(torch.autograd.grad(loss_of(fast(x)), x), want, dtype=F64)


def test_copies_have_tickets_of_their_own() -> None:
    layer = rv.S4D(4, 6)
    others = copy.deepcopy(layer), copy.copy(layer), pickle.loads(pickle.dumps(layer))
    assert len({int(own._ticket) for own in (layer, *others)}) == 4
    assert not any("ticket" in name for name in layer.state_dict())
    with torch.device("meta"):
        assert rv.S4D(4, 6)._ticket.device.type == "cpu"
