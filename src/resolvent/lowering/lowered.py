"""A residual stack of time-invariant layers in one layout, channels first: the form used by training and attacks.

`Lowered(model)` reads the description of a model and computes its forward pass, as a function of x and of tables
that depend on the parameters alone:

    entry -> norm -> [ x + mixer(ads(k * norm(x))) ] or [ norm(x + mixer(ads(k * x))) ] -> norm -> pool -> head

with activations (d, b, l) throughout: the convolution with the layer's impulse response k is a batched product with
Toeplitz matrices, or blocks of them for long sequences on a GPU; maps over channels are matrix products, without
transposes in between. Tables are made once per `frozen()` context, so an attack computes them once and
differentiates in x alone. On a CPU such a pass runs eight samples at a time through the whole stack
(`cpu.lanes`); only there blocks of S5 and LRU, whose layer is a recurrence instead of k, have this form too.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from resolvent.lowering import columns, eager, forms
from resolvent.lowering import program as p
from resolvent.lowering.cached_check import Verdict, is_plain
from resolvent.lowering.cpu import lanes
from resolvent.lowering.cpu.lanes import Operator, Parts, Path, detach
from resolvent.lowering.cpu.lanes_layout import WIDTH, Plan
from resolvent.lowering.forms import Form
from resolvent.lowering.gpu import fused
from resolvent.lowering.program import Chain
from resolvent.lowering.recurrence import Recurrence, recurrence
from resolvent.lowering.responses import impulse_responses, linked_responses
from resolvent.ops.filter import SLICE, Filter, is_served, make_chained, tell, toeplitz
from resolvent.runtime.fallback import left_to_torch
from resolvent.runtime.transforms import is_untransformed
from resolvent.ssm.impulse import impulse

# Steps up to which whole Toeplitz products beat blocks on a GPU. In float32 longer ones also lose accuracy: what the
# matrix units truncate then sums to more than float32 allows.
LONGEST = {torch.bfloat16: 2048, torch.float32: 1024}
# ms of forward and backward by steps of a block, of a diagonal and of a dense system (benchmarks/cpu/crossover.py)
BLOCKS = {
    torch.bfloat16: ({256: 0.40, 512: 0.35, 1024: 0.37}, {256: 1.01, 512: 0.69, 1024: 0.56}),
    torch.float32: ({256: 1.00, 512: 1.08, 1024: 1.38}, {256: 1.60, 512: 1.42, 1024: 1.56}),
}
SHORT = 64  # steps up to which a CPU's products beat the layers' own pass
WALKED = 784  # the same on a CPU for a pass by lanes
ALONE = 256  # ... even for a single sample, which costs as much as a full set of lanes
RECURRED = 4096  # the same for a stack of recurrences alone, whose cost per step does not depend on the length
MANY = 128  # steps of all samples from which it pays to lay out the parameters, if not done already


@dataclass(frozen=True, eq=False)
class Residuals:
    """A model that is entry, norm, residual blocks, norm, pooling and head, all of which have a lowered form."""

    entry: p.Linear
    start: Chain
    blocks: tuple[p.Skip, ...]
    end: Chain
    pooling: str
    head: Chain
    keeper: Any  # the stack of blocks, which keeps tables while frozen

    @property
    def layers(self) -> list[p.Filter | p.Recurrence]:
        return [block.layer[0] for block in self.blocks]  # type: ignore[misc]

    def parts(self, operators: list[Operator], l: int) -> Parts:
        return Parts(self.entry, self.start, list(self.blocks), operators, self.end, self.pooling, l)

    @cached_property
    def walkable(self) -> bool:
        """Whether `cpu.lanes` covers all of it."""
        return lanes.covers(self.parts([], 0))

    @cached_property
    def recurrent(self) -> tuple[bool, bool]:
        """Whether any, and whether all of its layers are recurrences."""
        kinds = [isinstance(layer, p.Recurrence) for layer in self.layers]
        return any(kinds), all(kinds)

    @cached_property
    def longest(self) -> float:
        """The longest sequence that its layers accept: a softmax DSS may have a declared length."""
        return min(map(longest_of, self.blocks))


@dataclass(frozen=True)
class Tables:
    """Everything a pass needs besides x, for one length and dtype."""

    form: Residuals
    dtype: torch.dtype
    parts: Parts  # with the operator of each block's layer
    made: tuple[Filter, ...]  # convolutions made along with the kernels, for a GPU
    learnt: bool  # parameters are differentiated through these tables
    source: Tables | None = None  # the tables from which these were detached

    @cached_property
    def plan(self) -> Plan | None:
        """The plan of `cpu.lanes`, if the form has one."""
        if self.source is None:
            return lanes.plan(self.parts, self.dtype, self.learnt) if self.form.walkable else None
        return None if self.source.plan is None else detach(self.source.plan)

    @cached_property
    def layers(self) -> tuple[Filter | Recurrence, ...]:
        """Each block's layer as torch operations; unused by `cpu.lanes`."""
        if self.source is not None:
            return tuple(layer.detached() for layer in self.source.layers)
        made = iter(self.made)
        return tuple(
            k if isinstance(k, Recurrence) else next(made) if self.made else toeplitz(k, self.dtype)
            for k in self.parts.layers
        )

    @cached_property
    def entry(self) -> fused.Weights | None:
        found = fused.entry_weights(self.form.entry, self.form.start, self.dtype)
        return found if found is None or self.source is None else found.detached()

    @cached_property
    def blocks(self) -> tuple[fused.Weights | None, ...]:
        found = [fused.block_weights(block, self.dtype) for block in self.form.blocks]
        return tuple(w if w is None or self.source is None else w.detached() for w in found)

    def detached(self) -> Tables:
        return replace(self, learnt=False, source=self)


