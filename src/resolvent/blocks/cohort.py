"""A whole stack of residual blocks on a CPU, eight samples at a time, with the gradient in x alone: what attacks run.

    entry -> norm -> [ x + mixer(ads(k * norm(x))) ] or [ norm(x + mixer(ads(k * x))) ] -> norm -> pool

x (b, l, c) -> features (b, d). The parameters are laid out once (`plan`), after which a pass is one call in each
direction (`cohort_numba`). Gradients of gradients run the way that the caller names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from resolvent.blocks import cohort_layout as at
from resolvent.blocks.ads import AdS
from resolvent.blocks.cohort_layout import Plan
from resolvent.blocks.mixer import Mixer
from resolvent.blocks.norm import LayerNorm, NoNorm
from resolvent.blocks.residual import Residual
from resolvent.layers.s4d import S4D
from resolvent.scan.dispatch import Candidate, choose
from resolvent.ssm.blocked import by_graph_only, gradients_by_graph

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
    found: Tensor = _Walk.apply(x, plan, again)
    return found


def plan(parts: Parts, dtype: torch.dtype) -> Plan | None:
    """The stack as numbers, or None where it has another form or no compiled walk runs here."""
    device = parts.entry.weight.device
    if device.type != "cpu" or dtype not in (torch.float32, torch.float64) or not _covers(parts):
        return None
    return _laid_out(parts, dtype) if _kernels(device, dtype) is not None else None


def _covers(parts: Parts) -> bool:
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
    size: int = 0

    def add(self, *tensors: Tensor) -> int:
        """The place of the first of them."""
        place = self.size
        for t in tensors:
            self.pieces.append(t.detach().to(self.dtype).reshape(-1))
            self.size += t.numel()
        return place

    def row(self, vector: Tensor) -> int:
        return self.add(_lanes(vector))

    def norm(self, norm: nn.Module) -> int:
        if not isinstance(norm, LayerNorm):
            return -1
        return self.add(_lanes(norm.weight), _lanes(norm.bias), torch.tensor([norm.eps]))

    def matrices(self, module: nn.Linear, bias: int) -> tuple[int, int, int]:
        """W' and W, and its bias as a row."""
        W, b = module.weight, module.bias
        return self.add(W.t()), self.add(W), self.row(W.new_zeros(bias) if b is None else b)


def _lanes(vector: Tensor) -> Tensor:
    return vector.detach().repeat_interleave(WIDTH)


def _laid_out(parts: Parts, dtype: torch.dtype) -> Plan:
    d, l = parts.responses[0].shape
    sheet, header = _Sheet(dtype), [0] * at.HEADER
    units = iter(range(len(parts.blocks) + 2))
    rest = iter(range(10**6))
    header[at.ENTRY], header[at.ENTRY_BACK], header[at.ENTRY_BIAS] = sheet.matrices(parts.entry, d)
    header[at.START_NORM], header[at.END_NORM] = sheet.norm(parts.start), sheet.norm(parts.end)
    header[at.START_UNIT], header[at.END_UNIT] = next(units), next(units)
    norms = len(parts.blocks) + 2
    program = []
    for block, k in zip(parts.blocks, parts.responses, strict=True):
        program += _block(block, k, sheet, next(units), (norms + i for i in rest))
    saved = norms + next(rest)
    c, layers = parts.entry.in_features, len(parts.blocks)
    header[: at.NORMS + 1] = [l, d, c, layers, int(parts.pooling == "last"), saved, norms]
    return Plan(torch.tensor(header + program), torch.cat(sheet.pieces), l, d, c, layers, saved, norms)


