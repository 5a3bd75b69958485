"""A residual stack of time-invariant layers in one layout, channels first: the form that training and attacks run.

`lowered(model)` reads the modules of a `Model` and computes what its forward computes, as a function of x and of tables
that depend on the parameters alone:

    entry -> norm -> [ x + mixer(ads(k * norm(x))) ] or [ norm(x + mixer(ads(k * x))) ] -> norm -> pool -> head

with activations (d, b, l) throughout: the convolution with the layer's impulse response k is a batched product with
Toeplitz matrices, of blocks of it where a GPU meets long sequences; the maps over channels are plain products, and no
transpose stands between them. Tables are made once per `frozen()` context, so an attack pays for them once and
differentiates in x alone. On a CPU such a pass walks through the whole stack with eight samples at a time
(`blocks.cohort`); there alone, blocks of S5 and LRU, whose layer is a recurrence in place of k, have this form too.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from resolvent.blocks import climb, cohort, columns, fused
from resolvent.blocks.climb import Path
from resolvent.blocks.cohort_layout import WIDTH, Plan
from resolvent.blocks.cohort_sheet import Operator, Parts
from resolvent.blocks.recurrence import Recurrence, recurrence
from resolvent.blocks.residual import Residual
from resolvent.layers.dss import DSS
from resolvent.layers.lru import LRU
from resolvent.layers.s4 import S4
from resolvent.layers.s4d import S4D
from resolvent.layers.s5 import S5
from resolvent.models.head import Readout
from resolvent.models.responses import impulse_responses, linked_responses
from resolvent.models.verdict import Verdict
from resolvent.scan.fallback import left_to_torch
from resolvent.ssm.blocked import plain
from resolvent.ssm.chained import chained
from resolvent.ssm.filter import Filter
from resolvent.ssm.toeplitz import SLICE, served, tell, toeplitz

if TYPE_CHECKING:
    from resolvent.models.model import Model

CONVOLVED, RECURRENT = (S4, S4D, DSS), (S5, LRU)
# Steps up to which whole Toeplitz products beat blocks on a GPU. In float32 they also lose their accuracy beyond: what
# matrix units cut off then sums to more than float32 allows.
LONGEST = {torch.bfloat16: 2048, torch.float32: 1024}
# ms of a pass and back by steps of a block, of a diagonal and of a dense system (benchmarks/crossover.py, 2^18 samples)
BLOCKS = {
    torch.bfloat16: ({256: 0.40, 512: 0.35, 1024: 0.37}, {256: 1.01, 512: 0.69, 1024: 0.56}),
    torch.float32: ({256: 1.00, 512: 1.08, 1024: 1.38}, {256: 1.60, 512: 1.42, 1024: 1.56}),
}
SHORT = 64  # steps up to which a CPU's products beat the layers' own pass
WALKED = 784  # the same on a CPU for a walk by cohorts
ALONE = 256  # ... even for a single sample, which costs a walk as much as a whole cohort
RECURRED = 4096  # the same for a stack of recurrences alone, whose walk costs as much per step at any length
MANY = 128  # steps of all samples from which it makes up for laying out the parameters, if that is not done before
WALKABLE = 2  # the verdict on a form that has such a walk


@dataclass(frozen=True)
class Tables:
    """What a pass needs besides x, for one length and dtype: per block what its layer does, and its fused weights."""

    dtype: torch.dtype
    layers: tuple[Filter | Recurrence, ...]
    entry: fused.Weights | None
    blocks: tuple[fused.Weights | None, ...]
    parts: Parts
    learnt: bool  # parameters are differentiated through these tables
    source: Tables | None = None  # what these were detached from

    @cached_property
    def plan(self) -> Plan | None:
        """What a walk by cohorts needs, where the form has one."""
        if self.source is None:
            return cohort.plan(self.parts, self.dtype, self.learnt)
        return None if self.source.plan is None else self.source.plan.still()

    def detached(self) -> Tables:
        return replace(
            self,
            learnt=False,
            source=self,
            layers=tuple(t.detached() for t in self.layers),
            entry=None if self.entry is None else self.entry.detached(),
            blocks=tuple(None if w is None else w.detached() for w in self.blocks),
        )


class Lowered:
    """The lowered form of one model: `Lowered(model)(x, tables)` equals `model(x)`."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.blocks: list[Residual] = list(model.tower.body.blocks)  # type: ignore[arg-type]

    def tables(self, length: int, dtype: torch.dtype) -> Tables:
        """From the parameters as they are; differentiable where gradients are on."""
        made = self._operators(length, dtype)
        tower = self.model.tower
        entry = fused.entry_weights(tower.entry, tower.input_norm, dtype)
        weights = tuple(fused.block_weights(b, dtype) for b in self.blocks)
        learnt = torch.is_grad_enabled() and any(p.requires_grad for p in self.model.parameters())
        own = [t if isinstance(t, Recurrence) else t.learned[0] for t in made]
        return Tables(dtype, made, entry, weights, _parts(self.model, own, length), learnt)

    def _operators(self, length: int, dtype: torch.dtype) -> tuple[Filter | Recurrence, ...]:
        layers = [b.layer for b in self.blocks]
        filters = iter(_filters([a for a in layers if isinstance(a, CONVOLVED)], length, dtype))
        return tuple(
            recurrence(layer.tables(), dtype) if isinstance(layer, RECURRENT) else next(filters) for layer in layers
        )

    def kept_tables(self, length: int, dtype: torch.dtype) -> Tables:
        """The tables of the `frozen()` context around this call, or new ones."""
        found: Tables = self.model.tower.body.cached(f"lowered {length} {dtype}", lambda: self.tables(length, dtype))
        return found

    def __call__(self, x: Tensor, tables: Tables) -> Tensor:
        """Logits or values of x (b, l, c), in the dtype of the tables."""
        plan, head = tables.plan, self.model.head
        if plan is None:
            return head.out(head.hidden(self._features(x, tables)))
        return head.out(head.hidden(cohort.walked(x, plan, lambda x: self._features(x, tables))))

    def climbed(self, start: Tensor, tables: Tables, path: Path) -> Tensor | None:
        """The attack's steps along `path` in one call; None where only steps one by one lead there."""
        plan, head = tables.plan, self.model.head
        if plan is None or not isinstance(head.hidden, nn.Identity):
            return None
        return climb.climbed(start, plan, (head.out.weight, head.out.bias), path)

    def _features(self, x: Tensor, tables: Tables) -> Tensor:
        """Pooled, (b, d)."""
        h = self._entered(x, tables)
        for block, layer, weights in zip(self.blocks, tables.layers, tables.blocks, strict=True):
            if weights is None or isinstance(layer, Recurrence):
                h = _block(block, h, layer)
            else:
                h = fused.post_norm_block(h, layer, weights)
        h = columns.norm(self.model.tower.final_norm, h)
        pooled = _Mean.apply(h) if self.model.head.pooling == "mean" else h[:, :, -1].to(_wide(h.dtype))  # (d, b)
        return pooled.t()

    def _entered(self, x: Tensor, tables: Tables) -> Tensor:
        tower = self.model.tower
        if tables.entry is not None:
            return fused.entered(x, tables.entry)
        channels = x.to(tables.dtype).permute(2, 0, 1)  # (c, b, l)
        return columns.norm(tower.input_norm, columns.linear(tower.entry, channels))  # type: ignore[arg-type]


