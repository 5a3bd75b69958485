"""Loops as people write them around a layer, and what they find: gradients in all the ways they are asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import resolvent as rv
from resolvent.layers.recorded.known import PATIENCE
from resolvent.runtime.graph import watched

F64 = torch.float64
Found = list[Any]
Loop = Callable[[nn.Module], Found]
LOOPS: dict[str, tuple[Loop, bool | None]] = {}  # with whether something is recorded in it
ROUNDS = PATIENCE + 4


def loop(records: bool | None = True) -> Callable[[Loop], Loop]:
    def keep(own: Loop) -> Loop:
        LOOPS[own.__name__] = own, records
        return own

    return keep


def draw(*shape: int, grad: bool = True) -> Tensor:
    return torch.randn(shape or (3, 11, 4), dtype=F64).requires_grad_(grad)


def loss_of(y: Tensor) -> Tensor:
    return (y * y.cos()).sum()


def take(layer: nn.Module) -> Found:
    found = [None if p.grad is None else p.grad.clone() for p in layer.parameters()]
    layer.zero_grad()
    return found


@loop()
def accumulate_gradients(layer: nn.Module) -> Found:
    for _ in range(4 * ROUNDS):
        loss_of(layer(draw(grad=False))[0]).backward()
    return take(layer)


@loop()
def two_passes_before_one_way_back(layer: nn.Module) -> Found:
    found: Found = []
    for _ in range(3 * ROUNDS):
        x, other = draw(), draw()
        first, second = loss_of(layer(x)[0]), loss_of(layer(other)[0])
        second.backward()
        first.backward()
        found += [x.grad, other.grad, *take(layer)]
    return found


@loop()
def the_same_layer_twice(layer: nn.Module) -> Found:
    found: Found = []
    for _ in range(3 * ROUNDS):
        x = draw()
        loss_of(layer(layer(x)[0].tanh())[0]).backward()
        found += [x.grad, *take(layer)]
    return found


@loop()
def retain_graph(layer: nn.Module) -> Found:
    found: Found = []
    for _ in range(ROUNDS):
        x = draw()
        loss = loss_of(layer(x)[0])
        loss.backward(retain_graph=True)
        layer(draw())  # must not touch what the second way back needs
        loss.backward()
        found += [x.grad, *take(layer)]
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()
    return found


@loop()
def adversaries(layer: nn.Module) -> Found:
    """A judge that is trained on detached fakes, and frozen when the generator learns through it."""
    torch.manual_seed(3)
    maker, found = nn.Linear(4, 4).double(), Found()
    for _ in range(3 * ROUNDS):
        real, noise = draw(grad=False), draw(grad=False)
        fake = maker(noise)
        (loss_of(layer(real)[0]) - loss_of(layer(fake.detach())[0])).backward()
        found += take(layer)
        layer.requires_grad_(False)
        loss_of(layer(fake)[0]).backward()
        found += [*take(maker), *take(layer)]
        layer.requires_grad_(True)
    return found


@loop()
def optimiser(layer: nn.Module) -> Found:
    steps, found = torch.optim.AdamW(layer.parameters(), lr=1e-2), Found()
    for _ in range(2 * ROUNDS):
        loss = loss_of(layer(draw())[0])
        steps.zero_grad()
        loss.backward()
        steps.step()
        found.append(loss.detach())
    return found


@loop(records=None)
def optimiser_that_replaces_data(layer: nn.Module) -> Found:
    found: Found = []
    for _ in range(3 * ROUNDS):
        loss = loss_of(layer(draw())[0])
        loss.backward()
        for p in layer.parameters():
            if p.grad is not None:
                p.data = p.data - 1e-2 * p.grad
        found += [loss.detach(), *take(layer)]
    return found


@loop()
def data_replaced_before_the_way_back(layer: nn.Module) -> Found:
    """Sharded parameters are gathered anew for the way back: the same numbers elsewhere."""
    found: Found = []
    for k in range(3 * ROUNDS):
        x = draw()
        loss = loss_of(layer(x)[0])
        if k < ROUNDS:
            continue
        before = [p.data for p in layer.parameters()]
        for p in layer.parameters():
            p.data = p.data.clone()
        for old in before if k == ROUNDS and not watched.off else ():  # an eager pass may have kept views of it
            old.fill_(torch.nan)
        loss.backward()
        found += [x.grad, *take(layer)]
    return found


@loop()
def steps_inside_of_the_way_back(layer: nn.Module) -> Found:
    found: Found = []

    def learn(p: Tensor) -> None:
        assert p.grad is not None
        found.append(p.grad.clone())
        with torch.no_grad():
            p.sub_(p.grad, alpha=1e-2)
        p.grad = None

    handles = [p.register_post_accumulate_grad_hook(learn) for p in layer.parameters()]
    for _ in range(ROUNDS):
        loss_of(layer(draw())[0]).backward()
    for handle in handles:
        handle.remove()
    return [*sorted(found, key=lambda g: (g.numel(), float(g.sum())))]


@loop()
def hooks_on_tensors(layer: nn.Module) -> Found:
    found: Found = []

    def see(g: Tensor) -> Tensor:
        found.append(g.sum())
        return 2 * g

    handle = next(layer.parameters()).register_hook(see)
    for _ in range(ROUNDS):
        x = draw()
        inner = x * 2
        inner.register_hook(see)
        y = layer(inner)[0]
        y.register_hook(see)
        y.retain_grad()
        loss_of(y).backward()
        found += [x.grad, y.grad, *take(layer)]
    handle.remove()
    return found


@loop()
def part_of_the_parameters(layer: nn.Module) -> Found:
    own, found = list(layer.parameters()), Found()
    for some in (slice(0, None, 2), slice(1, None, 2)):
        for p in own[some]:
            p.requires_grad_(False)
        for _ in range(ROUNDS):
            x = draw()
            loss_of(layer(x)[0]).backward()
            found += [x.grad, *take(layer)]
        layer.requires_grad_(True)
    return found


@loop()
def asked_for_some(layer: nn.Module) -> Found:
    own, found = list(layer.parameters()), Found()
    for k in range(2 * ROUNDS):
        x = draw()
        found += torch.autograd.grad(loss_of(layer(x)[0]), [own[k % len(own)], x], allow_unused=True)
    return found


@loop()
def requires_grad_changed_before_the_way_back(layer: nn.Module) -> Found:
    found: Found = []
    for _ in range(ROUNDS):
        x = draw()
        y, state = layer(x)
        layer.requires_grad_(False)
        (loss_of(y) if state is None else loss_of(y) + sum_of(state)).backward()
        layer.requires_grad_(True)
        found += [x.grad, *take(layer)]
    return found


@loop()
def a_loss_on_the_last_state_where_x_needs_no_gradient(layer: nn.Module) -> Found:
    """That of a short convolution hangs on x alone."""
    found: Found = []
    for _ in range(ROUNDS):
        y, state = layer(draw(grad=False))
        (loss_of(y) if state is None else loss_of(y) + sum_of(state)).backward()
        found += take(layer)
    return found


def sum_of(state: Any) -> Tensor:
    parts = [state] if isinstance(state, Tensor) else list(state.values() if isinstance(state, dict) else state)
    while not all(isinstance(p, Tensor) for p in parts):
        parts = [q for p in parts for q in ([p] if isinstance(p, Tensor) else p.values() if isinstance(p, dict) else p)]
    return sum(p.abs().square().sum() for p in parts if p.dtype is not torch.bool)  # type: ignore[return-value]


@loop()
def x_edited_after_the_call(layer: nn.Module) -> Found:
    """With lengths or a cast the layer has a copy of x, which is the caller's to use."""
    lengths, found = torch.tensor([11, 3, 5]), Found()
    for _ in range(ROUNDS):
        x = draw() * 1
        y = layer(x, lengths=lengths)[0]
        lengths.fill_(1)
        with torch.no_grad():
            x.fill_(torch.nan)
        found += torch.autograd.grad(loss_of(y), list(layer.parameters()), allow_unused=True)
        lengths = torch.tensor([11, 3, 5])
    return found


@loop()
def y_edited_after_the_call(layer: nn.Module) -> Found:
    found: Found = []
    for _ in range(ROUNDS):
        x = draw()
        y = layer(x)[0]
        y = 2 * y if type(layer) is rv.RGLRU else y.mul_(2)  # whose way back reads what it returned
        y += x
        loss_of(y).backward()
        found += [x.grad, *take(layer)]
    return found
