"""Whatever is not exactly what was built runs its own modules: every customisation by every way into a model.

The oracle calls module after module itself and knows nothing of quick forms.
"""

from __future__ import annotations

import sys
import threading
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.modules.module as torch_module
from customisations import CUSTOM, THREAT, ByModules, agree, built, customised, data, globally, slope
from torch import Tensor, nn

from helpers import assert_close, distance
from resolvent.attacks import FAB, PGD, Draws, Square, Threat, autoattack, cross_entropy, fgsm
from resolvent.attacks.apgd.attack import APGD
from resolvent.blocks.mamba import Mamba
from resolvent.data.task import Split, Task
from resolvent.layers import S4D, S6
from resolvent.models import Model
from resolvent.models.layer_config import S4DConfig, S5Config
from resolvent.training import FitSettings, fit, pgd_at, trades
from resolvent.training.step.batch import Batch

LAYERS = {"s4d": S4DConfig(4), "s5": S5Config(4)}


@pytest.mark.parametrize("name", CUSTOM)
@pytest.mark.parametrize("layer", LAYERS)
def test_every_way_in_runs_the_modules(name: str, layer: str) -> None:
    if layer == "s5" and name == "a subclass of the layer":
        pytest.skip("that subclass is one of S4D")
    x, y = data()
    for train in (False, True):
        with customised(name, LAYERS[layer], train) as (model, oracle):
            want = slope(oracle, x)
            agree(slope(model, x), want)
            agree(slope(lambda x, m=model: m.from_embedding(m.embed(x)), x), want)
            with model.frozen():
                agree(slope(model, x), want)
            with torch.no_grad():
                torch.manual_seed(1)
                assert_close(model(x), want[0])
    with customised(name, LAYERS[layer]) as (model, oracle):
        for attack in (PGD(steps=1, keep="last"), PGD(steps=3, random_start=False)):
            assert_close(attack(model, x, y, THREAT).x_adv, attack(oracle, x, y, THREAT).x_adv)
        assert_close(fgsm(model, x, y, THREAT).x_adv, fgsm(oracle, x, y, THREAT).x_adv)


def test_the_matrix_can_fail() -> None:
    """Without any customisation the model does take its quick form here, in training and evaluation."""
    x, _ = data()
    for layer in LAYERS.values():
        for train in (False, True):
            model = built(layer).train(train)
            assert model.lowered(x) is not None
            agree(slope(model, x), slope(ByModules(model), x))


def test_a_method_set_on_the_tower_is_called() -> None:
    x, _ = data()
    model = built().eval()
    whole = model.tower.features
    want = model.head(2 * whole(model.tower.entry(x))[0])
    model.tower.features = lambda *given: (2 * whole(*given)[0], None)  # type: ignore[method-assign]
    assert_close(model(x), want)


def test_a_subclass_of_the_model_is_called() -> None:
    class Scaled(Model):
        def embed(self, x: Tensor) -> Tensor:
            return super().embed(x / 2)

    x, _ = data()
    model = built().eval()
    want = ByModules(model)(x / 2)
    model.__class__ = Scaled
    assert model.lowered(x) is None
    assert_close(model(x), want)


class Marked(Tensor):
    """A subclass may have operations of its own."""


def test_weights_and_inputs_of_another_class_go_through_the_modules() -> None:
    x, _ = data()
    model = built().eval()
    assert model.lowered(x) is not None
    assert model.lowered(x.as_subclass(Marked)) is None  # type: ignore[no-untyped-call]
    model.tower.entry.weight = nn.Parameter(model.tower.entry.weight.detach().as_subclass(Marked))
    assert model.lowered(x) is None


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")  # x itself needs no gradient here
@pytest.mark.parametrize("name", CUSTOM)
@pytest.mark.parametrize("objective", [pgd_at, trades])
def test_a_training_step_runs_the_modules(name: str, objective: Any) -> None:
    x, y = data()
    with customised(name, train=True) as (model, oracle):
        found = []
        for net in (model, oracle):
            torch.manual_seed(5)
            loss = objective(THREAT, steps=2)(net, Batch(x, y, None, Draws(0, torch.arange(len(x)))))
            loss.value.backward()
            found.append([loss.value.detach(), *(p.grad for p in net.parameters())])
        for a, b in zip(*found, strict=True):
            assert (a is None) == (b is None)
            if a is not None and b is not None:
                assert_close(a, b, gradient=True)


FEW = ("LoRA for the entry", "forward of the head", "a global hook", "a softmax for an activation", "weight norm")


