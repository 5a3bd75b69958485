"""The blocked pass under torch.compile, continued within one graph: gradients of the tables meet states of the graph.

Autograd saves the conjugate of a complex state, which in memory is the state itself and a mark. Where its strides are
not those that inductor gave it, inductor copies the memory into the strides that were asked for and loses the mark: the
gradient is then silently wrong. Contiguous states are never copied.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func

from helpers import assert_close
from resolvent.ops.blocked import operation as blocked
from resolvent.ops.blocked.tables import DiagonalBank, diagonal_blocks

LENGTHS = torch.tensor([7, 3])


@pytest.fixture(autouse=True)
def _fresh_compiler() -> None:
    torch._dynamo.reset()


def numbers(*shape: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()


def power(steps: int | Tensor, lam: Tensor, h: Tensor) -> tuple[Tensor, ...]:
    """A^steps of a state that is a transposed view: powers (d, T, n, 2), h (b, d, 2n)."""
    powers = torch.view_as_complex(lam * 2)
    return (blocked.DiagonalCarry(powers, powers[:, -1]).by((h * 2).transpose(0, 1), steps),)


def onward(lengths: Tensor | None, lam: Tensor, u: Tensor) -> tuple[Tensor, ...]:
    """A pass and a second one from where the first ended, in blocks of four steps: lam (d, n, 2), u (b, l, d)."""
    z = torch.view_as_complex(lam)
    blocks = diagonal_blocks(DiagonalBank(z / (1 + z.abs()), z), 4, torch.float64)
    zero = u.new_zeros(u.shape[0], u.shape[2], 2 * z.shape[1])
    y, end = blocked.run(blocks, u, zero, lengths)
    return y, end, *blocked.run(blocks, u, end, lengths)


CASES: dict[str, tuple[Callable[..., Any], int | Tensor | None, tuple[int, ...], tuple[int, ...]]] = {
    "one power": (power, 3, (3, 4, 3, 2), (2, 3, 6)),
    "a power for each": (power, torch.tensor([1, 4]), (3, 4, 3, 2), (2, 3, 6)),
    "one block": (onward, None, (3, 2, 2), (2, 3, 3)),
    "blocks": (onward, None, (3, 2, 2), (2, 7, 3)),
    "padded blocks": (onward, LENGTHS, (3, 2, 2), (2, 7, 3)),
}


SOME_SLOW = ["one power", *(pytest.param(name, marks=pytest.mark.slow) for name in list(CASES)[1:])]


def derived(run: Callable[..., tuple[Tensor, ...]], setting: Any, tensors: list[Tensor]) -> list[Tensor]:
    out = run(setting, *tensors)
    sums = [(y * torch.cos(torch.arange(y.numel(), dtype=y.dtype).reshape(y.shape))).sum().sin() for y in out]
    return [*out, *torch.autograd.grad(torch.stack(sums).sum(), tensors)]


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore:Torchinductor does not support code generation for complex operators")
def test_a_graph_that_goes_on_from_its_own_state(name: str) -> None:
    run, setting, *shapes = CASES[name]
    tensors = [numbers(*shape, seed=i) for i, shape in enumerate(shapes)]
    fast = torch.compile(run, fullgraph=True, dynamic=False, backend="inductor")
    assert_close(derived(fast, setting, tensors), derived(run, setting, tensors), gradient=True)


@pytest.mark.parametrize("name", SOME_SLOW)
def test_real_states_become_complex_ones_contiguously(name: str) -> None:
    """What the compiler must not have to lay out anew, seen in the graph without compiling it."""
    run, setting, *shapes = CASES[name]
    views: list[Tensor] = []

    def look(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        kind = torch.ops.aten.view_as_complex.default
        views.extend(node.meta["val"] for node in graph.graph.nodes if node.target is kind)
        return make_boxed_func(graph)

    fast = torch.compile(run, fullgraph=True, dynamic=False, backend=aot_autograd(fw_compiler=look))
    derived(fast, setting, [numbers(*shape, seed=i) for i, shape in enumerate(shapes)])
    assert views
    assert all(z.is_contiguous() for z in views)