class _Mean(torch.autograd.Function):
    """The mean over time, in float32 at least; its gradient is a view, where autograd would write all of it."""

    @staticmethod
    def forward(ctx: Any, h: Tensor) -> Tensor:
        ctx.l, ctx.dtype = h.shape[2], h.dtype
        return h.sum(2, dtype=_wide(h.dtype)) / ctx.l

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return (gradients[0] / ctx.l).to(ctx.dtype)[:, :, None].expand(-1, -1, ctx.l)


def serving(model: Model, x: Tensor, lengths: Tensor | None) -> tuple[Lowered, torch.dtype] | None:
    """The lowered form and its dtype where it is right for this call and quicker than the modules; else None."""
    if lengths is not None or not isinstance(x, Tensor) or x.dim() != 3 or not x.is_floating_point() or not x.numel():
        return None
    dtype = _dtype(x)
    form = lowerable(model) if (dtype is not None or x.is_cuda) and plain() else 0
    if form and dtype is None:
        _tell(model, x)
    if dtype is None or not form or not _reaches(model, x, dtype, form == WALKABLE):
        return None
    return Lowered(model), dtype


def _form(model: nn.Module) -> int:
    """Whether every part of the model has a lowered form (0: no), and a walk by cohorts says all that it does."""
    tower, head = getattr(model, "tower", None), getattr(model, "head", None)
    if not isinstance(tower, nn.Module) or not isinstance(head, Readout) or head.pooling not in ("mean", "last"):
        return 0
    body: Any = tower.body
    covered = (
        isinstance(tower.entry, nn.Linear)
        and isinstance(tower.input_norm, columns.NORMS)
        and isinstance(tower.final_norm, columns.NORMS)
        and not (tower.training and tower.dropout.p > 0)  # type: ignore[union-attr, operator]
        and all(columns.covers(b) and _runs(b.layer) for b in body.blocks)
    )
    if not covered:
        return 0
    return WALKABLE if cohort.covers(_parts(model, [], 0)) else 1