def _block(block: Residual, k: Tensor, sheet: _Sheet, unit: int, saved: Any) -> list[int]:
    own = [-1] * at.BLOCK
    own[at.PRENORM], own[at.SKIP] = int(block.prenorm), int(block.skip)
    own[at.NORM], own[at.UNIT] = sheet.norm(block.norm), unit
    padded = F.pad(k.detach(), (PAD, 0))
    own[at.KERNEL], own[at.KERNEL_BACK] = sheet.add(padded), sheet.add(padded.flip(1))
    own[at.SIGMA] = own[at.ACT] = own[at.FINAL] = 0
    ads, mixer = block.ads, block.mixer
    if isinstance(ads, AdS):
        own[at.ADS], own[at.ADS_BACK], own[at.ADS_BIAS] = sheet.matrices(ads.scale, k.shape[0])
        own[at.SIGMA], own[at.SCALED], own[at.LEVER] = _curve(ads.sigma) or 0, next(saved), next(saved)
    if not isinstance(mixer, Mixer):
        return own
    own[at.ACT] = _curve(mixer.act) or 0
    if mixer.linear is not None:
        own[at.MIX], own[at.MIX_BACK], own[at.MIX_BIAS] = sheet.matrices(mixer.linear, k.shape[0])
        own[at.FINAL] = _curve(mixer.final) or 0
    for code, place in ((at.ACT, at.BENT), (at.FINAL, at.CURVED)):
        own[place] = next(saved) if own[code] else -1
    return own


# -- the pass ----------------------------------------------------------------------------------------------------------


class _Walk(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, plan: Plan, again: Again) -> Tensor:
        kernels, keep = _kernels(x.device, x.dtype), ctx.needs_input_grad[0]
        room = kernels.memory(plan, x.shape[0])
        out: Tensor = kernels.forward(plan, x, room, keep)
        if keep:
            ctx.save_for_backward(x)
            ctx.plan, ctx.again, ctx.room = plan, again, room
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        (x,), g = ctx.saved_tensors, gradients[0]
        if by_graph_only(g):
            return *gradients_by_graph(lambda t: (ctx.again(t),), (x,), (g,), (True,)), None, None
        return _kernels(g.device, g.dtype).backward(ctx.plan, g, ctx.room), None, None


def _kernels(device: torch.device, dtype: torch.dtype) -> Any:
    """The compiled module, or None where numba is missing, refused, or another backend is forced."""
    found = choose("cohort", _CANDIDATES, device, dtype)
    return None if found is _nothing else found


def _nothing() -> None:
    """Stands for "the modules themselves"."""


def _load() -> Any:
    from resolvent.blocks import cohort_numba

    return cohort_numba


def _probe(kernels: Any, device: torch.device, dtype: torch.dtype) -> bool:
    """One block of two steps against torch's operations, values and gradient."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        entry, block = nn.Linear(1, 3).to(dtype), Residual(S4D(3, 2), mixer=Mixer(3, "linear"), prenorm=False).to(dtype)
    k = torch.tensor([[0.5, 0.25], [1.0, -1.0], [0.0, 2.0]], dtype=dtype)
    plan = _laid_out(Parts(entry, NoNorm(3), [block], [k], NoNorm(3), "mean"), dtype)
    x = torch.tensor([[[1.0], [2.0]]], dtype=dtype, requires_grad=True)
    with torch.enable_grad():
        h = entry(x)
        y = torch.stack([k[:, 0] * h[:, 0], k[:, 0] * h[:, 1] + k[:, 1] * h[:, 0]], 1)
        want = block.norm(h + block.mixer(y)).mean(1)
        (slope,) = torch.autograd.grad(want, x, k[None, :, 0])
    room = kernels.memory(plan, 1)
    pairs = (kernels.forward(plan, x.detach(), room, True), want), (kernels.backward(plan, k[None, :, 0], room), slope)
    return all(torch.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in pairs)


def _cpu(device: torch.device, dtype: torch.dtype) -> bool:
    return device.type == "cpu" and dtype in (torch.float32, torch.float64)


_EVERYWHERE: Any = (lambda device, dtype: True), (lambda: _nothing), (lambda kernel, device, dtype: True)
_CANDIDATES = (
    Candidate("numba", _cpu, _load, _probe),
    Candidate("torch", *_EVERYWHERE),
    Candidate("reference", *_EVERYWHERE),
)
