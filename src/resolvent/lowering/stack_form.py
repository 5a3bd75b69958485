"""A stack of residual blocks inside a user's module, on a CPU: channels first throughout, as in `lowered`.

    class Mine(nn.Module):
        def forward(self, x): return self.out(self.body(self.enter(x))[0].mean(1))         body: blocks.Stack

`Mine` is unknown, but its stack is described, and for short sequences of time-invariant single-input layers it runs
the same products as a whole model would. The state after the sequence, rarely needed, is computed when it is first
accessed, from the layers' inputs and copies of their systems: x and weights may have changed by then.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree

from resolvent.blocks.block import Block, Layer
from resolvent.layers import siso
from resolvent.layers.siso import Bank
from resolvent.lowering import columns, lowered
from resolvent.lowering import program as p
from resolvent.lowering.cached_check import Verdict, is_plain
from resolvent.lowering.gpu import fused
from resolvent.lowering.program import Chain
from resolvent.ops.filter import Filter, toeplitz
from resolvent.runtime.transforms import is_untransformed, without_autocast
from resolvent.ssm.impulse import impulse


@dataclass(frozen=True, eq=False)
class Tables:
    banks: tuple[Bank, ...]  # the layers' systems, copied
    layers: tuple[Filter, ...]
    blocks: tuple[fused.Weights | None, ...]


def serve(stack: Block, x: Tensor) -> tuple[Tensor, Any] | None:
    """y (b, l, d) of x and the state after it, from the zero state; None if the modules must run or are faster."""
    if not is_plain(x) or x.device.type != "cpu" or x.dim() != 3 or not x.numel():
        return None
    if stack.check_finite or not is_untransformed():
        return None
    if x.shape[1] > lowered.SHORT or x.shape[2] != stack.d_model or x.dtype != stack.dtype:
        return None
    blocks = None if torch.is_autocast_enabled("cpu") else stackable(stack)
    if blocks is None or min(map(lowered.longest_of, blocks)) < x.shape[1]:
        return None
    if not bool(torch.isfinite(x.detach().sum())):  # products use all steps, and 0 times NaN is NaN
        return None
    l, grad, inference = x.shape[1], torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    tables: Tables = stack.cached(f"stack {l}", lambda: _make_tables(blocks, l, x.dtype))
    h = x.permute(2, 0, 1).clone(memory_format=torch.contiguous_format)  # (d, b, l)
    read = []
    for block, layer, weights in zip(blocks, tables.layers, tables.blocks, strict=True):
        read.append(u := lowered.enter_block(block, h))
        h = lowered.run_block(block, h, u, layer) if weights is None else fused.post_norm_block(h, layer, weights)

    def find_state() -> Any:
        with torch.inference_mode(inference), torch.set_grad_enabled(grad), without_autocast("cpu"):  # as in the call
            return _arrange(stack.known_spec(x.shape[0]), map(_find_end, blocks, tables.banks, read))

    return h.permute(1, 2, 0), LateState(find_state)


def _find_end(block: p.Skip, bank: Bank, u: Tensor) -> Any:
    """The state of a block's layer after u (d, b, l)."""
    layer: Layer = block.layer[0].module
    (_, b, l), h = u.shape, siso.end_state(bank, u.permute(1, 2, 0), u.dtype)
    counts = isinstance(layer.known_spec(b), tuple)  # softmax DSS counts its steps
    return (h, torch.full((b,), l, device=u.device)) if counts else h


def _arrange(spec: dict[str, Any], ends: Iterator[Any]) -> dict[str, Any]:
    """The layers' states, in order, as the stack's state."""
    return {name: _arrange(part, ends) if isinstance(part, dict) else next(ends) for name, part in spec.items()}


def _make_tables(blocks: tuple[p.Skip, ...], l: int, dtype: torch.dtype) -> Tables:
    banks = tuple(block.layer[0].module._bank(l, torch.complex) for block in blocks)
    weights = tuple(fused.block_weights(block, dtype) for block in blocks)
    return Tables(banks, tuple(toeplitz(impulse(bank, l).to(dtype), dtype) for bank in banks), weights)


def _stack(chain: Chain) -> tuple[p.Skip, ...] | None:
    blocks = tuple(b for b in chain if columns.covers(b) and lowered.has_operator(b.layer))
    filters = all(isinstance(block.layer[0], p.Filter) for block in blocks)
    once = len({id(block.layer[0].module) for block in blocks}) == len(chain)  # a shared one has a state per use
    return blocks if blocks and filters and once else None


stackable = Verdict(_stack)


class FoundState(dict[str, Any]):
    """The state of a stack, already computed."""

    def __reduce__(self) -> Any:
        return OrderedDict, (), None, None, iter(self.items())  # which `torch.load` accepts with weights_only


class LateState(FoundState):
    """The state of a stack, computed on first access."""

    def __init__(self, find: Callable[[], dict[str, Any]]) -> None:
        super().__init__()
        self._find: Callable[[], dict[str, Any]] | None = find

    def _find_all(self) -> None:
        if (find := self._find) is not None:
            if torch.compiler.is_compiling():
                raise RuntimeError("Stack: expected a state that was looked at before compiled code; give dict(state).")
            if "torch._dynamo" in sys.modules:  # which would compile it with this call's values as constants
                find = torch.compiler.disable(find)
            dict.update(self, find())
            self.__class__, self._find = FoundState, None  # type: ignore[assignment]  # with dict's own methods


def _on_found(name: str) -> Any:
    """The dict method of this name, computing the state first."""
    method = getattr(dict, name)

    def call(self: LateState, *given: Any, **named: Any) -> Any:
        self._find_all()
        return method(self, *given, **named)

    return call


for _name in (
    "__getitem__", "__setitem__", "__delitem__", "__contains__", "__iter__", "__reversed__", "__len__", "__repr__",
    "__eq__", "__ne__", "__or__", "__ror__", "__ior__", "keys", "values", "items", "get", "pop", "popitem",
    "setdefault", "update", "clear", "copy",
):  # fmt: skip
    setattr(LateState, _name, _on_found(_name))
for _kind in (FoundState, LateState):
    _pytree.register_pytree_node(_kind, _pytree._dict_flatten, _pytree._dict_unflatten)
