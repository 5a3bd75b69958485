"""The interface of lowered forms, and the form of stacks of S5, LRU, Mamba and Mega blocks on a GPU in bf16.

`lowered` runs stacks of time-invariant single-input layers, and falls back to this module for stacks whose blocks have
forms of their own, each in one module: what it covers, its weights in the dtype of the products, its pass. Channels
are first, (d, b, l), or, for the selective scan, last. A form is a function of x and of tables made from the
parameters alone, so that an attack makes them once and differentiates in x alone, and a step made of it can be
recorded (`training.step.cuda_graph`).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from resolvent.lowering import columns, eager
from resolvent.lowering import program as p
from resolvent.lowering.cached_check import Verdict
from resolvent.lowering.gpu import feed, fused, mamba, mega, s5
from resolvent.lowering.program import Chain, Node
from resolvent.ops.filter import TwoSided
from resolvent.runtime.fallback import left_to_torch
from resolvent.runtime.transforms import is_untransformed

KINDS: tuple[Any, ...] = (s5, mamba, mega, feed)
LONGEST = {mega: 2048}  # steps, as a pass keeps all scores


class Form(Protocol):
    """A model as a function of x and of tables: `form(x, form.tables(x.shape[1], dtype))` equals `model(x)`."""

    def tables(self, length: int, dtype: torch.dtype) -> Any: ...

    def kept_tables(self, length: int, dtype: torch.dtype) -> Any: ...

    def __call__(self, x: Tensor, tables: Any) -> Tensor: ...


@dataclass(frozen=True)
class Tables:
    """Everything a pass needs besides x, for one length and dtype."""

    dtype: torch.dtype
    entry: fused.Weights | tuple[Tensor, Tensor | None]  # fused with a norm, or weight and bias of a linear map
    blocks: tuple[Any, ...]

    def detached(self) -> Tables:
        return replace(self, entry=_still(self.entry), blocks=_still(self.blocks))


def _still(value: Any) -> Any:
    """Detach tensors, tables, and tuples of them."""
    if isinstance(value, Tensor):
        return value.detach()
    if isinstance(value, tuple):
        parts = [_still(v) for v in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value.detached() if isinstance(value, TwoSided | fused.Weights) else value


@dataclass(frozen=True, eq=False)
class Blocks:
    """A model whose blocks are all of KINDS, in one layout."""

    entry: p.Linear
    network: p.Network
    head: p.Head
    kinds: list[Any]


class StackForm:
    """The form of a model whose blocks are all of KINDS."""

    def __init__(self, model: nn.Module) -> None:
        found = has_form(model)
        if found is None:
            raise ValueError(f"StackForm: {type(model).__name__} has no such form; see has_form(model).")
        self.form, self.network = found, found.network
        self.blocks: Chain = found.network.body
        self.kinds = found.kinds
        self.axis = int(self.kinds[0].AXIS)

    def tables(self, length: int, dtype: torch.dtype) -> Tables:
        """Tables of the current parameters; differentiable if gradients are enabled."""
        entry = fused.entry_weights(self.form.entry, self.network.start, dtype)
        made = tuple(kind.weights(b, length, dtype) for b, kind in zip(self.blocks, self.kinds, strict=True))
        return Tables(dtype, entry or self.form.entry.read(self.form.entry.module), made)

    def kept_tables(self, length: int, dtype: torch.dtype) -> Tables:
        """The tables of the `frozen()` context around this call, or new ones."""
        keeper = self.network.module
        found: Tables = keeper.cached(f"form {length} {dtype}", lambda: self.tables(length, dtype))
        return found

    def __call__(self, x: Tensor, tables: Tables) -> Tensor:
        """Logits or values of x (b, l, c)."""
        h = self._entered(x, tables)
        for block, kind, weights in zip(self.blocks, self.kinds, tables.blocks, strict=True):
            h = kind.run(block, h, weights)
        at, head = 2 if self.axis == 0 else 1, self.form.head
        h = self._normed(h)
        wide = torch.promote_types(h.dtype, torch.float32)
        mean = self.network.pool.kind == "mean"
        pooled = columns.average(h, at) if mean else h.select(at, -1).to(wide)
        return eager.follow((*head.hidden, *head.out), pooled.t() if self.axis == 0 else pooled)

    def _entered(self, x: Tensor, tables: Tables) -> Tensor:
        if isinstance(tables.entry, fused.Weights):
            h = fused.enter_rows(x, tables.entry)
        else:  # x itself is not rounded
            W, bias = tables.entry
            flat = x.permute(2, 0, 1).flatten(1).to(W.dtype)  # (c, b l)
            h = W @ flat if bias is None else torch.addmm(bias[:, None], W, flat)
            h = columns.norm(self.network.start, h.view(-1, *x.shape[:2]).to(tables.dtype))
        return h if self.axis == 0 else h.permute(1, 2, 0).contiguous()

    def _normed(self, h: Tensor) -> Tensor:
        end = self.network.end
        if self.axis == 0 or not end:
            return columns.norm(end, h)
        norm = end[0].module
        gamma, beta = norm.weight.to(h.dtype), norm.bias.to(h.dtype)
        return F.layer_norm(h, h.shape[-1:], gamma, beta, norm.eps)


def serving(model: nn.Module, x: Tensor) -> tuple[Form, torch.dtype] | None:
    """The form for a plain x (b, l, c) on a GPU and its dtype, if faster than the modules; else None."""
    if not torch.is_autocast_enabled("cuda") or torch.get_autocast_dtype("cuda") != torch.bfloat16:
        return None
    if not is_untransformed() or not has_form(model):
        return None
    form = StackForm(model)
    if any(x.shape[1] > LONGEST.get(kind, x.shape[1]) for kind in form.kinds):
        left_to_torch(x, "the form of Mega", f"more than {LONGEST[mega]} steps", logging.INFO)
        return None
    return form, torch.bfloat16


def _kind(block: Node) -> Any:
    return next((kind for kind in KINDS if kind.covers(block)), None)


def _form(chain: Chain) -> Blocks | None:
    """The model's parts, if every block is of KINDS, all in one layout."""
    match chain:
        case (p.Network(entry=(p.Linear() as entry,), dropout=(), head=p.Head() as head) as network,):
            kinds = [_kind(block) for block in network.body]
            if None in kinds or len({kind.AXIS for kind in kinds}) > 1 or network.pool.kind not in ("mean", "last"):
                return None
            ends = ("layer",) if kinds[0].AXIS == -1 else columns.NORMS
            if columns.is_norm(network.start) and columns.is_norm(network.end, ends):
                return Blocks(entry, network, head, kinds)
    return None


has_form = Verdict(_form)
