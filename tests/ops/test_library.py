"""What operators of ours share: outputs apart from one another, and calls past the dispatcher where nobody watches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.profiler import profile
from torch.utils._python_dispatch import TorchDispatchMode

from resolvent.ops.library import separate, shorten


@pytest.fixture(scope="module")
def operator() -> Iterator[Any]:
    """x + 1 by the dispatcher, x + 2 past it."""
    library = torch.library.Library("resolvent_test", "FRAGMENT")
    library.define("add(Tensor x) -> Tensor")
    library.impl("add", lambda x: x + 1, "CompositeExplicitAutograd")
    torch.library.register_fake("resolvent_test::add", lambda x: x.new_empty(x.shape), lib=library)
    own = torch.ops.resolvent_test.add.default
    shorten(own, lambda x: x + 2)
    yield own
    library._destroy()


class Dispatches(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(function))
        return function(*args, **(kwargs or {}))


class Functions(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(function))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", [Dispatches, Functions])
def test_a_mode_sees_the_call(operator: Any, kind: Any) -> None:
    with torch.no_grad(), kind() as mode:
        operator(torch.zeros(3))
    assert any("resolvent_test" in name for name in mode.seen)


@pytest.mark.parametrize(
    ("around", "added"),
    [(nullcontext, 2), (profile, 1), (torch.enable_grad, 1)],
    ids=["nobody", "profiler", "gradients"],
)
def test_who_watches_is_not_passed_by(operator: Any, around: Any, added: int) -> None:
    context: AbstractContextManager[Any] = around()
    with torch.no_grad(), context:
        assert operator(torch.zeros(3)).tolist() == [added] * 3


def test_what_is_no_plain_tensor_is_dispatched(operator: Any) -> None:
    x = torch.zeros(3)
    with torch.no_grad():
        assert operator(nn.Parameter(x)).tolist() == [1] * 3
        assert operator(x=x).tolist() == [1] * 3
        assert torch.vmap(operator)(x).tolist() == [1] * 3
        with FakeTensorMode() as mode:
            fake = mode.from_tensor(x)
        assert type(operator(fake)) is type(fake)


def test_outputs_share_no_memory() -> None:
    base = torch.arange(6.0).view(2, 3)
    x = torch.ones(3)
    found: list[Tensor] = separate([base[0], base[1], x, base.mT], x)
    assert len({t.untyped_storage().data_ptr() for t in (*found, x)}) == 5
    assert [t.tolist() for t in found] == [base[0].tolist(), base[1].tolist(), [1.0] * 3, base.mT.tolist()]
    assert all(t.is_contiguous() for t in found)
