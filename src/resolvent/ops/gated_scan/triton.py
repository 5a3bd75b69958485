"""The Triton gated scan called from torch: memory in and out, and the split into programs.

Rows with enough channels to fill the device run in one pass over memory. Otherwise time is split into chunks: a pass
for each chunk's end state and product of multipliers, a short scan over those, and a second pass from the state that
enters each chunk. That reads three arrays twice in the forward and two in the backward (p and the upstream gradient),
where separate gates and scan pass over memory a dozen times: one kernel is faster at every size. The split depends
on the shapes alone, so that results are deterministic, bit for bit.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from resolvent.ops.gated_scan.inputs import Inputs
from resolvent.ops.gated_scan.reference import gated_reference, gradients_again
from resolvent.ops.gated_scan.triton_kernels import ANY, FIRST, NONE, backward_kernel, forward_kernel
from resolvent.ops.linear_scan.triton import ENOUGH, _as, short_scan
from resolvent.runtime.launch import attempt, either, on_device


class Tile(NamedTuple):
    """Steps, pipeline stages, channels per thread, warps per program."""

    steps: int
    stages: int
    per: int
    warps: int


# by direction and bytes of a number, as measured; the second for fewer or misaligned channels
TILES = {
    ("forward", 2): (Tile(4, 6, 2, 1), Tile(4, 6, 2, 1)),
    ("forward", 4): (Tile(4, 4, 4, 2), Tile(4, 6, 2, 1)),
    ("backward", 2): (Tile(4, 4, 4, 2), Tile(4, 4, 2, 1)),
    ("backward", 4): (Tile(4, 3, 4, 2), Tile(4, 4, 2, 1)),
}
WANTED = 4224  # target warps if time is split, below ENOUGH of them: thirty-two per multiprocessor
NARROW = Tile(16, 1, 1, 1)  # for less than four bytes per thread, which cannot be prefetched


class Cut(NamedTuple):
    """Tiles of bt steps by bn channels, `per` of them per thread and `stages` pipeline stages; chunks of `chunk`."""

    bt: int
    bn: int
    per: int
    warps: int
    stages: int
    chunk: int
    chunks: int


def forward(x: Inputs) -> Tensor:
    """h (b, l, d) in the dtype of x; p, q and x have one dtype and at least one number each."""
    return attempt(("gated_scan", x.x.dtype), lambda: _forward(x), lambda: gated_reference(*x))


def _forward(x: Inputs) -> Tensor:
    job = _Job(x, "forward", x.reverse)
    h = torch.empty(x.x.shape, dtype=x.x.dtype, device=x.x.device)
    entering = None
    if job.cut.chunks > 1:
        ends, product = job.new(), job.new()
        job.forward(h, None, ends, product)
        entering = short_scan(product, ends, job.before)
    job.forward(h, entering)
    return h


def backward(x: Inputs, h: Tensor, g: Tensor) -> tuple[Tensor | None, ...]:
    """Gradients of p, q, x, rate and h0 from that of h."""
    needs = (True,) * 4 + (x.h0 is not None,)
    key = ("gated_scan_backward", x.x.dtype)
    return attempt(key, lambda: _backward(x, h, g), lambda: gradients_again(x, g, needs))


def _backward(x: Inputs, h: Tensor, g: Tensor) -> tuple[Tensor | None, ...]:
    job = _Job(x, "backward", not x.reverse)
    g, h = _as(g, False), _as(h, False)
    ends, parts = job.new(), job.new()
    entering = None
    if job.cut.chunks > 1:
        product = job.new()
        job.backward((h, g, g, g, g), None, (parts, ends, product), ends_only=True)
        entering = short_scan(product, ends)
    gp, gq, gx = (torch.empty_like(t) for t in job.wide)
    job.backward((h, g, gp, gq, gx), entering, (parts, ends, parts))
    of_h0 = None if x.h0 is None else ends[:, -1].contiguous().to(x.h0.dtype)
    return gp, gq, gx, parts.sum((0, 1)).to(x.rate.dtype), of_h0


class _Job:
    """Data shared by the passes over the same inputs."""

    def __init__(self, x: Inputs, which: str, down: bool) -> None:
        self.wide = [_as(t, False) for t in (x.p, x.q, x.x)]
        self.shape = x.x.shape
        self.rate = _as(x.rate.float(), False)
        self.before = None if x.h0 is None else _as(x.h0.float(), False)
        self.starts, self.kind = _starts(x.start)
        b, l, d = self.shape
        self.cut = cut(b, l, d, x.x.dtype, which)
        self.down = down

    def new(self) -> Tensor:
        b, _, d = self.shape
        return torch.empty((b, self.cut.chunks, d), dtype=torch.float32, device=self.rate.device)

    def forward(
        self, h: Tensor, entering: Tensor | None, ends: Tensor | None = None, product: Tensor | None = None
    ) -> None:
        blank = self.rate
        arrays = [*self.wide, *self._given(entering), h, either(ends, blank)]
        self._launch(forward_kernel, [*arrays, either(product, blank)], entering, ends is not None)

    def backward(
        self,
        wide: tuple[Tensor, ...],
        entering: Tensor | None,
        slim: tuple[Tensor, ...],
        ends_only: bool = False,
    ) -> None:
        arrays = [*self.wide, *self._given(entering), *wide, *slim]
        self._launch(backward_kernel, arrays, entering, ends_only)

    def _given(self, entering: Tensor | None) -> tuple[Tensor, ...]:
        blank = self.rate
        return self.rate, either(self.starts, blank), either(self.before, blank), either(entering, blank)

    def _launch(self, kernel: Any, arrays: list[Tensor], entering: Tensor | None, ends: bool) -> None:
        (b, l, d), cut = self.shape, self.cut
        even = d % cut.bn == 0 and l % cut.bt == 0
        with on_device(self.rate):
            kernel[(b * cut.chunks * triton.cdiv(d, cut.bn),)](
                *arrays, l, d // cut.per, cut.chunk, cut.chunks, 1, DOWN=self.down, STARTS=self.kind, ENDS=ends,
                ENTERED=entering is not None, GIVEN=self.before is not None and not ends, EVEN=even,
                BT=cut.bt, BN=cut.bn, PER=cut.per, STAGES=cut.stages, num_warps=cut.warps,
            )  # fmt: skip


def cut(b: int, l: int, d: int, dtype: torch.dtype, which: str) -> Cut:
    bt, stages, per, warps = _tile(d, dtype.itemsize, which)
    warps = min(warps, triton.next_power_of_2(triton.cdiv(d, 32 * per)))
    bn = min(32 * per * warps, triton.next_power_of_2(d))
    held, tiles = b * triton.cdiv(d, bn) * warps, triton.cdiv(l, bt)
    chunk = l
    if held < ENOUGH and tiles >= 8:
        chunk = bt * max(4, triton.cdiv(tiles * held, WANTED))
    return Cut(bt, bn, per, warps, stages, chunk, triton.cdiv(l, chunk))


def _tile(d: int, size: int, which: str) -> Tile:
    best, other = TILES[which, size]
    if d % best.per == 0 and d >= 32 * best.per:
        return best
    if d % other.per == 0:
        return other
    return other._replace(per=1) if size >= 4 else NARROW


def _starts(start: Tensor | None) -> tuple[Tensor | None, int]:
    """Flags as read by the kernel: per-step ones in four bytes, which can be prefetched."""
    if start is None:
        return None, NONE.value
    if start.dim() == 1:
        return start.detach().contiguous().view(torch.uint8), FIRST.value
    return start.detach().to(torch.int32).contiguous(), ANY.value
