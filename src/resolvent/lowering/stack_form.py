"""A stack of residual blocks inside of somebody's own module, on a CPU: channels first throughout, as in `lowered`.

    class Mine(nn.Module):
        def forward(self, x): return self.out(self.body(self.enter(x))[0].mean(1))         body: blocks.Stack

Nothing is known of `Mine`, but its stack is described, and for short sequences of time-invariant single-input layers
runs the same products as a whole model would. The state after the sequence, which few ask for, is found when somebody
looks at it, from what the layers read and from their systems as they were: x and weights may be others by then.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from resolvent.blocks.block import Block, Layer
from resolvent.layers import siso
from resolvent.layers.siso import Bank
from resolvent.lowering import columns, lowered
from resolvent.lowering import program as p
from resolvent.lowering.cached_check import Verdict, is_plain
from resolvent.lowering.gpu import fused
from resolvent.lowering.program import Chain
from resolvent.ops.filter.operation import Filter
from resolvent.ops.filter.toeplitz import toeplitz
from resolvent.runtime.transforms import is_untransformed
from resolvent.ssm.impulse import impulse


@dataclass(frozen=True, eq=False)
class Tables:
    banks: tuple[Bank, ...]  # the layers' systems, in memory of their own
    layers: tuple[Filter, ...]
    blocks: tuple[fused.Weights | None, ...]


def serve(stack: Block, x: Tensor) -> tuple[Tensor, Any] | None:
    """y (b, l, d) of x and the state after it, from the zero state; None where the modules are right or quicker."""
    if not is_plain(x) or x.device.type != "cpu" or x.dim() != 3 or not x.numel():
        return None
    if stack.check_finite or not is_untransformed():
        return None
    if x.shape[1] > lowered.SHORT or x.shape[2] != stack.d_model or x.dtype != stack.dtype:
        return None
    blocks = None if torch.is_autocast_enabled("cpu") else stackable(stack)
    if blocks is None or min(map(lowered.longest_of, blocks)) < x.shape[1]:
        return None
    if not bool(torch.isfinite(x.detach().sum())):  # products take all steps, and 0 times NaN is NaN
        return None
    l, grad = x.shape[1], torch.is_grad_enabled()
    tables: Tables = stack.cached(f"stack {l}", lambda: _make_tables(blocks, l, x.dtype))
    h = x.permute(2, 0, 1).clone(memory_format=torch.contiguous_format)  # (d, b, l)
    read = []
    for block, layer, weights in zip(blocks, tables.layers, tables.blocks, strict=True):
        read.append(u := lowered.enter_block(block, h))
        h = lowered.run_block(block, h, u, layer) if weights is None else fused.post_norm_block(h, layer, weights)

    def find_state() -> Any:
        with torch.set_grad_enabled(grad):
            return _arrange(stack.known_spec(x.shape[0]), map(_find_end, blocks, tables.banks, read))

    return h.permute(1, 2, 0), LateState(find_state)


def _find_end(block: p.Skip, bank: Bank, u: Tensor) -> Any:
    """The state of a block's layer after u (d, b, l)."""
    layer: Layer = block.layer[0].module
    (_, b, l), h = u.shape, siso.end_state(bank, u.permute(1, 2, 0), layer.dtype)
    return (h, torch.full((b,), l)) if isinstance(layer.known_spec(b), tuple) else h  # softmax DSS counts its steps


def _arrange(spec: dict[str, Any], ends: Iterator[Any]) -> dict[str, Any]:
    """The states of layers, in order, as the state of the stack around them."""
    return {name: _arrange(part, ends) if isinstance(part, dict) else next(ends) for name, part in spec.items()}


def _make_tables(blocks: tuple[p.Skip, ...], l: int, dtype: torch.dtype) -> Tables:
    banks = tuple(block.layer[0].module._bank(l, torch.complex) for block in blocks)
    weights = tuple(fused.block_weights(block, dtype) for block in blocks)
    return Tables(banks, tuple(toeplitz(impulse(bank, l).to(dtype), dtype) for bank in banks), weights)


def _stack(chain: Chain) -> tuple[p.Skip, ...] | None:
    blocks = tuple(b for b in chain if columns.covers(b) and lowered.has_operator(b.layer))
    filters = all(isinstance(block.layer[0], p.Filter) for block in blocks)
    once = len({id(block.layer[0].module) for block in blocks}) == len(chain)  # a shared one has a state in each place
    return blocks if blocks and filters and once else None


stackable = Verdict(_stack)


class LateState(dict[str, Any]):
    """The state of a stack, found when it is first looked at."""

    def __init__(self, find: Callable[[], dict[str, Any]]) -> None:
        super().__init__()
        self._find: Callable[[], dict[str, Any]] | None = find

    def _found(self) -> dict[str, Any]:
        if self._find is not None:
            found, self._find = self._find(), None
            super().update(found)
        return self

    def __getitem__(self, name: str) -> Any:
        self._found()
        return super().__getitem__(name)

    def __iter__(self) -> Iterator[str]:
        self._found()
        return super().__iter__()

    def __len__(self) -> int:
        self._found()
        return super().__len__()

    def __contains__(self, name: object) -> bool:
        self._found()
        return super().__contains__(name)

    def __eq__(self, other: object) -> bool:
        self._found()
        return super().__eq__(other)

    def __repr__(self) -> str:
        self._found()
        return super().__repr__()

    def __or__(self, other: Any) -> Any:
        return dict(self) | other

    def __reduce__(self) -> Any:
        return OrderedDict, (), None, None, iter(self.items())  # which `torch.load` takes without trust

    def keys(self) -> Any:
        self._found()
        return super().keys()

    def values(self) -> Any:
        self._found()
        return super().values()

    def items(self) -> Any:
        self._found()
        return super().items()

    def get(self, name: str, default: Any = None) -> Any:
        self._found()
        return super().get(name, default)

    def copy(self) -> dict[str, Any]:
        return dict(self.items())
