"""Loops as people write them, around layers whose passes are recorded: the numbers are those without recording."""

from __future__ import annotations

import copy
import gc
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from loops import F64, LOOPS, ROUNDS, Found, draw, loop, loss_of, sum_of, take
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import resolvent as rv
from graph_stand_in import StandIn
from helpers import assert_close
from resolvent.layers.recorded import without_recording

pytestmark = pytest.mark.usefixtures("graphs")


@loop(records=False)
def parametrised(layer: nn.Module) -> Found:
    name = next(name for name, p in layer.named_parameters(recurse=False) if p.ndim > 1) if hasattr(layer, "C") else "C"
    if not hasattr(layer, name):
        return []
    nn.utils.parametrizations.weight_norm(layer, name)
    found: Found = []
    for _ in range(ROUNDS):
        x = draw()
        with nn.utils.parametrize.cached():
            loss_of(layer(x)[0]).backward()
        found += [x.grad, *take(layer)]
    nn.utils.parametrize.remove_parametrizations(layer, name)
    return found


@loop(records=False)
def non_reentrant_checkpoint(layer: nn.Module) -> Found:
    return _checkpointed(layer, False)


@loop()
def reentrant_checkpoint(layer: nn.Module) -> Found:
    return _checkpointed(layer, True)


def _checkpointed(layer: nn.Module, reentrant: bool) -> Found:
    found: Found = []
    for _ in range(3 * ROUNDS):
        x = draw()
        y = checkpoint(lambda x: layer(layer(x)[0].tanh())[0], x, use_reentrant=reentrant)
        loss_of(y).backward()
        found += [x.grad, *take(layer)]
    return found


@loop(records=False)
def anomaly_mode(layer: nn.Module) -> Found:
    found: Found = []
    with torch.autograd.detect_anomaly(check_nan=True):
        for _ in range(ROUNDS):
            loss_of(layer(draw())[0]).backward()
            found += take(layer)
    return found


@loop()
def other_modes(layer: nn.Module) -> Found:
    """Training, evaluation, no_grad, inference_mode, autocast, moved and loaded weights, each a few times in turn."""
    found: Found = []
    saved = {name: 1.1 * t.clone() for name, t in layer.state_dict().items() if t.is_floating_point()}
    for k in range(3):
        for _ in range(ROUNDS):
            x = draw()
            with torch.autocast("cpu", torch.bfloat16, enabled=k == 1):
                loss_of(layer(x)[0]).backward()
            found += [x.grad, *take(layer)]
        layer.eval()
        for _ in range(ROUNDS):
            with torch.no_grad():
                found.append(layer(draw())[0])
            with torch.inference_mode():
                found.append(layer(draw())[0].sum().item())
        layer.train()
        layer.load_state_dict(saved, strict=False, assign=k == 1)
        layer.requires_grad_(True)
        layer.to(torch.float32).to(F64)
    return found


@loop()
def what_an_inference_made(layer: nn.Module) -> Found:
    found: Found = []
    with torch.inference_mode():
        x = draw(grad=False)
    for _ in range(ROUNDS):
        found.append(layer(x.clone())[0].detach())
        loss_of(layer(x.clone())[0]).backward()
        found += take(layer)
    return found


@loop()
def truncated_through_time(layer: nn.Module) -> Found:
    found: Found = []
    for detached in (True, False):
        for _ in range(ROUNDS):
            x = draw(3, 22, 4)
            y, state = layer(x[:, :11])
            if state is None:
                return [loss_of(y)]
            state = _map(state, lambda t: t.detach()) if detached else state
            z, _ = layer(x[:, 11:], state)
            (loss_of(y) + loss_of(z)).backward()
            found += [x.grad, *take(layer)]
    return found


