"""A stack inside of somebody's own module, against the same blocks called one after the other."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from helpers import assert_close
from resolvent.attacks import PGD, Draws, Threat
from resolvent.blocks import AdS, LayerNorm, Mixer, Residual, Stack
from resolvent.layers import DSS, S4, S4D, S5
from resolvent.lowering import stack_form
from resolvent.training import pgd_at
from resolvent.training.step.batch import Batch

LAYERS: dict[str, Callable[[], Any]] = {"s4": lambda: S4(4, 4), "s4d": lambda: S4D(4, 4), "dss": lambda: DSS(4, 4)}
SOFTMAX: dict[str, Callable[[], Any]] = {"softmax": lambda: DSS(4, 4, kernel="softmax", length=30)}


def stack(name: str = "s4d", **more: Any) -> Stack:
    torch.manual_seed(0)
    blocks = [
        Residual((LAYERS | SOFTMAX)[name](), mixer=Mixer(4, kind), ads=ads, **more)
        for kind, ads in (("linear", AdS(4, "tanh")), ("glu", None))  # type: ignore[arg-type]
    ]
    return Stack(blocks).double()


class Mine(nn.Module):
    """Somebody's own model; with `whole` it calls the stack, else its blocks."""

    def __init__(self, whole: bool = True, **more: Any) -> None:
        super().__init__()
        self.whole, self.body = whole, stack(**more)
        self.enter, self.out = nn.Linear(2, 4).double(), nn.Linear(4, 3).double()

    def forward(self, x: Tensor) -> Tensor:
        h = self.enter(x).tanh()
        if self.whole:
            h = self.body(h)[0]
        else:
            for block in self.body.blocks:
                h = block(h)[0]
        out: Tensor = self.out(h.mean(1))
        return out


