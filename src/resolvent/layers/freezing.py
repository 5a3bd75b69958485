"""Tables derived from parameters alone: computed in every pass, or once inside `frozen()`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import torch
from torch import Tensor, nn

from resolvent.layers.precision import build_in_float32
from resolvent.runtime.transforms import as_traced, is_recorded

_ABSENT = object()


class Freezable(nn.Module):
    """Abstract. A module that gets its tables from `cached` takes part in `frozen()`."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__init__" in cls.__dict__:
            cls.__init__ = build_in_float32(cls.__init__)  # type: ignore[method-assign]

    def __init__(self) -> None:
        super().__init__()
        self._holders = 0  # how many frozen() contexts are open
        self._tables: dict[str, Any] | None = None  # cached inside `frozen()`; None outside
        self.register_load_state_dict_pre_hook(_refuse_load_when_frozen)

    @property
    def is_frozen(self) -> bool:
        """Whether the module is inside an open `frozen()` context."""
        return self._tables is not None

    @property
    def frozen_tables(self) -> dict[str, Any] | None:
        """The tables cached by `frozen()`; None outside it."""
        return self._tables

    def cached(self, key: str, compute: Callable[[], Any]) -> Any:
        """A table that depends on parameters alone: computed now, or once per `frozen()` context."""
        tables = self._tables  # read once: another thread may leave the context meanwhile
        if tables is None:
            return compute()
        found = tables.get(key, _ABSENT)
        if found is _ABSENT and is_recorded(*self._parameters.values()):  # a tracer's values must not be kept
            return compute()
        if found is _ABSENT:
            with torch.inference_mode(False), torch.no_grad():  # a later call may want gradients through it
                found = tables[key] = compute()
        return found

    def _derive_all(self) -> None:
        """Fill the cached tables before the first call. Optional: they are otherwise filled on use."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        tables = self._tables
        if tables is not None:
            tables.clear()  # they were made for the old dtype and device
        super()._apply(fn, recurse)
        return self

    def __getstate__(self) -> dict[str, Any]:
        if self._tables is not None:
            raise RuntimeError(
                f"{type(self).__name__}: copied or pickled inside frozen(); the copy would stay frozen for ever. "
                "Leave the frozen() context first."
            )
        return self.__dict__.copy()


@contextmanager
def frozen(module: nn.Module) -> Iterator[nn.Module]:
    """Freeze a whole model: tables are computed once and parameters get no gradients, as an attack's inner loop needs.

    It applies to the module, not to a thread. Contexts may nest and overlap: the last to close unfreezes. Do not change
    parameters inside, in place or by `functional_call`: the tables would keep the old values.

    Examples:
        >>> layer = rv.S4D(4, 8)
        >>> x = torch.randn(1, 20, 4, requires_grad=True)
        >>> with rv.frozen(layer):
        ...     layer(x)[0].sum().backward()
        >>> x.grad.shape, [p.grad for p in layer.parameters() if p.grad is not None]
        (torch.Size([1, 20, 4]), [])
    """
    held = [m for m in module.modules() if isinstance(m, Freezable)]
    parameters = _hold(held, list(module.parameters()))
    try:
        for each in held:
            each._derive_all()
        yield module
    finally:
        _release(held, parameters)


@contextmanager
def constant_tables(module: nn.Module, *inputs: Any) -> Iterator[nn.Module]:
    """`frozen`, with the tables in the form that a traced pass takes, so that `torch.export` sees constants.

    `inputs` are those given to the export; one pass over them fills the tables.
    """
    with frozen(module):
        with torch.no_grad(), as_traced():
            module(*inputs)
        yield module


_freezing = threading.Lock()
_frozen_parameters: dict[int, list[Any]] = {}  # id -> [parameter, open contexts], for those that were trainable


def _hold(modules: list[Freezable], parameters: list[nn.Parameter]) -> list[nn.Parameter]:
    """Open one more context; returns the parameters that it must restore."""
    with _freezing:
        held = [p for p in parameters if p.requires_grad or id(p) in _frozen_parameters]
        for p in held:
            _frozen_parameters.setdefault(id(p), [p, 0])[1] += 1
            p.requires_grad_(False)
        for module in modules:
            module._holders += 1
            if module._tables is None:
                module._tables = {}
    return held


def _release(modules: list[Freezable], parameters: list[nn.Parameter]) -> None:
    with _freezing:
        for p in parameters:
            entry = _frozen_parameters[id(p)]
            entry[1] -= 1
            if entry[1] == 0:
                del _frozen_parameters[id(p)]
                p.requires_grad_(True)
        for module in modules:
            module._holders -= 1
            if module._holders == 0:
                module._tables = None


def _refuse_load_when_frozen(module: nn.Module, *_: Any) -> None:
    if isinstance(module, Freezable) and module._tables is not None:
        raise RuntimeError(
            f"{type(module).__name__}: weights were loaded inside frozen(), whose tables would stay old. "
            "Leave the frozen() context first."
        )
