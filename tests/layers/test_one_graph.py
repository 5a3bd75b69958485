"""One compiled graph serves every length: of whole passes, of padded ones, and of the chunks of a stream.

The compiler makes a graph for the first length, one for all others from the second on, and one for a single step: three
in all, however many lengths come.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from resolvent.conformance.cases import CASES, Case
from resolvent.conformance.runner import Settings
from resolvent.conformance.tolerance import VALUES, distance

LENGTHS = 131, 19, 77, 64, 128, 2, 1, 53, 1, 90
CHUNKS = 30, 19, 5, 2, 1, 1, 40, 3, 12
GRAPHS = 3
FIRST = list({case.layer: case for case in reversed(CASES)}.values())


def quick(*layers: str) -> list[Any]:
    return [case if case.layer in layers else pytest.param(case, marks=pytest.mark.slow) for case in FIRST]


SOME = quick("EMA")


def count_graphs(run: Callable[..., Any], dynamic: bool | None = None) -> tuple[Callable[..., Any], list[Any]]:
    """The function compiled, and the graphs that were made for it."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.aot_autograd import make_boxed_func

    graphs: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return aot_autograd(fw_compiler=lambda own, _: make_boxed_func(own))(graph, inputs)

    torch._dynamo.reset()
    return torch.compile(run, backend=backend, fullgraph=True, dynamic=dynamic), graphs


def named(case: Case) -> str:
    return case.layer


@pytest.mark.parametrize("case", SOME, ids=named)
def test_whole_and_padded_passes(case: Case) -> None:
    subject = case.subject(Settings())
    layer = subject.build()

    def run(x: Tensor, lengths: Tensor) -> tuple[Any, ...]:
        return layer(x)[0], layer(x, None, lengths)

    fast, graphs = count_graphs(run)
    for length in LENGTHS:
        x, lengths = subject.input(length), torch.tensor([length, (length + 1) // 2, 1])
        assert distance(fast(x, lengths), run(x, lengths)) <= VALUES[torch.float64], length
    assert len(graphs) <= GRAPHS


@pytest.mark.parametrize("case", quick("LRU", "L2RU"), ids=named)
def test_dynamic_from_the_start(case: Case) -> None:
    """`dynamic=True` makes symbols of numbers too: of arguments' defaults and of a module's floats."""
    subject = case.subject(Settings())
    layer = subject.build()
    fast, graphs = count_graphs(lambda x: layer(x)[0], dynamic=True)
    for length in LENGTHS[:2]:
        x = subject.input(length)
        with torch.no_grad():
            assert distance(fast(x), layer(x)[0]) <= VALUES[torch.float64], length
    assert len(graphs) <= GRAPHS


@pytest.mark.parametrize(
    "case", [case for case in SOME if getattr(case, "values", (case,))[0].traits.streams], ids=named
)
def test_chunks_of_a_stream(case: Case) -> None:
    subject = case.subject(Settings())
    layer = subject.build()
    fast, graphs = count_graphs(lambda x, state: layer(x, state))
    at, state, want = 0, layer.initial_state(3), layer.initial_state(3)
    x = subject.input(sum(CHUNKS))
    with torch.no_grad():
        for length in CHUNKS:
            chunk = x[:, at : at + length]
            (y, state), (right, want) = fast(chunk, state), layer(chunk, want)
            assert distance((y, state), (right, want)) <= VALUES[torch.float64], length
            at += length
    assert len(graphs) <= GRAPHS


@pytest.mark.parametrize("name", ["RGLRU", "ShortConv"])
def test_a_state_is_no_view_of_the_sequence(name: str) -> None:
    """Writing into y changes no state, and a state keeps no sequence alive."""
    case = next(case for case in CASES if case.layer == name)
    subject = case.subject(Settings())
    _, state = subject.build()(subject.input(100))
    for t in state.values() if isinstance(state, dict) else (state,):
        assert t.untyped_storage().nbytes() == t.numel() * t.element_size()
