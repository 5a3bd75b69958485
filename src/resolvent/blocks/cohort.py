"""A whole stack of residual blocks on a CPU, eight samples at a time: what attacks and training run.

    entry -> norm -> [ x + mixer(ads(k * norm(x))) ] or [ norm(x + mixer(ads(k * x))) ] -> norm -> pool

x (b, l, c) -> features (b, d). The parameters are laid out once (`plan`), after which a pass is one call in each
direction (`cohort_numba`), with gradients in x alone or in the parameters too. Gradients of gradients run the way that
the caller names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain, count
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from resolvent.blocks import cohort_layout as at
from resolvent.blocks.ads import AdS
from resolvent.blocks.cohort_layout import Plan, Source
from resolvent.blocks.mixer import Mixer
from resolvent.blocks.norm import LayerNorm, NoNorm
from resolvent.blocks.residual import Residual
from resolvent.layers.s4d import S4D
from resolvent.scan.dispatch import choose, nothing, numba_or
from resolvent.ssm.blocked import by_graph_only

WIDTH = 8  # samples of a cohort
PAD = 12  # zeros beside a kernel: as many as a tile of the convolution has rows
_CURVES: dict[type, int] = {nn.Identity: 0, nn.ReLU: 1, nn.Sigmoid: 2, nn.Tanh: 3, nn.SiLU: 4}
Again = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Parts:
    """The modules of a stack, and the impulse response k (d, l) of each block's layer."""

    entry: nn.Linear
    start: nn.Module
    blocks: list[Residual]
    responses: list[Tensor]
    end: nn.Module
    pooling: str  # "mean" or "last"


def walked(x: Tensor, plan: Plan, again: Again) -> Tensor:
    """Features (b, d) of x (b, l, c); `again` computes the same with torch's operations."""
    found: Tensor = _Walk.apply(x, plan, again, *(s.tensor for s in plan.sources))
    return found


def plan(parts: Parts, dtype: torch.dtype, learnt: bool = False) -> Plan | None:
    """The stack as numbers, or None where it has another form or no compiled walk runs here.

    With `learnt`, gradients flow into the parameters and the responses as well.
    """
    device = parts.entry.weight.device
    return _laid_out(parts, dtype, learnt) if covers(parts) and runs(device, dtype) else None


