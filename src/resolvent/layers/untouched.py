"""Whether a module still does what its class says: asked by every path that computes the same without calling it.

A hook of any kind, a method set on the instance or another class (a subclass, LoRA, a parametrisation) is somebody's
own code, which such a path would go around.
"""

from __future__ import annotations

import torch
from torch import nn

from resolvent.runtime.graph.watched import GLOBAL_HOOKS, HOOKS

_READS = torch.__version__ >= "2.13"  # whether compilers read the names of an instance's attributes; 2.11's does not


def is_untouched(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Exactly of this class, and nobody watches or replaces its calls; its children are not looked at."""
    if not _READS and torch.compiler.is_compiling():
        return False
    return type(module) is kind and not (has_hooks(module) or has_own_methods(module) or any(GLOBAL_HOOKS))


def is_touched(model: nn.Module) -> bool:
    """Whether somebody watches a call of a module inside of it; half a microsecond for each module."""
    return any(GLOBAL_HOOKS) or any(map(has_hooks, model.modules()))


def has_hooks(module: nn.Module) -> bool:
    own = module.__dict__
    return any(own[name] for name in HOOKS)


def has_own_methods(module: nn.Module) -> bool:
    """Whether a function of its class, `forward` above all, is hidden by an attribute of the instance."""
    kind = type(module)
    return any(callable(getattr(kind, name, None)) for name in module.__dict__)
