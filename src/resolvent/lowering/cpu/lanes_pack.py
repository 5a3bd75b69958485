"""A stack laid out as numbers: from `Parts` to a `Plan`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import chain, count
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from resolvent.lowering.cpu import lanes_layout as at
from resolvent.lowering.cpu.lanes_layout import PAD, WIDTH, Plan, Source
from resolvent.lowering.program import Chain, Linear, Skip
from resolvent.lowering.recurrence import Recurrence

# The code of an activation, its place in `activation_numba.NAMES`.
CURVES = {"none": 0, "relu": 1, "sigmoid": 2, "tanh": 3, "silu": 4, "gelu": 5, "gelu_tanh": 6}
Operator = Tensor | Recurrence


@dataclass(frozen=True)
class Parts:
    """The nodes of a stack, and what each block's layer does to l steps: a response k (d, l) or a recurrence."""

    entry: Linear
    start: Chain
    blocks: list[Skip]
    layers: list[Operator]
    end: Chain
    pooling: str  # "mean" or "last"
    l: int


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
    """The same for gradients in x alone."""
    program, saved = plan.program.clone(), plan.saved - plan.learnt
    program[at.SAVED], program[at.TRACES] = saved, 0
    program[at.HEADER :].view(plan.layers, at.BLOCK)[:, at.INPUT : at.TRACE + 1] = -1
    return replace(plan, program=program, saved=saved, sources=(), learnt=0, traces=0)


def lay_out(parts: Parts, dtype: torch.dtype, learnt: bool, kernels: Any) -> Plan:
    (d, c), layers = parts.entry.read(parts.entry.module)[0].shape, len(parts.blocks)
    sheet, header, norms = _Sheet(dtype), [0] * at.HEADER, layers + 2
    saved, traces = count(norms), count()  # the norms' own arrays come first
    header[at.ENTRY], header[at.ENTRY_BACK], header[at.ENTRY_BIAS] = sheet.matrices(parts.entry)
    header[at.START_NORM], header[at.END_NORM] = sheet.norm(parts.start), sheet.norm(parts.end)
    header[at.START_UNIT], header[at.END_UNIT] = layers, layers + 1
    blocks = [_block(*own, sheet, i, saved) for i, own in enumerate(zip(parts.blocks, parts.layers, strict=True))]
    own = sum(_learn(block, saved, traces) for block in blocks) if learnt else 0
    kept, traced, states = next(saved), next(traces), max(block[at.STATES] for block in blocks)
    wide = states * WIDTH + WIDTH if states else 0
    header[: at.WIDE + 1] = [parts.l, d, c, layers, int(parts.pooling == "last"), kept, norms, traced, wide]
    numbers, sources = torch.cat(sheet.pieces), tuple(sheet.sources) if learnt else ()
    program = torch.tensor([*header, *chain.from_iterable(blocks)])
    return Plan(program, numbers, parts.l, d, c, layers, kept, norms, wide, sources, kernels, own, traced)


def _block(block: Skip, layer: Operator, sheet: _Sheet, unit: int, saved: Iterator[int]) -> list[int]:
    own = [-1] * at.BLOCK
    own[at.PRENORM], own[at.SKIP] = int(block.prenorm), int(block.adds)
    own[at.NORM], own[at.UNIT] = sheet.norm(block.norm), unit
    _layer(own, layer, sheet)
    own[at.SIGMA] = own[at.ACT] = own[at.FINAL] = 0
    around = block.around
    assert around is not None
    if around.scale is not None:
        own[at.ADS], own[at.ADS_BACK], own[at.ADS_BIAS] = sheet.matrices(around.scale)
        own[at.SIGMA], own[at.SCALED], own[at.LEVER] = CURVES[around.sigma], next(saved), next(saved)
    own[at.ACT] = CURVES[around.act]
    if around.linear is not None:
        own[at.MIX], own[at.MIX_BACK], own[at.MIX_BIAS] = sheet.matrices(around.linear)
        own[at.FINAL] = CURVES[around.final]
    kept = (at.ACT, at.BENT), (at.FINAL, at.CURVED)
    for place in (place for code, place in kept if own[code]):
        own[place] = next(saved)
    return own


def _layer(own: list[int], layer: Operator, sheet: _Sheet) -> None:
    """The numbers of a block's layer."""
    if isinstance(layer, Recurrence):
        own[at.STATES], own[at.LAM], own[at.PAST] = layer.lam.shape[0], sheet.row(layer.lam), sheet.row(layer.D)
        own[at.IN], own[at.IN_BACK] = sheet.matrix(layer.W_in)
        own[at.OUT], own[at.OUT_BACK] = sheet.matrix(layer.W_out)
        return
    padded = F.pad(layer.detach(), (PAD, 0))
    own[at.KERNEL], own[at.KERNEL_BACK] = sheet.add(padded, "kernel", layer), sheet.add(padded.flip(1))
    own[at.STATES] = 0


def _learn(own: list[int], saved: Iterator[int], traces: Iterator[int]) -> int:
    """Give a block arrays for what its parameters' gradients need: how many of the saved ones."""
    if own[at.STATES]:
        own[at.TRACE] = next(traces)
    needed = [at.INPUT, *([at.RAW] if own[at.ADS] >= 0 else []), *([at.MIXED] if own[at.MIX] >= 0 else [])]
    for place in needed:
        own[place] = next(saved)
    return len(needed)
