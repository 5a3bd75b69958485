"""S6 from its input on as one node: against its own operations in float64, which have their derivatives from torch."""

from __future__ import annotations

import pytest
import torch
from selection_cases import CASES, cast, compare, draw, padded

from helpers import assert_close
from resolvent.ops.selective_scan import selection
from resolvent.ops.selective_scan.selection import Given, selected_scan


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name: str) -> None:
    given = CASES[name]
    compare(given, torch.float64, torch.float64)
    compare(given, torch.float32, torch.float32, padded(given))


def test_steps_too_small_and_too_large_for_a_sum() -> None:
    """softplus at both of its ends, where 1 + exp loses one of the two."""
    given = draw(1, 6, 4, 2)
    compare(given._replace(dt_bias=torch.tensor([-30.0, -8.0, 25.0, 3.0])), torch.float32, torch.float32)


def test_half_inputs_give_what_is_asked_for() -> None:
    for into in (torch.float32, torch.bfloat16):
        compare(draw(2, 9, 8, 4, gate=True), torch.bfloat16, into)


def test_only_the_input_learns() -> None:
    given = cast(CASES["taps"], torch.float64, torch.float64)
    frozen = Given(given.x, *(None if t is None else t.detach() for t in given[1:]))
    found = [torch.autograd.grad(selected_scan(g, g.x.dtype)[0].square().sum(), g.x)[0] for g in (given, frozen)]
    assert_close(*found)
    with torch.no_grad():
        assert_close(selected_scan(given, given.x.dtype), selection._plain(given, given.x.dtype, None))


@pytest.mark.parametrize("name", CASES)
def test_gradients_of_gradients(name: str) -> None:
    found = []
    for function in (selected_scan, selection._plain):
        given = cast(CASES[name], torch.float64, torch.float64)
        own = [t for t in given if t is not None]
        y, last = function(given, torch.float64, None)
        first = torch.autograd.grad(y.square().sum() + last.square().sum(), own, create_graph=True)
        found.append(torch.autograd.grad(torch.stack([g.square().sum() for g in first]).sum(), own))
    for a, b in zip(*found, strict=True):
        assert_close(a, b, gradient=True)


def test_one_of_the_outputs_alone() -> None:
    for which in (0, 1):
        pair = []
        for function in (selected_scan, selection._plain):
            given = cast(CASES["all"], torch.float64, torch.float64)
            out = function(given, torch.float64, None)[which]
            pair.append(torch.autograd.grad(out.sin().sum(), given.x)[0])
        assert_close(*pair, gradient=True)