@pytest.mark.parametrize("name", FEW)
def test_autoattack_attacks_the_modules(name: str) -> None:
    x, y = data(4)
    attacks = (APGD(cross_entropy, steps=4), FAB(steps=2), Square(n_queries=10))
    with customised(name) as (model, oracle):
        y = oracle.eval()(x).argmax(1)  # all are right, so that there is something to break
        threat = Threat("linf", 0.01, (0, 1))
        got, want = (autoattack(net, x, y, threat, attacks) for net in (model, oracle))
        assert got.clean_accuracy == want.clean_accuracy == 1.0
        assert torch.equal(got.broken_by, want.broken_by)
        assert_close(got.margin, want.margin)
        assert_close(got.x_adv, want.x_adv)


@pytest.mark.parametrize("name", ["LoRA in a mixer", "alpha dropout", "a pre-hook"])
def test_fit_trains_the_modules(name: str) -> None:
    x, y = data(16)
    split = Split(x.float(), y)
    task = Task("seen", split, split, split, length=18, channels=3, classes=10)
    with customised(name, train=True) as (model, oracle):
        settings = FitSettings(epochs=1, batch_size=8, lr=1e-2, groups=False)
        for net in (model.float(), oracle.float()):
            fit(net, task, pgd_at(THREAT, steps=2), settings)
        for a, b in zip(model.parameters(), oracle.parameters(), strict=True):
            assert_close(a, b, tolerance=1e-4)  # two steps in float32


# -- inside of blocks and layers ---------------------------------------------------------------------------------------


class Louder(S6):
    def forward(self, x: Tensor, state: Any = None, lengths: Tensor | None = None) -> tuple[Tensor, Any]:
        y, state = super().forward(x, state, lengths)
        return 2 * y, state


def louder(module: S6, x: Tensor, state: Any = None, lengths: Tensor | None = None) -> Any:
    y, state = S6.forward(module, x, state, lengths)
    return 2 * y, state


@pytest.mark.parametrize("change", ["subclass", "forward", "global"])
def test_the_gate_of_mamba_calls_a_customised_layer(change: str) -> None:
    torch.manual_seed(0)
    block = Mamba(4, 2).double()
    x = torch.randn(2, 9, 4).double()
    h, z = block.in_proj(x).chunk(2, -1)
    y = 2 * block.ssm(nn.functional.silu(block.conv(h)[0]))[0]
    want = block.out_proj(y * nn.functional.silu(z))
    assert distance(block(x)[0], want) > 0.1
    if change == "subclass":
        block.ssm.__class__ = Louder
    elif change == "forward":
        block.ssm.forward = lambda *given: louder(block.ssm, *given)  # type: ignore[method-assign]
    with (
        globally(torch_module.register_module_forward_hook, lambda m, g, o: (2 * o[0], o[1]) if type(m) is S6 else None)
        if change == "global"
        else nullcontext()
    ):
        assert_close(block(x)[0], want)


def test_a_step_of_its_own_is_taken_when_frozen() -> None:
    class Halved(S4D):
        def _step(self, x_t: Tensor, state: Any) -> tuple[Tensor, Any]:
            y, state = super()._step(x_t, state)
            return y / 2, state

    layer = S4D(3, 2)
    x, state = torch.randn(2, 3), layer.initial_state(2)
    want = layer.step(x, state)[0] / 2
    with layer.frozen(), torch.no_grad():
        assert_close(layer.step(x, state)[0], 2 * want)
        layer._step = lambda *given: (type(layer)._step(layer, *given)[0] / 2, None)  # type: ignore[method-assign]
        assert_close(layer.step(x, state)[0], want)
        del layer._step
    layer.__class__ = Halved
    with layer.frozen(), torch.no_grad():
        assert_close(layer.step(x, state)[0], want)


def test_frozen_left_by_another_thread() -> None:
    """The tables are gone between two looks at them: the call goes on with those that it had, or with its own."""
    layer = S4D(3, 2)
    want = layer._bank().weight

    def compute() -> Tensor:
        layer._tables = None  # as the last one out leaves it
        return layer._bank().weight

    with layer.frozen():
        assert_close(layer.cached("own", compute), want)
        layer._tables = {}


def test_frozen_entered_and_left_while_others_call() -> None:
    layer, x = S4D(3, 2), torch.randn(2, 5, 3)
    want, stop, errors = layer(x)[0].detach(), threading.Event(), []

    def call() -> None:
        try:
            while not stop.is_set():
                assert_close(layer(x)[0], want)
        except BaseException as error:
            errors.append(error)

    before = sys.getswitchinterval()
    threads = [threading.Thread(target=call) for _ in range(2)]
    try:
        sys.setswitchinterval(1e-6)
        for thread in threads:
            thread.start()
        for _ in range(150):
            with layer.frozen():
                pass
    finally:
        stop.set()
        sys.setswitchinterval(before)
        for thread in threads:
            thread.join()
    assert not errors
