"""Which lowered form a model has, and that of stacks of S5, LRU, Mamba and Mega blocks on a GPU in bf16.

`lowered` runs stacks of time-invariant single-input layers. Here are those whose blocks have a form of their own, each
in one module: what it covers, its weights in the dtype of the products, its pass. Channels stand first, (d, b, l), or,
for the selective scan, last. A form is a function of x and of tables made from the parameters alone, so that an attack
makes them once and differentiates in x alone, and a step made of it can be recorded (`training.captured`).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from resolvent.blocks import columns, fused
from resolvent.blocks.norm import LayerNorm, NoNorm
from resolvent.models import lowered, lowered_feed, lowered_mamba, lowered_mega, lowered_s5
from resolvent.models.head import Readout
from resolvent.models.verdict import Verdict
from resolvent.scan.fallback import left_to_torch
from resolvent.ssm.blocked import plain
from resolvent.ssm.two_sided import TwoSided

if TYPE_CHECKING:
    from resolvent.models.model import Model

KINDS: tuple[Any, ...] = (lowered_s5, lowered_mamba, lowered_mega, lowered_feed)
LONGEST = {lowered_mega: 2048}  # steps, where a pass keeps all scores


class Form(Protocol):
    """A model as a function of x and of tables: `form(x, form.tables(x.shape[1], dtype))` equals `model(x)`."""

    def tables(self, length: int, dtype: torch.dtype) -> Any: ...

    def kept_tables(self, length: int, dtype: torch.dtype) -> Any: ...

    def __call__(self, x: Tensor, tables: Any) -> Tensor: ...


@dataclass(frozen=True)
class Tables:
    """What a pass needs besides x, for one length and dtype."""

    dtype: torch.dtype
    entry: fused.Weights | tuple[Tensor, Tensor | None]  # fused with a norm, or weight and bias of a plain map
    blocks: tuple[Any, ...]

    def detached(self) -> Tables:
        return replace(self, entry=_still(self.entry), blocks=_still(self.blocks))


def _still(value: Any) -> Any:
    """Tensors, tables, and tuples of them, without gradients."""
    if isinstance(value, Tensor):
        return value.detach()
    if isinstance(value, tuple):
        parts = [_still(v) for v in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value.detached() if isinstance(value, TwoSided | fused.Weights) else value


class StackForm:
    """The form of one model whose blocks are all of KINDS."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.blocks: list[nn.Module] = list(model.tower.body.blocks)
        self.kinds = [_kind(block) for block in self.blocks]
        self.axis = int(self.kinds[0].AXIS)

    def tables(self, length: int, dtype: torch.dtype) -> Tables:
        """From the parameters as they are; differentiable where gradients are on."""
        tower = self.model.tower
        assert isinstance(tower.entry, nn.Linear)
        entry = fused.entry_weights(tower.entry, tower.input_norm, dtype) or (tower.entry.weight, tower.entry.bias)
        made = tuple(kind.weights(b, length, dtype) for b, kind in zip(self.blocks, self.kinds, strict=True))
        return Tables(dtype, entry, made)

    def kept_tables(self, length: int, dtype: torch.dtype) -> Tables:
        """The tables of the `frozen()` context around this call, or new ones."""
        found: Tables = self.model.tower.body.cached(f"form {length} {dtype}", lambda: self.tables(length, dtype))
        return found

    def __call__(self, x: Tensor, tables: Tables) -> Tensor:
        """Logits or values of x (b, l, c)."""
        h = self._entered(x, tables)
        for block, kind, weights in zip(self.blocks, self.kinds, tables.blocks, strict=True):
            h = kind.run(block, h, weights)
        head, at = self.model.head, 2 if self.axis == 0 else 1
        h = self._normed(h)
        wide = torch.promote_types(h.dtype, torch.float32)
        pooled = h.sum(at, dtype=wide) / h.shape[at] if head.pooling == "mean" else h.select(at, -1).to(wide)
        return head.out(head.hidden(pooled.t() if self.axis == 0 else pooled))

    def _entered(self, x: Tensor, tables: Tables) -> Tensor:
        if isinstance(tables.entry, fused.Weights):
            h = fused.entered(x, tables.entry)
        else:  # x itself is not rounded
            W, bias = tables.entry
            flat = x.permute(2, 0, 1).flatten(1).to(W.dtype)  # (c, b l)
            h = W @ flat if bias is None else torch.addmm(bias[:, None], W, flat)
            h = columns.norm(self.model.tower.input_norm, h.view(-1, *x.shape[:2]).to(tables.dtype))
        return h if self.axis == 0 else h.permute(1, 2, 0).contiguous()

    def _normed(self, h: Tensor) -> Tensor:
        norm = self.model.tower.final_norm
        if self.axis == 0 or isinstance(norm, NoNorm):
            return columns.norm(norm, h)
        assert isinstance(norm, LayerNorm)
        gamma, beta = norm.weight.to(h.dtype), norm.bias.to(h.dtype)
        return F.layer_norm(h, h.shape[-1:], gamma, beta, norm.eps)


def serving(model: Model, x: Tensor, lengths: Tensor | None) -> tuple[Form, torch.dtype] | None:
    """The form and its dtype where it is right for this call and quicker than the modules; else None."""
    found = lowered.serving(model, x, lengths)
    if found is not None:
        return found
    if lengths is not None or not isinstance(x, Tensor) or x.dim() != 3 or not x.is_cuda or not x.numel():
        return None
    if not torch.is_autocast_enabled("cuda") or torch.get_autocast_dtype("cuda") != torch.bfloat16:
        return None
    if not x.is_floating_point() or not plain() or not has_form(model):
        return None
    form = StackForm(model)
    if any(x.shape[1] > LONGEST.get(kind, x.shape[1]) for kind in form.kinds):
        left_to_torch(x, "the form of Mega", f"more than {LONGEST[lowered_mega]} steps", logging.INFO)
        return None
    return form, torch.bfloat16


def _kind(block: nn.Module) -> Any:
    return next((kind for kind in KINDS if kind.covers(block)), None)


def _suits(model: nn.Module) -> bool:
    """Whether every block is of KINDS, all in one layout."""
    tower: Any = getattr(model, "tower", None)
    head = getattr(model, "head", None)
    if tower is None or not isinstance(head, Readout) or head.pooling not in ("mean", "last"):
        return False
    kinds = [_kind(block) for block in tower.body.blocks]
    if None in kinds or len({kind.AXIS for kind in kinds}) > 1:
        return False
    last = kinds[0].AXIS == -1
    return (
        isinstance(tower.entry, nn.Linear)
        and isinstance(tower.input_norm, columns.NORMS)
        and isinstance(tower.final_norm, (LayerNorm, NoNorm) if last else columns.NORMS)
        and not (tower.training and tower.dropout.p > 0)
    )


has_form = Verdict(_suits)