lowerable = Verdict(_form)


def _reaches(model: Model, x: Tensor, dtype: torch.dtype, walkable: bool) -> bool:
    """Whether all layers take this length, and the form is the quicker one."""
    l, kind, layers = x.shape[1], x.device.type, [block.layer for block in model.tower.body.blocks]
    if any(_declared(layer) < l for layer in layers):
        return False
    # The way of an attack, which runs in `frozen()`, must not hang on how many samples are left.
    if any(isinstance(layer, RECURRENT) for layer in layers):
        far = RECURRED if all(isinstance(layer, RECURRENT) for layer in layers) else WALKED
        fit = l <= far and (model.tower.body.is_frozen or _pays(x))
    elif l <= SHORT or kind != "cpu":
        return True
    else:
        fit = l <= WALKED and (l <= ALONE or x.shape[0] >= WIDTH or model.tower.body.is_frozen)
    return fit and kind == "cpu" and walkable and cohort.runs(x.device, dtype)


def _pays(x: Tensor) -> bool:
    """Whether a walk through recurrences is quicker than their modules, which use all threads for any batch: it is, on
    one thread, by half at least."""
    cohorts = x.shape[0] // WIDTH
    return cohorts >= max(1, torch.get_num_threads() // 2) and x.shape[0] * x.shape[1] >= MANY


def _parts(model: Any, layers: list[Operator], l: int) -> Parts:
    tower = model.tower
    blocks = list(tower.body.blocks)
    return Parts(tower.entry, tower.input_norm, blocks, layers, tower.final_norm, model.head.pooling, l)


def _runs(layer: nn.Module) -> bool:
    return isinstance(layer, CONVOLVED + RECURRENT) and not (layer.bidirectional or layer.check_finite)


def _dtype(x: Tensor) -> torch.dtype | None:
    """bf16 under autocast on a GPU, else x's own; without the GPU's own kernels float32 blocks lose to the modules."""
    kind = x.device.type
    if torch.is_autocast_enabled(kind):
        return torch.bfloat16 if kind == "cuda" and torch.get_autocast_dtype(kind) == torch.bfloat16 else None
    if kind == "cuda":
        return torch.float32 if x.dtype == torch.float32 and served(x, SLICE["cuda"], torch.float32) else None
    return x.dtype if kind == "cpu" and x.dtype in (torch.float32, torch.float64) else None


def _tell(model: Model, x: Tensor) -> None:
    """Why a model that has the form runs as modules on a GPU, where that hangs on x."""
    if any(isinstance(block.layer, RECURRENT) for block in model.tower.body.blocks):
        return  # they have another form there
    if torch.is_autocast_enabled("cuda"):
        left_to_torch(x, "the lowered form", f"autocast to {torch.get_autocast_dtype('cuda')}", logging.INFO)
    elif x.dtype != torch.float32:
        left_to_torch(x, "the lowered form", str(x.dtype), logging.INFO)
    else:
        tell(x, SLICE["cuda"], torch.float32)


def _filters(layers: list[Any], length: int, dtype: torch.dtype) -> list[Filter]:
    """The layers' convolutions over so many steps, each in the cheaper way."""
    if not layers:
        return []
    on_gpu, wide = layers[0].anchor.is_cuda, _wide(dtype)
    T = _steps(length, dtype, any(isinstance(layer, S4) for layer in layers)) if on_gpu else length
    if length == T:
        return [toeplitz(k.to(wide), dtype) for k in impulse_responses(layers, length)]
    if length < T:
        return [chained(F.pad(k.to(wide), (0, T - length)), (), dtype) for k in impulse_responses(layers, length)]
    return [chained(k.to(wide), tuple(more), dtype) for k, *more in linked_responses(layers, length, T)]


def _steps(length: int, dtype: torch.dtype, dense: bool) -> int:
    """Of a block on a GPU: all of them, or a number that its kernels take."""
    if length > LONGEST.get(dtype, length):
        cost = BLOCKS[dtype][dense]
        return min(cost, key=lambda T: -(-length // T) * T * cost[T])
    size = SLICE["cuda"]
    return -(-length // size) * size if dtype == torch.float32 else length


def _block(block: Residual, x: Tensor, layer: Filter | Recurrence) -> Tensor:
    """`Residual` in torch's operations."""
    h = columns.norm(block.norm, x) if block.prenorm else x
    h = columns.mixed(block, layer(h))
    y = x + h if block.skip else h
    return y if block.prenorm else columns.norm(block.norm, y)


def _declared(layer: Any) -> float:
    """The longest sequence that a layer takes: a softmax DSS may have been declared for one."""
    return (layer.length or math.inf) if isinstance(layer, DSS) else math.inf


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32