def pair(**more: Any) -> tuple[Mine, Mine]:
    torch.manual_seed(0)
    mine = Mine(**more)
    plain = copy.deepcopy(mine)
    plain.whole = False
    return mine, plain


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("prenorm", [True, False])
@pytest.mark.parametrize("shape", [(1, 1), (3, 17), (2, 64)])
def test_values_and_gradients(name: str, prenorm: bool, shape: tuple[int, int]) -> None:
    """Of the first and second order, in x and in the parameters."""
    found = []
    for model in pair(name=name, prenorm=prenorm):
        x = torch.randn(*shape, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
        y = model(x)
        first = torch.autograd.grad(y.square().sum(), [x, *model.parameters()], create_graph=True)
        (second,) = torch.autograd.grad(first[0].square().sum(), x)
        found.append([y, *first, second])
    assert stack_form.stackable(stack(name, prenorm=prenorm)) is not None
    for got, want in zip(*found, strict=True):
        assert_close(got, want, gradient=True, tolerance=1e-8)  # second derivatives of norms lose two digits


def test_an_attack_and_a_training_step_find_the_same() -> None:
    mine, plain = pair()
    g = torch.Generator().manual_seed(2)
    x, y = torch.rand(6, 20, 2, dtype=torch.float64, generator=g), torch.randint(0, 3, (6,), generator=g)
    threat = Threat("linf", 0.1, (0, 1))
    for attack in (PGD(steps=3, random_start=False), PGD(steps=3)):
        assert_close(attack(mine.eval(), x, y, threat).x_adv, attack(plain.eval(), x, y, threat).x_adv)
    found = []
    for model in (mine.train(), plain.train()):
        loss = pgd_at(threat, steps=2)(model, Batch(x, y, None, Draws(0, torch.arange(6))))
        loss.value.backward()
        found.append([loss.value, *(p.grad for p in model.parameters())])
    for got, want in zip(*found, strict=True):
        assert_close(got, want, gradient=True)


def test_the_state_is_there_when_it_is_asked_for() -> None:
    own, x = stack(), torch.randn(2, 9, 4, dtype=torch.float64)
    y, state = own(x)
    assert isinstance(state, stack_form.LateState)
    want = own.blocks[1](own.blocks[0](x)[0])[1]
    assert_close(state["blocks.1"]["layer"], want["layer"])
    x_t = torch.randn(2, 4, dtype=torch.float64)
    whole = own(torch.cat([x, x_t[:, None]], 1))[0]
    for late in (state, own(x)[1], pickle.loads(pickle.dumps(own(x.detach())[1])), own(x)[1].copy()):
        assert sorted(late) == ["blocks.0", "blocks.1"]
        assert_close(own.step(x_t, late)[0], whole[:, -1])
        assert_close(own(x_t[:, None], late)[0], whole[:, -1:])
    assert_close(y, whole[:, :-1])


@pytest.mark.parametrize("name", [*LAYERS, *SOFTMAX])
@pytest.mark.parametrize("prenorm", [True, False])
def test_the_state_is_that_of_the_call(name: str, prenorm: bool, tmp_path: Path) -> None:
    """Whatever becomes of x and of the weights before somebody looks at it; with its gradients."""
    own, x = stack(name, prenorm=prenorm), torch.randn(2, 9, 4, dtype=torch.float64)
    want = own.blocks[1](own.blocks[0](x)[0])[1]["layer"]
    wide = Stack([own])
    first, last = wide(x)[1], wide(given := x.mT.contiguous().mT)[1]
    with own.frozen():
        frozen = own(x)[1]
    slopes = [torch.autograd.grad(_sum(h), own.parameters(), allow_unused=True) for h in (_inner(first), want)]
    assert_close([g for g in slopes[0] if g is not None], [g for g in slopes[1] if g is not None], gradient=True)
    given.zero_()
    with torch.no_grad():
        for p in own.parameters():
            p.add_(0.1)
    assert_close([_inner(last), frozen["blocks.1"]["layer"]], [want, want])
    torch.save(frozen, tmp_path / "state.pt")
    assert_close(torch.load(tmp_path / "state.pt", weights_only=True)["blocks.1"]["layer"], want)


def test_what_is_on_when_the_state_is_looked_at_changes_nothing() -> None:
    own, x = stack().float(), torch.randn(2, 9, 4)
    want = own.blocks[1](own.blocks[0](x)[0])[1]["layer"]
    with torch.autocast("cpu", torch.bfloat16):
        rounded = own(x)[1]["blocks.1"]["layer"]  # by the modules
    assert not torch.equal(rounded, want)
    states = [own(x)[1] for _ in range(4)]
    with torch.autocast("cpu", torch.bfloat16):
        assert_close(states[0]["blocks.1"]["layer"], want)
    with torch.inference_mode():
        assert_close(states[1]["blocks.1"]["layer"], want)
        inferred = own(x)[1]
    assert_close(inferred["blocks.1"]["layer"], want)
    states[1]["blocks.1"]["layer"].abs().sum().backward()  # it has its graph
    with torch.device("meta"):
        assert_close(states[2]["blocks.1"]["layer"], want)
    own.double()
    assert_close(states[3]["blocks.1"]["layer"], want)


def test_the_state_is_a_dict_in_all_that_may_be_done_to_it() -> None:
    own, x = stack(), torch.randn(2, 9, 4, dtype=torch.float64)
    names, empty = ["blocks.0", "blocks.1"], dict[str, Any]()
    assert [*reversed(own(x)[1])] == names[::-1]
    assert (own(x)[1] != empty, own(x)[1] == empty) == (True, False)
    assert [*{**own(x)[1]}] == [*(own(x)[1] | empty)] == [*(empty | own(x)[1])] == names
    state = own(x)[1]
    state["blocks.0"] = None
    assert (state.pop("blocks.0"), [*state]) == (None, names[1:])
    state = own(x)[1]
    del state["blocks.0"]
    assert [*state] == names[1:]
    state = own(x.detach())[1]
    assert state.setdefault("blocks.0", {}) is state["blocks.0"] != {}
    for given in (own(x)[1], state):
        detached = tree_map(Tensor.detach, given)
        assert isinstance(detached["blocks.0"]["layer"], Tensor)


@pytest.mark.parametrize("looked", [True, False])
def test_compiled_code_goes_on_from_the_state(looked: bool) -> None:
    own, x = stack(), torch.randn(2, 20, 4, dtype=torch.float64)
    quick = torch.compile(own, backend="aot_eager", fullgraph=looked)
    with torch.no_grad():
        y, (_, state) = own(x)[0], own(x[:, :9])
        if looked:
            assert len(state) == 2
        assert_close(quick(x[:, 9:], state)[0], y[:, 9:])


def _inner(state: Any) -> Any:
    return state["blocks.0"]["blocks.1"]["layer"]


def _sum(state: Any) -> Tensor:
    h: Tensor = state[0] if isinstance(state, tuple) else state
    return torch.view_as_real(h).square().sum()


def test_frozen_tables_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    own, x, made = stack(), torch.randn(2, 9, 4, dtype=torch.float64), []
    make = stack_form._make_tables
    monkeypatch.setattr(stack_form, "_make_tables", lambda *a: made.append(a) or make(*a))
    want = own(x)[0]
    with own.frozen():
        for _ in range(3):
            assert_close(own(x)[0], want)
    assert len(made) == 2


class Shifted(LayerNorm):
    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        return super().forward(x, lengths) + 1


CHANGES: dict[str, Callable[[Stack], Any]] = {
    "a hook": lambda s: s.blocks[0].layer.register_forward_hook(lambda m, g, out: (2 * out[0], out[1])),
    "a subclass": lambda s: setattr(s.blocks[1].norm, "__class__", Shifted),
    "a method": lambda s: setattr(s.blocks[0].mixer, "forward", lambda x: x.cos()),
    "another layer": lambda s: s.blocks.append(Residual(S5(4, 4)).double()),
    "both directions": lambda s: s.blocks.append(Residual(S4D(4, 4, bidirectional=True)).double()),
    "dropout": lambda s: setattr(s.blocks[0].dropout, "p", 0.5),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_not_ours_is_called(change: str) -> None:
    own, x = stack(), torch.randn(2, 9, 4, dtype=torch.float64)
    own(x)
    CHANGES[change](own)
    assert stack_form.serve(own, x) is None


def test_the_modules_take_what_the_form_does_not() -> None:
    own, x = stack(), torch.randn(2, 9, 4, dtype=torch.float64)
    lengths = torch.tensor([9, 3])
    h = x
    for block in own.blocks:
        h = block(h, None, lengths)[0]
    assert_close(own(x, None, lengths)[0], h)
    with pytest.raises(ValueError, match="Stack takes no dt or rate"):  # which the layers say, not the form
        own(x, dt=torch.ones(2, 9, dtype=torch.float64))
    with pytest.raises(TypeError):
        own(x, stride=None)
    broken = x.clone()
    broken[:, 5] = torch.nan
    assert_close(own(broken)[0][:, :5], own(x)[0][:, :5])
    for odd in (x[:, :0], x.float(), x[..., :3], torch.randn(2, 65, 4, dtype=torch.float64), None):
        assert not isinstance(odd, Tensor) or stack_form.serve(own, odd) is None
    with pytest.raises((TypeError, ValueError)):
        own(x[..., :3])
