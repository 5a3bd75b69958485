"""A module with the same options whose parameters are new leaves sharing the memory of the old ones.

A recording must not meet an older autograd graph, whose leaves keep the stream on which they were created; and the
module itself stays unchanged for other users. A replica references its parameters' memory, but not the module.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

Leaves = dict[nn.Parameter, nn.Parameter]


def replicate(module: nn.Module) -> tuple[nn.Module, Leaves]:
    """The replica, and each parameter of the module with its replacement."""
    leaves = {p: nn.Parameter(p.detach(), p.requires_grad) for p in module.parameters()}
    return replicate_with(module, leaves, {}), leaves


def replicate_with(module: nn.Module, leaves: Mapping[Any, Any], made: dict[nn.Module, nn.Module]) -> nn.Module:
    if module in made:  # a module with several names
        return made[module]
    own = made[module] = module.__new__(type(module))
    own.__dict__ = {name: _replace(value, leaves) for name, value in module.__dict__.items()}
    own.__dict__.pop("_compiled_call_impl", None)  # it would call the original module
    held = module._modules.items()
    own._parameters = {name: None if p is None else leaves[p] for name, p in module._parameters.items()}
    own._buffers = dict(module._buffers)
    own._modules = {name: None if child is None else replicate_with(child, leaves, made) for name, child in held}
    return own


def _replace(value: Any, leaves: Mapping[Any, Any]) -> Any:
    """Replace parameters in lists, which torch's recurrent units keep in addition."""
    if type(value) is not list:
        return value
    return [leaves.get(item, item) if isinstance(item, nn.Parameter) else item for item in value]


def find_leaves(y: Tensor) -> set[int]:
    """The ids of all leaves of the graph of y."""
    found, seen, rest = set[int](), set[Any](), [y.grad_fn]
    while rest:
        node = rest.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if leaf is not None:
            found.add(id(leaf))
        rest += [following for following, _ in node.next_functions]
    return found
