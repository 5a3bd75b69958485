"""A whole stack of residual blocks on a CPU, eight samples at a time, for attacks and training.

    entry -> norm -> [ x + mixer(ads(f(norm(x)))) ] or [ norm(x + mixer(ads(f(x)))) ] -> norm -> pool

x (b, l, c) -> features (b, d); f is the block's layer, a convolution with k (d, l) or a `Recurrence`. The parameters
are laid out once (`plan`), after which a pass is one call in each direction (`lanes_numba`), with gradients in x alone
or in the parameters too. Gradients of gradients use the function that the caller gives. All steps of an attack are one
call as well (`run_loop`), where adversarial training spends most of its time:

    x <- clamp(x + size sign(∂loss / ∂x), low, high),    z = W features(x) + bias,    ∂loss / ∂z = softmax(z) - target

That is the sign ascent of the cross-entropy with the probabilities `target` (b, k), one-hot for a label, and of the KL
divergence from them. A sample whose logits or gradient are not finite does not move.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain, count
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from resolvent.blocks.mixer import Mixer
from resolvent.blocks.residual import Residual
from resolvent.layers.s4d import S4D
from resolvent.lowering import columns
from resolvent.lowering.cpu import lanes_layout as at
from resolvent.lowering.cpu.lanes_layout import PAD, WIDTH, Plan, Source
from resolvent.lowering.describe import describe
from resolvent.lowering.program import Chain, Linear, Skip, settle
from resolvent.lowering.recurrence import Recurrence
from resolvent.ops.ascent import sign_step
from resolvent.runtime.dispatch import choose, lazily, nothing, numba_or
from resolvent.runtime.transforms import by_graph_only, outside_autocast

# The code of an activation, its index in `activation_numba.NAMES`.
CURVES = {"none": 0, "relu": 1, "sigmoid": 2, "tanh": 3, "silu": 4, "gelu": 5, "gelu_tanh": 6}
Again = Callable[[Tensor], Tensor]
Operator = Tensor | Recurrence
Readout = tuple[Tensor, Tensor | None]  # W (k, d) and bias (k,)


@dataclass(frozen=True)
class Parts:
    """The nodes of a stack, and each block's layer over l steps: a response k (d, l) or a recurrence."""

    entry: Linear
    start: Chain
    blocks: list[Skip]
    layers: list[Operator]
    end: Chain
    pooling: str  # "mean" or "last"
    l: int


@dataclass(frozen=True, eq=False)
class Path:
    """The target, limits and step size of an attack."""

    target: Tensor  # (b, k), the probabilities to move away from, or labels (b,)
    low: Tensor  # (b, l, c)
    high: Tensor  # (b, l, c)
    size: Tensor  # step size, (b, 1, 1)
    steps: int


def run_lanes(x: Tensor, plan: Plan, again: Again) -> Tensor:
    """Features (b, d) of x (b, l, c); `again` computes the same with torch operations."""
    found: Tensor = _Walk.apply(x.to(plan.numbers.dtype), plan, again, *(s.tensor for s in plan.sources))
    return found


def plan(parts: Parts, dtype: torch.dtype, learnt: bool = False) -> Plan | None:
    """A stack that this `covers` laid out as numbers, or None if compiled code does not run here.

    With `learnt`, gradients flow into the parameters and the layers' tables as well.
    """
    kernels = _kernels(parts.entry.read(parts.entry.module)[0].device, dtype)
    return None if kernels is None else lay_out(parts, dtype, learnt, kernels)


