"""Whether a model has a form that bypasses its modules: asked before every pass, so the answer is cached.

Such a form reads the modules' weights and never calls them. It is valid if the whole model is described
(`describe`: no subclass, no parametrisation, no hook of any kind, no method set on an instance) and unchanged since.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from functools import cache
from operator import itemgetter
from typing import Any, Generic, NamedTuple, TypeVar

from torch import Tensor, nn

from resolvent.lowering.describe import describe
from resolvent.lowering.describer import FORWARDS, READS
from resolvent.lowering.program import Chain, Opaque, settle, walk
from resolvent.runtime.graph.watched import GLOBAL_HOOKS, HOOKS

_WEIGHTS = (nn.Parameter, Tensor, type(None))  # tensors under `functional_call`
T = TypeVar("T")


class Verdict(Generic[T]):
    """`judge(chain)` of a module's description in its present mode, recomputed when modules or settings change;
    None where one of them is not exactly ours."""

    def __init__(self, judge: Callable[[Chain], T | None]) -> None:
        self.judge = judge
        self._known: weakref.WeakKeyDictionary[nn.Module, tuple[list[_Seen], T | None]] = weakref.WeakKeyDictionary()

    def __call__(self, model: nn.Module) -> T | None:
        if any(GLOBAL_HOOKS) or _are_patched():
            return None
        known = self._known.get(model)
        if known is not None and _is_still_so(model, known[0]):
            return known[1]
        chain = _describe_whole(model)
        if chain is None:
            self._known.pop(model, None)
            return None
        found = self._known[model] = ([_Seen.of(m, model) for m in _below(model)], self.judge(chain))
        return found[1]


class _Seen(NamedTuple):
    """A module's state at the verdict, without hooks. The entry of the model itself holds no reference to it."""

    module: nn.Module | None  # None: the model itself
    kind: type
    size: int  # number of its attributes: a new one may be a method
    children: list[nn.Module | None]
    weights: list[type]
    read: Callable[[dict[str, Any]], Any]  # its mode and settings
    found: Any

    @staticmethod
    def of(module: nn.Module, model: nn.Module) -> _Seen:
        kind, own = type(module), module.__dict__
        children, weights = [*own["_modules"].values()], [*map(type, own["_parameters"].values())]
        read = _reader(READS.get(kind, ()))
        return _Seen(None if module is model else module, kind, len(own), children, weights, read, read(own))


def _are_patched() -> bool:
    """Whether a class of ours has been monkey-patched. Asked before every pass; any(...) takes twice the time."""
    for kind, forward in FORWARDS.items():  # noqa: SIM110
        if kind.forward is not forward:
            return True
    return False


_hooks = itemgetter(*HOOKS)


def _is_still_so(model: nn.Module, seen: list[_Seen]) -> bool:
    """Children are compared by identity: half a microsecond per module."""
    for module, kind, size, children, weights, read, found in seen:
        module = model if module is None else module
        own = module.__dict__
        if type(module) is not kind or len(own) != size or any(_hooks(own)) or read(own) != found:
            return False
        inner, held = own["_modules"], own["_parameters"]
        if (inner or children) and [*inner.values()] != children:
            return False
        if (held or weights) and [*map(type, held.values())] != weights:
            return False
    return True


@cache
def _reader(settings: tuple[str, ...]) -> Callable[[dict[str, Any]], Any]:
    return itemgetter("training", *settings)


def _describe_whole(model: nn.Module) -> Chain | None:
    """The description of a model all of which is known, in its present mode."""
    if not all(_is_plain_module(module) for module in _below(model)):
        return None
    program = describe(model)
    known = not any(isinstance(node, Opaque) for node in walk(program.chain))
    met = {*map(id, program.modules)}
    return settle(program.chain) if known and all(id(module) in met for module in _below(model)) else None


def _is_plain_module(module: nn.Module) -> bool:
    """Whether its weights are plain tensors, and it does not work in place."""
    weights = all(type(p) in _WEIGHTS for p in module._parameters.values())
    return weights and not getattr(module, "inplace", False)


def _below(model: nn.Module) -> Iterator[nn.Module]:
    """The model, then every module inside of it."""
    ahead = [model]
    while ahead:
        module = ahead.pop()
        yield module
        ahead += (child for child in module._modules.values() if child is not None)


def is_plain(x: Any) -> bool:
    """Whether kernels may read the tensor x: no subclass with its own operations, no lazy conj or neg view."""
    return (type(x) is Tensor or type(x) is nn.Parameter) and not x.is_neg()