class Lowered:
    """The lowered form of one model: `Lowered(model)(x, tables)` equals `model(x)`."""

    def __init__(self, model: nn.Module, form: Residuals | None = None) -> None:
        found = lowerable(model) if form is None else form
        if found is None:
            raise ValueError(f"Lowered: {type(model).__name__} has no lowered form; see lowerable(model).")
        self.form, self.model = found, model

    def tables(self, length: int, dtype: torch.dtype) -> Tables:
        """Tables of the current parameters; differentiable if gradients are enabled."""
        learnt = torch.is_grad_enabled() and any(p.requires_grad for p in self.model.parameters())
        layers = self.form.layers
        filters = [layer for layer in layers if isinstance(layer, p.Filter)]
        kernels, made = make_kernels(filters, length, dtype)
        each = iter(kernels)
        operators = [
            next(each) if isinstance(layer, p.Filter) else recurrence(layer.module.tables(), dtype) for layer in layers
        ]
        return Tables(self.form, dtype, self.form.parts(operators, length), made, learnt)

    def kept_tables(self, length: int, dtype: torch.dtype) -> Tables:
        """The tables of the `frozen()` context around this call, or new ones."""
        found: Tables = self.form.keeper.cached(f"lowered {length} {dtype}", lambda: self.tables(length, dtype))
        return found

    def __call__(self, x: Tensor, tables: Tables) -> Tensor:
        """Logits or values of x (b, l, c), in the dtype of the tables."""
        plan = tables.plan
        if plan is None:
            return eager.follow(self.form.head, self._features(x, tables))
        return eager.follow(self.form.head, lanes.run_lanes(x, plan, lambda x: self._features(x, tables)))

    def run_loop(self, start: Tensor, path: Path, tables: Tables) -> Tensor | None:
        """The attack's steps along `path` in one call; None if they must be taken one by one."""
        match self.form.head:
            case (p.Linear() as out,) if tables.plan is not None:
                return lanes.run_loop(start, tables.plan, out.read(out.module), path)
        return None

    def _features(self, x: Tensor, tables: Tables) -> Tensor:
        """Pooled features (b, d)."""
        h = self._entered(x, tables)
        for block, layer, weights in zip(self.form.blocks, tables.layers, tables.blocks, strict=True):
            if weights is None or isinstance(layer, Recurrence):
                h = run_block(block, h, enter_block(block, h), layer)
            else:
                h = fused.post_norm_block(h, layer, weights)
        h = columns.norm(self.form.end, h)
        wide = torch.promote_types(h.dtype, torch.float32)
        pooled = columns.average(h, 2) if self.form.pooling == "mean" else h[:, :, -1].to(wide)  # (d, b)
        return pooled.t()

    def _entered(self, x: Tensor, tables: Tables) -> Tensor:
        if tables.entry is not None:
            return fused.enter_rows(x, tables.entry)
        channels = x.to(tables.dtype).permute(2, 0, 1)  # (c, b, l)
        return columns.norm(self.form.start, columns.linear(self.form.entry, channels))


def serving(model: nn.Module, x: Tensor, lengths: Tensor | None = None) -> tuple[Form, torch.dtype] | None:
    """The form and its dtype where it is right for this call and quicker than the modules; else None."""
    if torch.compiler.is_compiling() or lengths is not None or not is_plain(x) or x.is_meta:
        return None
    if x.dim() != 3 or not x.is_floating_point() or not x.numel():
        return None
    dtype = _dtype(x)
    form = lowerable(model) if (dtype is not None or x.is_cuda) and is_untransformed() else None
    if form is not None and dtype is None:
        _tell(form, x)
    if dtype is not None and form is not None and _reaches(form, x, dtype):
        return Lowered(model, form), dtype
    return forms.serving(model, x) if x.is_cuda else None


def _form(chain: Chain) -> Residuals | None:
    """The model's parts, each with a lowered form; None if one of them has none."""
    match chain:
        case (p.Network(entry=(p.Linear() as entry,), dropout=(), head=p.Head() as head) as network,):
            norms = columns.is_norm(network.start) and columns.is_norm(network.end)
            blocks = tuple(block for block in network.body if columns.covers(block) and has_operator(block.layer))
            whole = len(blocks) == len(network.body) and norms and network.pool.kind in ("mean", "last")
            ends, last = (network.end, network.pool.kind), (*head.hidden, *head.out)
            return Residuals(entry, network.start, blocks, *ends, last, network.module) if whole else None
    return None