def runs(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether a compiled walk runs here."""
    return device.type == "cpu" and dtype in (torch.float32, torch.float64) and _kernels(device, dtype) is not None


def covers(parts: Parts) -> bool:
    """Whether a walk says everything that these modules do."""
    norms = (parts.start, parts.end, *(b.norm for b in parts.blocks))
    return all(type(n) in (LayerNorm, NoNorm) for n in norms) and all(_covered(b) for b in parts.blocks)


def _covered(block: Residual) -> bool:
    ads, mixer = block.ads, block.mixer
    if isinstance(ads, AdS):
        if ads.shift is not None or _curve(ads.sigma) is None:
            return False
    elif type(ads) is not nn.Identity:
        return False
    if not isinstance(mixer, Mixer):
        return type(mixer) is nn.Identity
    return mixer.kind in ("none", "linear") and None not in (_curve(mixer.act), _curve(mixer.final))


def _curve(module: nn.Module) -> int | None:
    if isinstance(module, nn.GELU):
        return 5 if module.approximate == "none" else 6
    return _CURVES.get(type(module))


# -- layout ------------------------------------------------------------------------------------------------------------


@dataclass
class _Sheet:
    """Numbers one after another."""

    dtype: torch.dtype
    pieces: list[Tensor] = field(default_factory=list)
    sources: list[Source] = field(default_factory=list)
    size: int = 0

    def add(self, numbers: Tensor, kind: str = "plain", source: Tensor | None = None) -> int:
        """Their place; `source` is the tensor whose gradient is found there."""
        place = self.size
        self.pieces.append(numbers.detach().to(self.dtype).reshape(-1))
        self.size += numbers.numel()
        if source is not None:
            self.sources.append(Source(place, kind, source))
        return place

    def row(self, vector: Tensor) -> int:
        return self.add(vector.detach()[:, None].expand(-1, WIDTH), "row", vector)

    def norm(self, norm: nn.Module) -> int:
        if not isinstance(norm, LayerNorm):
            return -1
        place = self.row(norm.weight)
        self.row(norm.bias)
        self.add(torch.tensor([norm.eps], dtype=torch.float64))
        return place

    def matrices(self, module: nn.Linear) -> tuple[int, int, int]:
        """W' and W, and its bias as a row."""
        W, b = module.weight, module.bias
        bias = self.add(W.new_zeros(W.shape[0] * WIDTH)) if b is None else self.row(b)
        return self.add(W.detach().t()), self.add(W, "plain", W), bias


def _laid_out(parts: Parts, dtype: torch.dtype, learnt: bool) -> Plan:
    (d, l), layers = parts.responses[0].shape, len(parts.blocks)
    sheet, header, norms = _Sheet(dtype), [0] * at.HEADER, layers + 2
    saved = count(norms)  # the norms' own arrays come first
    header[at.ENTRY], header[at.ENTRY_BACK], header[at.ENTRY_BIAS] = sheet.matrices(parts.entry)
    header[at.START_NORM], header[at.END_NORM] = sheet.norm(parts.start), sheet.norm(parts.end)
    header[at.START_UNIT], header[at.END_UNIT] = layers, layers + 1
    blocks = [_block(*own, sheet, i, saved) for i, own in enumerate(zip(parts.blocks, parts.responses, strict=True))]
    own = sum(_learn(block, saved) for block in blocks) if learnt else 0
    kept, c = next(saved), parts.entry.in_features
    header[: at.NORMS + 1] = [l, d, c, layers, int(parts.pooling == "last"), kept, norms]
    numbers, sources = torch.cat(sheet.pieces), tuple(sheet.sources) if learnt else ()
    program = torch.tensor([*header, *chain.from_iterable(blocks)])
    return Plan(program, numbers, l, d, c, layers, kept, norms, sources, own)


def _block(block: Residual, k: Tensor, sheet: _Sheet, unit: int, saved: Iterator[int]) -> list[int]:
    own = [-1] * at.BLOCK
    own[at.PRENORM], own[at.SKIP] = int(block.prenorm), int(block.skip)
    own[at.NORM], own[at.UNIT] = sheet.norm(block.norm), unit
    padded = F.pad(k.detach(), (PAD, 0))
    own[at.KERNEL], own[at.KERNEL_BACK] = sheet.add(padded, "kernel", k), sheet.add(padded.flip(1))
    own[at.SIGMA] = own[at.ACT] = own[at.FINAL] = 0
    ads, mixer = block.ads, block.mixer
    if isinstance(ads, AdS):
        own[at.ADS], own[at.ADS_BACK], own[at.ADS_BIAS] = sheet.matrices(ads.scale)
        own[at.SIGMA], own[at.SCALED], own[at.LEVER] = _curve(ads.sigma) or 0, next(saved), next(saved)
    if isinstance(mixer, Mixer):
        own[at.ACT] = _curve(mixer.act) or 0
        if mixer.linear is not None:
            own[at.MIX], own[at.MIX_BACK], own[at.MIX_BIAS] = sheet.matrices(mixer.linear)
            own[at.FINAL] = _curve(mixer.final) or 0
    kept = (at.ACT, at.BENT), (at.FINAL, at.CURVED)
    for place in (place for code, place in kept if own[code]):
        own[place] = next(saved)
    return own


def _learn(own: list[int], saved: Iterator[int]) -> int:
    """Give a block arrays for what its parameters' gradients need: how many."""
    needed = [at.INPUT, *([at.RAW] if own[at.ADS] >= 0 else []), *([at.MIXED] if own[at.MIX] >= 0 else [])]
    for place in needed:
        own[place] = next(saved)
    return len(needed)


# -- the pass ----------------------------------------------------------------------------------------------------------


class _Walk(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, plan: Plan, again: Again, *tensors: Tensor) -> Tensor:
        kernels, keep = _kernels(x.device, x.dtype), any(ctx.needs_input_grad)
        room = kernels.memory(plan, x.shape[0])
        out: Tensor = kernels.forward(plan, x, room, keep)
        if keep:
            ctx.save_for_backward(x, *tensors)
            ctx.plan, ctx.again, ctx.room = plan, again, room
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        (x, *tensors), g, plan = ctx.saved_tensors, gradients[0], ctx.plan
        needed = [ctx.needs_input_grad[0], *ctx.needs_input_grad[3:]]
        if by_graph_only(g):
            gx, *found = _by_graph(ctx.again, [x, *tensors], g, needed)
            return gx, None, None, *found
        learnt = any(needed[1:])
        gx, sheet = _kernels(g.device, g.dtype).backward(plan, g, ctx.room, x if learnt else None)
        if sheet is None:
            return gx, None, None, *([None] * len(tensors))
        found = [_gradient(s, sheet).to(s.tensor.dtype) for s in plan.sources]
        return gx, None, None, *found


def _gradient(source: Source, sheet: Tensor) -> Tensor:
    shape = source.tensor.shape
    if source.kind == "row":
        return sheet[source.place : source.place + WIDTH * shape[0]].view(-1, WIDTH).sum(1)
    if source.kind == "kernel":
        whole = shape[0] * (PAD + shape[1])
        return sheet[source.place : source.place + whole].view(shape[0], -1)[:, PAD:]
    return sheet[source.place : source.place + shape.numel()].view(shape)


def _by_graph(again: Again, inputs: list[Tensor], g: Tensor, needed: list[bool]) -> list[Tensor | None]:
    """The gradients of again(x), run once more, as a graph."""
    with torch.enable_grad():
        output = again(inputs[0])
    wanted = [t for t, need in zip(inputs, needed, strict=True) if need]
    graph = torch.is_grad_enabled()
    found = iter(torch.autograd.grad(output, wanted, g, create_graph=graph, allow_unused=True))
    return [next(found) if need else None for need in needed]


def _kernels(device: torch.device, dtype: torch.dtype) -> Any:
    """The compiled module, or None where numba is missing, refused, or another backend is forced."""
    found = choose("cohort", _CANDIDATES, device, dtype)
    return None if found is nothing else found


def _load() -> Any:
    from resolvent.blocks import cohort_numba

    return cohort_numba


def tiny(dtype: torch.dtype) -> tuple[Plan, Again]:
    """A block of three channels and two steps to try kernels on: its plan, and its features in torch's operations."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        entry, block = nn.Linear(1, 3).to(dtype), Residual(S4D(3, 2), mixer=Mixer(3, "linear"), prenorm=False).to(dtype)
    k = torch.tensor([[0.5, 0.25], [1.0, -1.0], [0.0, 2.0]], dtype=dtype)

    def features(x: Tensor) -> Tensor:
        h = entry(x)
        y = torch.stack([k[:, 0] * h[:, 0], k[:, 0] * h[:, 1] + k[:, 1] * h[:, 0]], 1)
        found: Tensor = block.norm(h + block.mixer(y)).mean(1)
        return found

    return _laid_out(Parts(entry, NoNorm(3), [block], [k], NoNorm(3), "mean"), dtype, False), features


def _probe(kernels: Any, device: torch.device, dtype: torch.dtype) -> bool:
    """One block of two steps against torch's operations, values and gradient."""
    plan, features = tiny(dtype)
    x, g = torch.tensor([[[1.0], [2.0]]], dtype=dtype, requires_grad=True), torch.tensor([[0.5, 1.0, 0.0]], dtype=dtype)
    with torch.enable_grad():
        want = features(x)
        (slope,) = torch.autograd.grad(want, x, g)
    room = kernels.memory(plan, 1)
    got = kernels.forward(plan, x.detach(), room, True), kernels.backward(plan, g, room)[0]
    return all(torch.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in zip(got, (want, slope), strict=True))


_CANDIDATES = numba_or(nothing, _load, _probe)