def runs(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether compiled code runs here."""
    return _kernels(device, dtype) is not None


def covers(parts: Parts) -> bool:
    """Whether this pass covers everything that these nodes do."""
    norms = (parts.start, parts.end, *(b.norm for b in parts.blocks))
    return all(columns.is_norm(n, ("layer",)) for n in norms) and all(b.around for b in parts.blocks)


# -- from parts to a plan ----------------------------------------------------------------------------------------------


@dataclass
class _Pack:
    """An array of numbers under construction."""

    dtype: torch.dtype
    pieces: list[Tensor] = field(default_factory=list)
    sources: list[Source] = field(default_factory=list)
    size: int = 0

    def add(self, numbers: Tensor, kind: str = "plain", source: Tensor | None = None) -> int:
        """Append numbers; returns their offset. `source` is the tensor whose gradient is found there."""
        place = self.size
        self.pieces.append(numbers.detach().to(self.dtype).reshape(-1))
        self.size += numbers.numel()
        if source is not None:
            self.sources.append(Source(place, kind, source))
        return place

    def row(self, vector: Tensor) -> int:
        return self.add(vector.detach()[:, None].expand(-1, WIDTH), "row", vector)

    def norm(self, chain: Chain) -> int:
        if not chain:
            return -1
        norm = chain[0].module
        place = self.row(norm.weight)
        self.row(norm.bias)
        self.add(torch.tensor([norm.eps], dtype=torch.float64))
        return place

    def matrix(self, W: Tensor) -> tuple[int, int]:
        """W' and W."""
        return self.add(W.detach().t()), self.add(W, "plain", W)

    def matrices(self, node: Linear) -> tuple[int, int, int]:
        """W' and W, and its bias as a row."""
        W, b = node.read(node.module)
        bias = self.add(W.new_zeros(W.shape[0] * WIDTH)) if b is None else self.row(b)
        return *self.matrix(W), bias


def detach(plan: Plan) -> Plan:
    """The same plan for gradients in x alone."""
    program, saved = plan.program.clone(), plan.saved - plan.learnt
    program[at.SAVED], program[at.TRACES] = saved, 0
    program[at.HEADER :].view(plan.layers, at.BLOCK)[:, at.INPUT : at.TRACE + 1] = -1
    return replace(plan, program=program, saved=saved, sources=(), learnt=0, traces=0)


def lay_out(parts: Parts, dtype: torch.dtype, learnt: bool, kernels: Any) -> Plan:
    (d, c), layers = parts.entry.read(parts.entry.module)[0].shape, len(parts.blocks)
    pack, header, norms = _Pack(dtype), [0] * at.HEADER, layers + 2
    saved, traces = count(norms), count()  # the norms' own arrays come first
    header[at.ENTRY], header[at.ENTRY_BACK], header[at.ENTRY_BIAS] = pack.matrices(parts.entry)
    header[at.START_NORM], header[at.END_NORM] = pack.norm(parts.start), pack.norm(parts.end)
    header[at.START_UNIT], header[at.END_UNIT] = layers, layers + 1
    blocks = [_block(*own, pack, i, saved) for i, own in enumerate(zip(parts.blocks, parts.layers, strict=True))]
    own = sum(_learn(block, saved, traces) for block in blocks) if learnt else 0
    kept, traced, states = next(saved), next(traces), max(block[at.STATES] for block in blocks)
    wide = states * WIDTH + WIDTH if states else 0
    header[: at.WIDE + 1] = [parts.l, d, c, layers, int(parts.pooling == "last"), kept, norms, traced, wide]
    numbers, sources = torch.cat(pack.pieces), tuple(pack.sources) if learnt else ()
    program = torch.tensor([*header, *chain.from_iterable(blocks)])
    return Plan(program, numbers, parts.l, d, c, layers, kept, norms, wide, sources, kernels, own, traced)


def _block(block: Skip, layer: Operator, pack: _Pack, unit: int, saved: Iterator[int]) -> list[int]:
    own = [-1] * at.BLOCK
    own[at.PRENORM], own[at.SKIP] = int(block.prenorm), int(block.adds)
    own[at.NORM], own[at.UNIT] = pack.norm(block.norm), unit
    _layer(own, layer, pack)
    own[at.SIGMA] = own[at.ACT] = own[at.FINAL] = 0
    around = block.around
    assert around is not None
    if around.scale is not None:
        own[at.ADS], own[at.ADS_BACK], own[at.ADS_BIAS] = pack.matrices(around.scale)
        own[at.SIGMA], own[at.SCALED], own[at.LEVER] = CURVES[around.sigma], next(saved), next(saved)
    own[at.ACT] = CURVES[around.act]
    if around.linear is not None:
        own[at.MIX], own[at.MIX_BACK], own[at.MIX_BIAS] = pack.matrices(around.linear)
        own[at.FINAL] = CURVES[around.final]
    kept = (at.ACT, at.BENT), (at.FINAL, at.CURVED)
    for place in (place for code, place in kept if own[code]):
        own[place] = next(saved)
    return own


def _layer(own: list[int], layer: Operator, pack: _Pack) -> None:
    """Add the numbers of a block's layer."""
    if isinstance(layer, Recurrence):
        own[at.STATES], own[at.LAM], own[at.PAST] = layer.lam.shape[0], pack.row(layer.lam), pack.row(layer.D)
        own[at.IN], own[at.IN_BACK] = pack.matrix(layer.W_in)
        own[at.OUT], own[at.OUT_BACK] = pack.matrix(layer.W_out)
        return
    padded = F.pad(layer.detach(), (PAD, 0))
    own[at.KERNEL], own[at.KERNEL_BACK] = pack.add(padded, "kernel", layer), pack.add(padded.flip(1))
    own[at.STATES] = 0


def _learn(own: list[int], saved: Iterator[int], traces: Iterator[int]) -> int:
    """Allocate arrays for a block's parameter gradients; returns how many saved ones are added."""
    if own[at.STATES]:
        own[at.TRACE] = next(traces)
    needed = [at.INPUT, *([at.RAW] if own[at.ADS] >= 0 else []), *([at.MIXED] if own[at.MIX] >= 0 else [])]
    for place in needed:
        own[place] = next(saved)
    return len(needed)


# -- the pass ----------------------------------------------------------------------------------------------------------


class _Walk(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, plan: Plan, again: Again, *tensors: Tensor) -> Tensor:
        if not any(ctx.needs_input_grad):
            found: Tensor = plan.kernels.forward(plan, x)
            return found
        out: Tensor
        out, ctx.room = plan.kernels.forward_kept(plan, x)
        ctx.save_for_backward(x, *tensors)
        ctx.plan, ctx.again = plan, again
        return out

    @staticmethod
    @outside_autocast
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        (x, *tensors), g, plan = ctx.saved_tensors, gradients[0], ctx.plan
        needed = [ctx.needs_input_grad[0], *ctx.needs_input_grad[3:]]
        if by_graph_only(g):
            gx, *found = _by_graph(ctx.again, [x, *tensors], g, needed)
            return gx, None, None, *found
        learnt = any(needed[1:])
        gx, pack = plan.kernels.backward(plan, g, ctx.room, x if learnt else None)
        if pack is None:
            return gx, None, None, *([None] * len(tensors))
        found = [_gradient(s, pack).to(s.tensor.dtype) for s in plan.sources]
        return gx, None, None, *found


def _gradient(source: Source, pack: Tensor) -> Tensor:
    shape = source.tensor.shape
    if source.kind == "row":
        return pack[source.place : source.place + WIDTH * shape[0]].view(-1, WIDTH).sum(1)
    if source.kind == "kernel":
        whole = shape[0] * (PAD + shape[1])
        return pack[source.place : source.place + whole].view(shape[0], -1)[:, PAD:]
    return pack[source.place : source.place + shape.numel()].view(shape)


def _by_graph(again: Again, inputs: list[Tensor], g: Tensor, needed: list[bool]) -> list[Tensor | None]:
    """The gradients of again(x), recomputed with autograd."""
    with torch.enable_grad():
        output = again(inputs[0])
    wanted = [t for t, need in zip(inputs, needed, strict=True) if need]
    graph = torch.is_grad_enabled()
    found = iter(torch.autograd.grad(output, wanted, g, create_graph=graph, allow_unused=True))
    return [next(found) if need else None for need in needed]


# -- an attack ---------------------------------------------------------------------------------------------------------


def run_loop(start: Tensor, plan: Plan, readout: Readout, path: Path) -> Tensor | None:
    """x (b, l, c) after the steps from `start`; None if compiled code does not support them, or sizes or labels do not
    fit: the step-by-step path reports such errors."""
    kernel = choose("pgd_loop", _LOOPS, start.device, start.dtype)
    fits = start.shape[1:] == (plan.l, plan.c) and start.dtype == plan.numbers.dtype and len(start) == len(path.target)
    if kernel is nothing or not fits or not _are_labels(path.target, readout[0].shape[0]):
        return None
    return _run_loop(kernel, start, plan, readout, path)


def _are_labels(target: Tensor, k: int) -> bool:
    """Whether these are probabilities of k classes, or labels among them; one logit has neither."""
    if k == 1 or target.dim() == 2:
        return k > 1 and target.shape[1] == k
    low, high = torch.aminmax(target)
    return int(low) >= 0 and int(high) < k


def _run_loop(kernel: Any, start: Tensor, plan: Plan, out: Readout, path: Path) -> Tensor:
    dtype, k = start.dtype, out[0].shape[0]
    W = out[0].detach().to(dtype)
    bias = W.new_zeros(k) if out[1] is None else out[1].detach().to(dtype)
    readout = torch.cat([W.t().reshape(-1), bias, W.reshape(-1)])
    target = path.target if path.target.dim() == 2 else F.one_hot(path.target, k)
    rest = torch.stack([target, target]).to(dtype)  # the first holds the logits
    box = torch.stack([bound.expand_as(start) for bound in (path.low, path.high)]).to(dtype)
    size = path.size.to(dtype).expand(len(start), 1, 1).reshape(-1).contiguous()
    x = start.detach().clone(memory_format=torch.contiguous_format)
    kernel(x, plan, readout, rest, box, size, path.steps)
    return x


def step(x: Tensor, z: Tensor, path: Path) -> Tensor:
    """One step from x with logits z (b, k) that depend on it: the reference."""
    slope = z.softmax(-1) - path.target
    (g,) = torch.autograd.grad(z, x, slope)
    seen = torch.cat([z.detach(), g.flatten(1)], 1)
    good = seen.isfinite().all(1)[:, None, None]
    return sign_step(x.detach(), g, path.size, good).clamp(path.low, path.high)


# -- which kernels run here --------------------------------------------------------------------------------------------


def _kernels(device: torch.device, dtype: torch.dtype) -> Any:
    """The compiled module, or None elsewhere, without numba, or if another backend is forced."""
    real = device.type == "cpu" and dtype in (torch.float32, torch.float64)
    found = choose("lanes", _CANDIDATES, device, dtype) if real else nothing
    return None if found is nothing else found


def tiny(dtype: torch.dtype, recurs: bool = False) -> tuple[Plan, Again]:
    """A block of three channels and two steps to try kernels on: its plan, and its features in torch operations."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        entry, block = nn.Linear(1, 3).to(dtype), Residual(S4D(3, 2), mixer=Mixer(3, "linear"), prenorm=False).to(dtype)
    k = torch.tensor([[0.5, 0.25], [1.0, -1.0], [0.0, 2.0]], dtype=dtype)
    turn = torch.tensor([[0.5, 0.25], [-0.25, 0.5]], dtype=dtype)  # by lam = 0.5 + 0.25 i, for rows (re, im)

    def features(x: Tensor) -> Tensor:
        first, second = entry(x).unbind(1)
        now, then, late = first * k[:, 0], second * k[:, 0], first * k[:, 1]
        if recurs:
            now, then, late = now + first @ k @ k.t(), then + second @ k @ k.t(), first @ k @ turn @ k.t()
        y = torch.stack([now, then + late], 1)
        found: Tensor = block.norm(entry(x) + block.mixer(y)).mean(1)
        return found

    layer = Recurrence(turn[0], k.t(), k, k[:, 0]) if recurs else k
    (enter,), (skip,) = (settle(describe(module).chain) for module in (entry, block))
    assert isinstance(enter, Linear)
    assert isinstance(skip, Skip)
    return lay_out(Parts(enter, (), [skip], [layer], (), "mean", 2), dtype, False, None), features


def _probe(kernels: Any, device: torch.device, dtype: torch.dtype) -> bool:
    """One block of two steps against torch operations, values and gradient: a convolution, then a recurrence."""
    return all(_agrees(kernels, *tiny(dtype, recurs), dtype) for recurs in (False, True))


def _agrees(kernels: Any, plan: Plan, features: Again, dtype: torch.dtype) -> bool:
    x, g = torch.tensor([[[1.0], [2.0]]], dtype=dtype, requires_grad=True), torch.tensor([[0.5, 1.0, 0.0]], dtype=dtype)
    with torch.enable_grad():
        want = features(x)
        (slope,) = torch.autograd.grad(want, x, g)
    out, room = kernels.forward_kept(plan, x.detach())
    got = out, kernels.backward(plan, g, room)[0]
    return all(torch.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in zip(got, (want, slope), strict=True))


def _probe_loop(kernel: Any, device: torch.device, dtype: torch.dtype) -> bool:
    """Two steps of two samples through one small block, against torch operations."""
    plan, features = tiny(dtype)
    W = torch.tensor([[1.0, -2.0, 0.5], [0.25, 1.0, -1.0]], dtype=dtype)
    x = torch.tensor([[[1.0], [2.0]], [[-0.5], [0.75]]], dtype=dtype)
    path = Path(torch.eye(2, dtype=dtype), x - 0.3, x + 0.3, torch.full((2, 1, 1), 0.25, dtype=dtype), 2)
    want = x
    for _ in range(path.steps):
        with torch.enable_grad():
            at = want.detach().requires_grad_()
            want = step(at, features(at) @ W.t(), path)
    return torch.allclose(_run_loop(kernel, x, plan, (W, None), path), want, rtol=1e-4, atol=1e-5)


_CANDIDATES = numba_or(nothing, lazily("lowering.cpu.lanes_numba"), _probe)
_LOOPS = numba_or(nothing, lazily("lowering.cpu.lanes_numba", "run_loop"), _probe_loop)