lowerable = Verdict(_form)


def _reaches(form: Residuals, x: Tensor, dtype: torch.dtype) -> bool:
    """Whether all layers accept this length, and the form is faster."""
    l, kind, (some, every) = x.shape[1], x.device.type, form.recurrent
    if form.longest < l:
        return False
    # The path of an attack, which runs in `frozen()`, must not depend on how many samples are left.
    if some:
        fit = l <= (RECURRED if every else WALKED) and (form.keeper.is_frozen or _pays(x))
    elif l <= SHORT or kind != "cpu":
        return True
    else:
        fit = l <= WALKED and (l <= ALONE or x.shape[0] >= WIDTH or form.keeper.is_frozen)
    return fit and kind == "cpu" and form.walkable and lanes.runs(x.device, dtype)


def _pays(x: Tensor) -> bool:
    """Whether a pass through recurrences is faster than their modules, which use all threads for any batch: on one
    thread it is, by at least half."""
    groups = x.shape[0] // WIDTH
    return groups >= max(1, torch.get_num_threads() // 2) and x.shape[0] * x.shape[1] >= MANY


def longest_of(block: p.Skip) -> float:
    """The longest sequence that a block's layer accepts."""
    match block.layer:
        case (p.Filter(kind="dss", module=own),):
            return own.length or math.inf
    return math.inf


def has_operator(layer: Chain) -> bool:
    """Whether a block's layer is a convolution or a recurrence that has a lowered form."""
    match layer:
        case (p.Filter(kind="s4" | "s4d" | "dss", module=own) | p.Recurrence(kind="s5" | "lru", module=own),):
            return not (own.bidirectional or own.check_finite)
    return False


def _dtype(x: Tensor) -> torch.dtype | None:
    """bf16 under autocast on a GPU, else x's own; without GPU kernels float32 blocks are slower than the modules."""
    kind = x.device.type
    if torch.is_autocast_enabled(kind):
        return torch.bfloat16 if kind == "cuda" and torch.get_autocast_dtype(kind) == torch.bfloat16 else None
    if kind == "cuda":
        return torch.float32 if x.dtype == torch.float32 and is_served(x, SLICE["cuda"], torch.float32) else None
    return x.dtype if kind == "cpu" and x.dtype in (torch.float32, torch.float64) else None


def _tell(form: Residuals, x: Tensor) -> None:
    """Log why a model with this form runs as modules on a GPU, if that depends on x."""
    if form.recurrent[0]:
        return  # they have another form there
    if torch.is_autocast_enabled("cuda"):
        left_to_torch(x, "the lowered form", f"autocast to {torch.get_autocast_dtype('cuda')}", logging.INFO)
    elif x.dtype != torch.float32:
        left_to_torch(x, "the lowered form", str(x.dtype), logging.INFO)
    else:
        tell(x, SLICE["cuda"], torch.float32)


def make_kernels(layers: list[p.Filter], length: int, dtype: torch.dtype) -> tuple[list[Tensor], tuple[Filter, ...]]:
    """The layers' kernels over this many steps, and on a GPU their convolutions, each by the cheaper method."""
    if not layers:
        return [], ()
    wide = torch.promote_types(dtype, torch.float32)
    if not next(layers[0].module.parameters()).is_cuda:  # complex tensors: lowered forms are never traced
        return [impulse(layer.module._bank(length, torch.complex), length).to(wide) for layer in layers], ()
    T, made = _steps(length, dtype, any(layer.kind == "s4" for layer in layers)), list[Filter]()
    if length == T:
        made = [toeplitz(k.to(wide), dtype) for k in impulse_responses(layers, length, dtype == torch.bfloat16)]
    elif length < T:
        made = [make_chained(F.pad(k.to(wide), (0, T - length)), (), dtype) for k in impulse_responses(layers, length)]
    else:
        made = [make_chained(k.to(wide), tuple(more), dtype) for k, *more in linked_responses(layers, length, T)]
    return [one.learned[0] for one in made], tuple(made)


def _steps(length: int, dtype: torch.dtype, dense: bool) -> int:
    """Steps of a block on a GPU: all, or a number that its kernels support."""
    if length > LONGEST.get(dtype, length):
        cost = BLOCKS[dtype][dense]
        return min(cost, key=lambda T: -(-length // T) * T * cost[T])
    return max(length, SLICE["cuda"]) if dtype == torch.float32 else length


def enter_block(block: p.Skip, x: Tensor) -> Tensor:
    """The input of a residual block's layer, from x."""
    return columns.norm(block.norm, x) if block.prenorm else x


def run_block(block: p.Skip, x: Tensor, u: Tensor, layer: Filter | Recurrence) -> Tensor:
    """A residual block in torch's operations; u is its layer's input."""
    h = columns.follow(block.branch[1:], layer(u))
    return block.end(x, h, lambda y: columns.norm(block.norm, y))
