"""A block is a layer made of layers: the same calls, with a dict of one state per inner layer."""

from __future__ import annotations

from abc import ABC
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor, nn

from resolvent.layers import checks
from resolvent.layers.contract import Layer, State


class Block(Layer, ABC):
    """Abstract. A concrete block creates its layers in `__init__`, then writes `_sequence` and `_step` with them.

    Inside `_sequence` the layers are *called*, so that forward hooks see their inputs and outputs, and each layer
    zeroes its own padding. `state` is a dict by layer name, `{}` initially; pass `state.get(name)` to each layer and
    return the dict of their new states.

    Examples:
        >>> issubclass(rv.blocks.Block, rv.layers.Layer)
        True
    """

    def layers(self) -> dict[str, Layer]:
        """The outermost layers inside, by dotted name."""
        return dict(outermost(self))

    def state_spec(self, batch: int) -> dict[str, Any]:
        return {name: layer.state_spec(batch) for name, layer in self.layers().items()}

    def initial_state(self, batch: int) -> State:
        if self.bidirectional:
            raise ValueError(checks.no_streaming(self, "initial_state"))
        checks.check_positive(f"{type(self).__name__}.initial_state", batch=batch)
        return {name: layer.initial_state(batch) for name, layer in self.layers().items()}

    def optim_groups(self) -> list[dict[str, Any]]:
        return merged_groups(self)

    def _precision(self, device_type: str) -> AbstractContextManager[Any]:
        return nullcontext()

    def _both_directions(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        return self._sequence(x, self._zero_state(x), lengths)[0]

    def _zero_state(self, x: Tensor) -> State:
        return {}  # each layer makes its own initial state; most need no zeros, which compiled graphs would store


def outermost(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, Layer]]:
    """Layers below `module` that are not inside another layer; one used in two places has a state for each."""
    for name, child in module._modules.items():  # `named_children` would skip repeated modules
        if isinstance(child, Layer):
            yield prefix + name, child
        elif child is not None:
            yield from outermost(child, f"{prefix}{name}.")


def merged_groups(module: nn.Module) -> list[dict[str, Any]]:
    """The optimiser groups of every layer inside, equal overrides merged; all other parameters in a default group.

    Examples:
        >>> len(rv.blocks.merged_groups(rv.blocks.Residual(rv.S5(4, 8)))) > 1
        True
    """
    return merge_groups((group for _, layer in outermost(module) for group in layer.optim_groups()), module)


def merge_groups(offered: Iterable[dict[str, Any]], module: nn.Module) -> list[dict[str, Any]]:
    """Merge groups with equal overrides, each parameter in the first that names it; the rest form a default group."""
    groups: dict[tuple[tuple[str, Any], ...], list[nn.Parameter]] = {(): []}
    seen: set[int] = set()
    for group in offered:
        key = tuple(sorted((name, value) for name, value in group.items() if name != "params"))
        new = [p for p in group["params"] if id(p) not in seen]
        seen.update(map(id, new))
        groups.setdefault(key, []).extend(new)
    groups[()] += [p for p in module.parameters() if id(p) not in seen]
    return [{"params": params, **dict(key)} for key, params in groups.items() if params]


__all__ = ["Block", "Layer", "State", "merged_groups", "outermost"]
