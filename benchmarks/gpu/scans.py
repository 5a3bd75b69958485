"""The scans among the rows of benchmarks/gpu: ours, the straightforward eager version, and the peers.

The floor of a row is the larger of two times: the fewest bytes it can move (every input read once, every output written
once) at the rate of a copy, and its exponentials at the rate at which a kernel of nothing else computes them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.eager_scans import gated_tree, projected_tree, selective_loop, tree_scan
from benchmarks.gpu import peers
from benchmarks.gpu.case import EAGER, OURS, Cost, Running, Timing
from resolvent.conformance.tolerance import GRADIENTS, VALUES, distance
from resolvent.ops.gated_scan.operation import gated_scan
from resolvent.ops.projected_scan.operation import projected_scan
from resolvent.scan import linear_scan, selective_scan, use

Shape = tuple[int, int, int]
Tensors = list[Tensor]
Outcome = tuple[Tensors, Tensors]  # values, gradients


def unchanged(x: Tensors) -> Tensors:
    return x


@dataclass(frozen=True)
class Scan:
    """One contender: `call` takes the inputs without the upstream gradient; its first output is differentiated.

    place  the inputs, upstream gradient last, as it wants them; not timed
    back   gradients of what it was given as gradients of the inputs, which come second
    """

    name: str
    call: Callable[..., Any]
    ahead: bool = False
    place: Callable[[Tensors], Tensors] = unchanged
    back: Callable[[Tensors, Tensors], Tensors] = lambda gradients, x: gradients


@dataclass
class ScanCase:
    """`inputs` makes what the scan reads and, last, the upstream gradient; ours in float64 torch is the truth.

    `rivals` are asked for when their turn comes: a peer is imported only then. With `record` all but the eager version
    are timed as CUDA graphs, as a recorded step runs them: called one by one, they wait for the host.
    """

    name: str
    dtype: torch.dtype
    device: torch.device
    inputs: Callable[[], Tensors]
    timings: Sequence[Timing]
    ours: Callable[..., Any]
    rivals: Callable[[], list[Scan]]
    record: bool = False

    @property
    def contenders(self) -> list[Scan]:
        return [Scan(OURS, self.ours, ahead=True), *self.rivals()]

    def errors(self, contender: Scan) -> dict[str, float]:
        """Distances from the float64 reference, relative to its scale; of the outputs that a contender has."""
        got, want = outcome(contender, self.placed), self.truth
        pairs = {"values": (got[0], want[0]), "gradients": (got[1], want[1])}
        return {
            name: max(distance(widened(a), b) for a, b in zip(found, true, strict=False))
            for name, (found, true) in pairs.items()
        }

    def limit(self, error: str) -> float:
        real = {torch.complex64: torch.float32}.get(self.dtype, self.dtype)
        return (VALUES if error == "values" else GRADIENTS)[real]

    def running(self, contender: Scan, timing: Timing) -> Running:
        x, warm = contender.place(self.placed), contender.name != EAGER
        return Running(lambda: prepared(contender, x, timing), self.device, warm=warm, record=self.record and warm)

    def once(self, contender: Scan) -> None:
        outcome(contender, self.placed)
        for timing in self.timings:
            prepared(contender, contender.place(self.placed), timing)()

    def clear(self) -> None:
        for name in ("placed", "truth"):
            self.__dict__.pop(name, None)

    @functools.cached_property
    def placed(self) -> Tensors:
        torch.manual_seed(0)
        return self.inputs()

    @functools.cached_property
    def truth(self) -> Outcome:
        with use("torch"):
            return outcome(self.contenders[0], [widened(t) for t in self.placed])


def widened(x: Tensor) -> Tensor:
    return x.to(torch.complex128 if x.is_complex() else torch.float64)


def outcome(contender: Scan, inputs: Tensors) -> Outcome:
    *x, upstream = contender.place(inputs)
    leaves = [t.detach().requires_grad_() for t in x]
    values = outputs(contender.call(*leaves))
    gradients = list(torch.autograd.grad(values[0], leaves, upstream.to(values[0].dtype)))
    return [v.detach() for v in values], contender.back(gradients, inputs)


def outputs(found: Any) -> Tensors:
    return list(found) if isinstance(found, tuple | list) else [found]


def prepared(contender: Scan, placed: Tensors, timing: Timing) -> Callable[[], object]:
    """The work of one timing; placed as the contender wants it."""
    *x, upstream = placed
    if timing.kind == "forward":
        return lambda: contender.call(*x)
    wanted = range(len(x)) if timing.wanted is None else timing.wanted
    leaves = [t.detach().requires_grad_(i in wanted) for i, t in enumerate(x)]
    if timing.kind == "saving":
        return lambda: contender.call(*leaves)
    y = outputs(contender.call(*leaves))[0]
    asked, g = [leaves[i] for i in wanted], upstream.to(y.dtype)
    return lambda: torch.autograd.grad(y, asked, g, retain_graph=True)


def time_last(x: Tensors) -> Tensors:
    """The same shapes (b, l, n), time innermost in memory."""
    return [t.mT.contiguous().mT if t.dim() == 3 and t.shape[1] > 1 else t for t in x]


def known(made: Sequence[tuple[peers.Peer, dict[str, Any]]]) -> list[Scan]:
    """Those peers that are there."""
    found = [(peer, peer.found(), more) for peer, more in made]
    return [Scan(peer.name, call, peer.triton, **more) for peer, call, more in found if not isinstance(call, str)]


# -- h_t = a_t h_{t-1} + b_t -------------------------------------------------------------------------------------------


def linear(
    shape: Shape, dtype: torch.dtype, device: torch.device, *, last: bool = False, fixed: bool = False,
    target: float | None = None, back: float | None = None, quoted: str = "", rival: str = "",
) -> ScanCase:  # fmt: skip
    """(b, l, n), in memory as it is or with time last; a for each step or one for all. `back`: of the gradients."""
    kind = "complex" if dtype.is_complex else "real"
    layout, what = "time last" if last else "channels last", "fixed a" if fixed else "a per step"
    name = f"linear scan, {kind}, {str(dtype)[6:]}, (b, l, n) = {shape}, {layout}, {what}"
    b, l, n = shape
    unit, reads = b * l * n * dtype.itemsize, 1 if fixed else 2
    timings = [
        Timing("forward", "forward", (Cost((reads + 1) * unit),), target, quoted, rival=rival),
        Timing("backward", "backward", (Cost((2 * reads + 1) * unit),), back),
    ]
    inputs = functools.partial(_linear_inputs, shape, dtype, device, last, fixed)

    def rivals() -> list[Scan]:
        return [Scan(EAGER, tree_scan), *known(_linear_peers(dtype, last, fixed))]

    return ScanCase(name, dtype, device, inputs, timings, linear_scan, rivals, record=True)


def _linear_inputs(shape: Shape, dtype: torch.dtype, device: torch.device, last: bool, fixed: bool) -> Tensors:
    """a, b and the upstream gradient."""
    size = 0.3 + 0.69 * torch.rand((1, 1, shape[-1]) if fixed else shape, device=device)
    a = torch.polar(size, 6.3 * torch.rand_like(size)) if dtype.is_complex else size
    rest = (torch.randn(shape, device=device, dtype=dtype) for _ in range(2))
    x = [t.to(dtype) for t in (a, *rest)]
    return time_last(x) if last else x


def _linear_peers(dtype: torch.dtype, last: bool, fixed: bool) -> list[tuple[peers.Peer, dict[str, Any]]]:
    """Those that compute this recurrence in this layout; theirs take an a for each step."""
    if fixed:
        return []
    if dtype.is_complex:
        return [(peers.ACCELERATED_COMPLEX, {})] if last else [(peers.S5_PYTORCH, {})]
    if last:
        return [(peers.ACCELERATED, {}), (peers.ACCELERATED_CUDA, {})]
    logarithm = {  # in float32: a bf16 logarithm is another a
        "place": lambda x: [x[0].float().log(), *x[1:]],
        "back": lambda gradients, x: [gradients[0] / x[0], gradients[1]],
    }
    return [(peers.HGRN, logarithm), (peers.MAMBAPY, {})]


# -- the scan of S5 between its products -------------------------------------------------------------------------------


def projected(d: int, b: int, l: int, p: int, dtype: torch.dtype, device: torch.device) -> ScanCase:
    """y = W_out scan(lam, W_in x), (d, b, l), p complex states; what an attack differentiates, and all of it."""
    unit, product = d * b * l * dtype.itemsize, 4.0 * d * p * b * l
    timings = [
        Timing("forward", "forward", (Cost(2 * unit, 2 * product),)),
        Timing("input gradient", "backward", (Cost(2 * unit, 2 * product),), wanted=(3,)),
        Timing("backward", "backward", (Cost(3 * unit, 5 * product),)),  # one product finds the states again
    ]
    name = f"fused scan, {str(dtype)[6:]}, (d, b, l, p) = ({d}, {b}, {l}, {p})"
    inputs = functools.partial(_projected_inputs, d, b, l, p, dtype, device)
    rivals = lambda: [Scan(EAGER, projected_tree)]  # noqa: E731
    return ScanCase(name, dtype, device, inputs, timings, projected_scan, rivals, record=True)


def _projected_inputs(d: int, b: int, l: int, p: int, dtype: torch.dtype, device: torch.device) -> Tensors:
    """lam, W_in, W_out, x and the upstream gradient."""
    size = 0.3 + 0.69 * torch.rand(p, device=device)
    lam = torch.view_as_real(torch.polar(size, 6.3 * torch.rand_like(size))).contiguous()
    W_in, W_out = torch.randn(2 * p, d, device=device) / d**0.5, torch.randn(d, 2 * p, device=device) / p**0.5
    return [lam, *(t.to(dtype) for t in (W_in, W_out, *(torch.randn(d, b, l, device=device) for _ in range(2))))]


# -- the fused scan of Mamba -------------------------------------------------------------------------------------------


def selective(
    shape: Shape, n: int, dtype: torch.dtype, device: torch.device, goals: dict[str, tuple[float, str]] | None = None
) -> ScanCase:
    """With skip and gate; shape (batch, channels, length)."""
    b, d, l = shape
    wide, slim, updates = b * d * l * dtype.itemsize, b * l * n * dtype.itemsize, float(b * d * l * n)
    gates = 2.0 * b * d * l  # an ex2 and a reciprocal, which the same unit computes
    states = updates / 4 * dtype.itemsize  # saved for the backward pass

    def timing(name: str, kind: str, moved: float, exponentials: float) -> Timing:
        return Timing(name, kind, (Cost(moved, 0.0, exponentials),), *(goals or {}).get(name, (None, "")))

    timings = [
        timing("forward", "forward", 4 * wide + 2 * slim, updates + gates),
        timing("forward, states saved", "saving", 4 * wide + 2 * slim + states, updates + gates),
        timing("backward", "backward", 7 * wide + 4 * slim + states, updates + gates),
    ]
    name = f"selective scan, {str(dtype)[6:]}, (b, d, l) = {shape}, n = {n}, skip and gate"
    inputs = functools.partial(_selective_inputs, shape, n, dtype, device)

    def rivals() -> list[Scan]:
        others = [(peers.MAMBA_SSM, {"place": time_last}), (peers.MAMBAPY_SELECTIVE, {})]
        return [Scan(EAGER, selective_loop), *known(others)]

    return ScanCase(name, dtype, device, inputs, timings, selective_scan, rivals, record=True)


def _selective_inputs(shape: Shape, n: int, dtype: torch.dtype, device: torch.device) -> Tensors:
    """u, dt, A, B, C, D, z and the upstream gradient."""
    b, d, l = shape
    wide, slim = (b, l, d), (b, l, n)
    u, z, g = (torch.randn(wide, device=device).to(dtype) for _ in range(3))
    B, C = (torch.randn(slim, device=device).to(dtype) for _ in range(2))
    dt = (0.1 * torch.rand(wide, device=device)).to(dtype)
    A = -torch.arange(1, n + 1, device=device, dtype=torch.float32).expand(d, -1).contiguous()
    return [u, dt, A, B, C, torch.randn(d, device=device), z, g]


# -- the gated scan of RG-LRU ------------------------------------------------------------------------------------------


def gated(shape: Shape, dtype: torch.dtype, device: torch.device) -> ScanCase:
    """(b, l, d): p, q and x in and h out; back with h and its gradient in, three gradients out."""
    b, l, d = shape
    unit, special = b * l * d * dtype.itemsize, 5.0 * b * l * d  # three ex2, a root, a reciprocal for both gates
    timings = [
        Timing("forward", "forward", (Cost(4 * unit, 0.0, special),)),
        Timing("backward", "backward", (Cost(8 * unit, 0.0, special),)),
    ]
    name = f"gated scan, {str(dtype)[6:]}, (b, l, d) = {shape}"
    inputs = functools.partial(_gated_inputs, shape, dtype, device)
    rivals = lambda: [Scan(EAGER, gated_tree)]  # noqa: E731
    return ScanCase(name, dtype, device, inputs, timings, gated_scan, rivals, record=True)


def _gated_inputs(shape: Shape, dtype: torch.dtype, device: torch.device) -> Tensors:
    """p, q, x, rate and the upstream gradient; rate as a fresh layer has it, radii from 0.9 to 0.999."""
    p, q, x, g = (torch.randn(shape, device=device).to(dtype) for _ in range(4))
    return [p, q, x, 8 * torch.log(torch.linspace(0.9, 0.999, shape[2], device=device)), g]


# -- all of them -------------------------------------------------------------------------------------------------------


def cases(device: torch.device, tiny: bool) -> list[ScanCase]:
    real, pair, half = torch.float32, torch.complex64, torch.bfloat16
    if tiny:
        return [
            linear((2, 33, 4), real, device, last=True, target=1e6, quoted="nobody 1 ms"),
            linear((2, 33, 4), pair, device),
            linear((2, 33, 4), real, device),
            projected(4, 2, 33, 3, real, device),
            selective((2, 4, 33), 3, real, device),
            gated((2, 33, 4), real, device),
        ]
    big, mamba = (8, 16384, 1536), "mamba_ssm CUDA {} ms"
    return [
        linear(big, real, device, last=True, target=0.58, quoted="accelerated-scan 0.58 ms",
               rival="accelerated-scan"),
        linear(big, pair, device, last=True, target=1.4, quoted="accelerated-scan 2.92 ms"),
        linear(big, real, device),
        linear(big, pair, device),
        linear(big, half, device),
        linear((256, 1024, 64), pair, device, fixed=True),
        linear((8, 4096, 64), pair, device, fixed=True, target=0.05, back=0.1),
        linear((1, 65536, 256), real, device, target=0.12, back=0.2),
        projected(128, 256, 1024, 64, half, device),
        selective((256, 256, 1024), 16, half, device, {
            "forward": (0.55, mamba.format(1.13)), "backward": (1.2, mamba.format("6.10")),
        }),
        selective((8, 1024, 16384), 16, half, device, {
            "forward": (1.2, mamba.format(2.76)), "backward": (2.6, mamba.format(9.48)),
        }),
        selective((256, 256, 1024), 16, real, device),
        gated((256, 1024, 256), half, device),
        gated((256, 1024, 256), real, device),
        gated((8, 16384, 1024), half, device),
    ]  # fmt: skip