def _map(state: Any, f: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(state, dict):
        return {name: _map(part, f) for name, part in state.items()}
    return tuple(_map(part, f) for part in state) if isinstance(state, tuple) else f(state)


@loop()
def strided(layer: nn.Module) -> Found:
    found: Found = []
    for _ in range(ROUNDS):
        x = draw(4, 3, 22)
        y = layer(x.permute(1, 2, 0)[:, ::2])[0]
        loss_of(y.flip(1)).backward()
        z = draw(1, 11, 4)
        layer(z.expand(3, 11, 4))[0].sum().backward()
        found += [x.grad, z.grad, *take(layer)]
    return found


@loop(records=None)
def functional_calls(layer: nn.Module) -> Found:
    """Parameters of somebody else, an average of the weights among them."""
    own = {name: nn.Parameter(1.1 * p.detach()) for name, p in layer.named_parameters()}
    found: Found = []
    for _ in range(2 * ROUNDS):
        x = draw()
        y = torch.func.functional_call(layer, own, (x,))[0]
        loss_of(y).backward()
        found += [x.grad, *(None if p.grad is None else p.grad.clone() for p in own.values()), *take(layer)]
        for p in own.values():
            p.grad = None
        loss_of(torch.func.functional_call(layer, {k: v * 2 for k, v in own.items()}, (x,))[0]).backward()
        found += [x.grad.clone(), *(None if p.grad is None else p.grad.clone() for p in own.values())]
        for p in own.values():
            p.grad = None
    return found


@loop()
def copies(layer: nn.Module) -> Found:
    found: Found = []
    for _ in range(ROUNDS):
        loss_of(layer(draw())[0]).backward()
    layer.zero_grad()
    twin = copy.deepcopy(layer)
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    for own in (twin, loaded):
        with torch.no_grad():
            next(own.parameters()).mul_(1.2)
        for _ in range(ROUNDS):
            x = draw()
            loss_of(own(x)[0]).backward()
            found += [x.grad, *take(own), *take(layer)]
    return found


@loop()
def a_model_freed_while_its_output_lives(layer: nn.Module) -> Found:
    own = copy.deepcopy(layer)
    for _ in range(ROUNDS):
        loss_of(own(draw())[0]).backward()
    x = draw()
    y = own(x)[0]
    del own
    gc.collect()
    loss_of(y).backward()
    return [x.grad]


@loop()
def errors_in_the_middle(layer: nn.Module) -> Found:
    found: Found = []

    def fail(g: Tensor) -> Tensor:
        raise ValueError("mine")

    for k in range(3 * ROUNDS):
        x = draw()
        y = layer(x)[0]
        if k % 3 == 1:
            continue
        if k % 3 == 2:
            y.register_hook(fail)
            with pytest.raises(ValueError, match="mine"):
                loss_of(y).backward()
            continue
        loss_of(y).backward()
        found += [x.grad, *take(layer)]
    return found


@loop(records=False)
def empty(layer: nn.Module) -> Found:
    found: Found = []
    for _ in range(ROUNDS):
        for shape in ((0, 11, 4), (3, 0, 4)):
            try:
                found.append(layer(torch.randn(shape, dtype=F64))[0])
            except ValueError as error:
                found.append(len(str(error)))
    return found


@loop()
def second_derivatives(layer: nn.Module) -> Found:
    found: Found = []
    for _ in range(ROUNDS):
        x = draw()
        y, state = layer(x)
        value = loss_of(y) if state is None else loss_of(y) + sum_of(state)
        slope = torch.autograd.grad(value, x, create_graph=True)[0]
        slope.square().sum().backward()
        found += [x.grad, *take(layer)]
    return found


@loop()
def not_a_number(layer: nn.Module) -> Found:
    """Some bad batches at first."""
    found: Found = []
    for k in range(4 * ROUNDS):
        x = draw(grad=False)
        if k < ROUNDS:
            x[0, 0, 0] = torch.nan
        loss_of(layer(x)[0]).backward()
        found += [g if g is None else g.nan_to_num() for g in take(layer)] if k >= ROUNDS else []
        layer.zero_grad()
    return found


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "S4D": lambda: rv.S4D(4, 6), "S5": lambda: rv.S5(4, 6), "RGLRU": lambda: rv.RGLRU(4), "DSS": lambda: rv.DSS(4, 3),
    "Mamba": lambda: rv.Mamba(4, 3), "block": lambda: rv.blocks.Residual(rv.LRU(4, 3)), "GRU": lambda: rv.blocks.GRU(4),
    "ShortConv": lambda: rv.layers.ShortConv(4),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("way", LOOPS)
def test_a_loop_has_the_numbers_of_the_loop_without_recording(way: str, name: str, graphs: type[StandIn]) -> None:
    run, records = LOOPS[way]
    torch.manual_seed(0)
    layer = LAYERS[name]().double()
    other = copy.deepcopy(layer)
    torch.manual_seed(1)
    with without_recording():
        want = run(other)
    assert graphs.made == 0
    torch.manual_seed(1)
    found = run(layer)
    assert records is None or (graphs.made > 0) is records
    assert [g is None for g in found] == [g is None for g in want]
    assert_close([g for g in found if g is not None], [g for g in want if g is not None], dtype=F64)
