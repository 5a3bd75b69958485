"""Whether a module still behaves as its class defines; asked by every path that computes the same without calling it.

A hook of any kind, a method set on the instance or another class (a subclass, LoRA, a parametrisation) is user code
that such a path would bypass.
"""

from __future__ import annotations

import torch
from torch import nn

from resolvent.runtime.graph.watched import GLOBAL_HOOKS, HOOKS

_READS = torch.__version__ >= "2.13"  # whether torch.compile can trace reads of instance attribute names; 2.11 cannot


def is_untouched(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Exactly of this class, without hooks or replaced methods; its children are not checked."""
    if not _READS and torch.compiler.is_compiling():
        return False
    return type(module) is kind and not (has_hooks(module) or has_own_methods(module) or any(GLOBAL_HOOKS))


def is_touched(model: nn.Module) -> bool:
    """Whether any module of the model has a hook; takes half a microsecond per module."""
    return any(GLOBAL_HOOKS) or any(map(has_hooks, model.modules()))


def has_hooks(module: nn.Module) -> bool:
    own = module.__dict__
    return any(own[name] for name in HOOKS)


def has_own_methods(module: nn.Module) -> bool:
    """Whether an instance attribute shadows a method of the class, above all `forward`."""
    kind = type(module)
    return any(callable(getattr(kind, name, None)) for name in module.__dict__)
