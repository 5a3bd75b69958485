"""Whether a model has a form that goes around its modules: asked before every pass, so the answer is remembered."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from torch import nn

_SETTINGS = ("p", "check_finite", "pooling")  # of a module, which a user may change: a rate of dropout, for one


class Verdict:
    """`judge(model)`, asked again when its modules are others, or set in another way; no (0) where a hook watches."""

    def __init__(self, judge: Callable[[nn.Module], int]) -> None:
        self.judge = judge
        self._known: weakref.WeakKeyDictionary[nn.Module, tuple[Any, int]] = weakref.WeakKeyDictionary()

    def __call__(self, model: nn.Module) -> int:
        key = _key(model)
        if key is None:
            return 0
        known = self._known.get(model)
        if known is None or known[0] != key:
            known = self._known[model] = (key, self.judge(model))
        return known[1]


def _key(model: nn.Module) -> list[Any] | None:
    """All modules with their settings, or None where a hook watches one; `model.modules()` alone takes ten times as
    long."""
    key: list[Any] = []
    ahead = [model]
    while ahead:
        module = ahead.pop()
        if module._forward_hooks or module._forward_pre_hooks:
            return None
        own = module.__dict__
        key += (id(module), module.training, *map(own.get, _SETTINGS))
        ahead += (child for child in module._modules.values() if child is not None)
    return key
