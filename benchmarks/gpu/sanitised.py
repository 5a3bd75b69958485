"""Every Triton kernel of the library once, on small awkward shapes, to be run under a memory checker.

    export PYTORCH_NO_CUDA_MEMORY_CACHING=1
    compute-sanitizer --error-exitcode 9 python -m benchmarks.gpu.sanitised
    compute-sanitizer --tool racecheck --error-exitcode 9 python -m benchmarks.gpu.sanitised

Without torch's cache every tensor is an allocation of its own, so that a step beyond its end is seen. Values and
gradients are compared with float64 operations beside it, and the kernels that were launched are counted: one that
fails and leaves its work to the torch path does not pass. Exit status 1 where a number is off or a kernel never ran.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.targets.cases import every_kernel
from resolvent.attacks import Threat
from resolvent.attacks.fab.walk import Pace, Walk, torch_stride
from resolvent.layers import dss, ema, lru, s4d, s5
from resolvent.lowering.gpu import fused, fused_torch
from resolvent.ops.bank_scan import dense
from resolvent.ops.bank_scan import operation as bank
from resolvent.ops.blocked import carry, chain
from resolvent.ops.dplr_bank import operation as dplr
from resolvent.ops.filter import two_sided
from resolvent.ops.gated_scan import operation as gated
from resolvent.ops.gated_scan import reference as gated_reference
from resolvent.ops.linear_scan import constant
from resolvent.ops.mimo_scan import operation as mimo
from resolvent.ops.projected_scan import operation as projected
from resolvent.runtime import chip
from resolvent.scan import linear_scan, selective_scan, use
from resolvent.ssm import bank_response, half_dplr, response
from resolvent.training.step.adversarial import plain_step, step_signs

toeplitz = import_module("resolvent.ops.filter.toeplitz")
biased_silu = import_module("resolvent.ops.pointwise.biased_silu")
conv_silu = import_module("resolvent.ops.pointwise.conv_silu")
skip_norm = import_module("resolvent.ops.pointwise.skip_norm")
gated_block = import_module("resolvent.ops.attention.gated_block")

TOLERANCE = {torch.bfloat16: 2e-2, torch.float32: 1e-4, torch.complex64: 1e-4}
Function = Callable[..., Any]
device = torch.device("cuda")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help=f"some of {', '.join(CASES)}, with commas between")
    parser.add_argument("--device", default="cuda", help="cpu: the torch paths alone, to try this file out")
    options = parser.parse_args()
    names = options.only.split(",") if options.only else list(CASES)
    global device
    device = torch.device(options.device)
    launched, warned = watched() if device.type == "cuda" else (set(), [])
    torch.manual_seed(0)
    wrong = [name for name in names if not run_case(name)]
    missing = set() if options.only or device.type != "cuda" else expected() - launched
    for name in sorted(launched):
        print("ran", name)
    for line in (*warned, *(f"never ran: {name}" for name in sorted(missing)), *(f"wrong: {name}" for name in wrong)):
        print(line)
    return 1 if wrong or missing or warned else 0


def run_case(name: str) -> bool:
    """One case, its largest error relative to what is allowed."""
    worst = max(CASES[name]())
    if device.type == "cuda":
        torch.cuda.synchronize()
    print(f"{name}: {worst:.2g} of what is allowed", flush=True)
    return worst <= 1


def watched() -> tuple[set[str], list[str]]:
    """The kernels launched from now on, and what the library logs about any that it gave up on."""
    from triton.runtime.jit import JITFunction

    launched: set[str] = set()
    run = JITFunction.run

    def noted(self: Any, *args: Any, **options: Any) -> Any:
        launched.add(f"{self.fn.__module__}.{self.fn.__name__}")
        return run(self, *args, **options)

    JITFunction.run = noted
    warned: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: warned.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("resolvent").addHandler(handler)
    return launched, warned


def expected() -> set[str]:
    """All kernels, but for those that this chip has no use for."""
    return {
        name for name in every_kernel() if chip.copies_tiles(torch.empty(0, device=device)) or "post_norm" not in name
    }


def compared(quick: Function, plain: Function, inputs: Sequence[Tensor], learnt: int | None = None) -> float:
    """Outputs and the gradients of the first `learnt` inputs (all unless told) against the same in float64."""
    learnt = len(inputs) if learnt is None else learnt
    wide = [t.to(torch.promote_types(t.dtype, torch.float64)).requires_grad_() for t in inputs]
    with use("torch"):
        want = plain(*wide)
        g = torch.randn_like(want).to(inputs[0].dtype)
        truth = [want, *torch.autograd.grad(want, wide[:learnt], g.to(want.dtype))]
    own = [t.clone().requires_grad_(i < learnt) for i, t in enumerate(inputs)]
    y = quick(*own)
    found = [y, *torch.autograd.grad(y, own[:learnt], g.to(y.dtype))]
    return max(distance(a, w) for a, w in zip(found, truth, strict=True)) / TOLERANCE[inputs[0].dtype]


def distance(got: Tensor, want: Tensor) -> float:
    gap = (got.detach().to(want.dtype) - want.detach()).norm()
    return float(gap / want.detach().norm().clamp_min(1e-12))


def normal(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(*shape, device=device).to(dtype)


def linear() -> list[float]:
    """Channels last and time last in memory, real, complex and half, both directions, more steps than a tile has."""
    found = []
    for dtype in (torch.float32, torch.complex64, torch.bfloat16):
        for l, last in ((70, False), (2100, False), (2100, True)):
            a = 0.6 + 0.35 * torch.rand(2, l, 5, device=device)
            a = torch.polar(a, 6 * torch.rand_like(a)) if dtype.is_complex else a
            b = torch.randn(2, l, 5, device=device, dtype=dtype if dtype.is_complex else torch.float32)
            b = b.mT.contiguous().mT if last else b
            scan = lambda a, b, h, back=l == 70: linear_scan(a, b, h, reverse=back)  # noqa: E731
            found.append(compared(scan, scan, [a.to(dtype), b.to(dtype), b[:, 0].to(dtype)]))
    return found


def constants() -> list[float]:
    lam = torch.polar(0.69 + 0.3 * torch.rand(3, device=device), 6 * torch.rand(3, device=device))
    quick = lambda v, lam: constant.constant_scan(lam, v)  # noqa: E731
    plain = lambda v, lam: constant.constant_reference(lam, v)  # noqa: E731
    pairs = torch.view_as_real(lam).contiguous()
    return [compared(quick, plain, [normal(6, 3, l), pairs]) for l in (1, 777, 1100)]


def between() -> list[float]:
    """A scan between its products: left over in every direction, and whole tiles; all gradients, and that of x."""
    found = []
    projected.FEWEST = 1  # one kernel for small batches too
    for d, b, l, p in ((24, 3, 77, 18), (24, 3, 80, 18), (64, 2, 128, 64), (24, 2, 1, 20)):
        lam = torch.polar(0.69 + 0.3 * torch.rand(p, device=device), 6 * torch.rand(p, device=device))
        tables = [normal(2 * p, d) / d**0.5, normal(d, 2 * p) / p**0.5, torch.view_as_real(lam).contiguous()]
        quick = lambda x, W_in, W_out, lam: projected.projected_scan(lam, W_in, W_out, x)  # noqa: E731
        plain = lambda x, W_in, W_out, lam: projected.projected_reference(lam, W_in, W_out, x)  # noqa: E731
        found += [compared(quick, plain, [normal(d, b, l), *tables], learnt) for learnt in (1, 4)]
    return found


def selective() -> list[float]:
    """Few channels and long (cut into segments), odd ones, and whole tiles in half precision."""
    found = []
    for b, l, d, n, dtype in (
        (1, 1500, 8, 16, torch.float32), (2, 33, 5, 3, torch.float32), (2, 64, 128, 16, torch.bfloat16)
    ):  # fmt: skip
        sizes = [(b, l, d), (b, l, n), (b, l, n), (b, l, d)]
        u, B, C, z = (normal(*size, dtype=dtype) for size in sizes)
        dt, A = (0.3 * torch.rand(b, l, d, device=device)).to(dtype), -4 * torch.rand(d, n, device=device)
        D, h0 = torch.randn(d, device=device), torch.randn(b, d, n, device=device)
        scan = lambda u, B, C, z, dt, A, D, h0: selective_scan(u, dt, A, B, C, D=D, z=z, h0=h0)[0]  # noqa: E731
        found.append(compared(scan, scan, [u, B, C, z, dt, A, D, h0]))
    return found


def packed() -> list[float]:
    """Documents in a row: the linear scan in both layouts, the selective one whole and in segments."""
    found = []
    for l, last in ((70, False), (2100, False), (2100, True)):
        a, b = 0.6 + 0.35 * torch.rand(2, l, 5, device=device), torch.randn(2, l, 5, device=device)
        b, start = b.mT.contiguous().mT if last else b, torch.rand(2, l, device=device) < 0.1
        scan = lambda a, b, s=start, back=l == 70: linear_scan(a, b, reverse=back, start=s)  # noqa: E731
        found.append(compared(scan, scan, [a, b]))
    for b_, l, d, n in ((1, 1500, 8, 16), (2, 33, 5, 3)):
        u, B, C = (torch.randn(b_, l, k, device=device) for k in (d, n, n))
        dt, A = 0.3 * torch.rand(b_, l, d, device=device), -4 * torch.rand(d, n, device=device)
        start = torch.rand(b_, l, device=device) < 0.1
        run = lambda u, B, C, dt, A, s=start: selective_scan(u, dt, A, B, C, start=s)[0]  # noqa: E731
        found.append(compared(run, run, [u, B, C, dt, A]))
    return found


def gated_ones() -> list[float]:
    """Cut in time and not, starts at every kind of step, both directions, odd channels and pairs of them."""
    found = []
    for b, l, d, dtype, marks in (
        (1, 700, 6, torch.bfloat16, 2), (2, 13, 70, torch.bfloat16, 1), (300, 8, 64, torch.bfloat16, 0),
        (1, 701, 5, torch.float32, 2), (2, 33, 5, torch.bfloat16, 1), (1, 90, 132, torch.bfloat16, 2),
        (140, 9, 260, torch.float32, 1),
    ):  # fmt: skip
        p, q, x = (normal(b, l, d, dtype=dtype) for _ in range(3))
        rate, h0 = -torch.rand(d, device=device), torch.randn(b, d, device=device)
        start = (None, torch.rand(b, device=device) < 0.5, torch.rand(b, l, device=device) < 0.1)[marks]
        more: dict[str, Any] = {"first" if marks == 1 else "start": start, "reverse": l % 2 == 1}
        quick = lambda p, q, x, rate, h0, more=more: gated.gated_scan(p, q, x, rate, h0, **more)  # noqa: E731
        plain = lambda p, q, x, rate, h0, more=(start, l % 2 == 1): gated_reference.gated_reference(  # noqa: E731
            p, q, x, rate, h0, *more
        )
        found.append(compared(quick, plain, [p, q, x, rate, h0]))
    return found


def products() -> list[float]:
    """Whole slices, with a batch that does not fill its tiles; both directions of the moving average as well."""
    found = []
    for b, dtype in ((5, torch.bfloat16), (130, torch.bfloat16), (5, torch.float32)):
        k = torch.randn(3, 256, device=device) / 16
        quick = lambda x, k: toeplitz.toeplitz(k, x.dtype)(x)  # noqa: E731
        found.append(compared(quick, toeplitz.plain_product, [normal(3, b, 256, dtype=dtype), k]))
    sides = lambda x, p, f: two_sided.TwoSided(*(toeplitz.toeplitz(k, x.dtype) for k in (p, f)))(x)  # noqa: E731
    found.append(compared(sides, two_sided.plain_two_sided, [normal(3, 5, 256), k, k.flip(0)]))
    return found


def block() -> list[float]:
    """What follows the convolution of a post-norm block, with scaling and activation and without."""
    d, kind = 48, torch.bfloat16 if device.type == "cuda" else torch.float32
    y, r, g = (normal(d, 3, 77, dtype=kind) for _ in range(3))
    matrices = [torch.randn(d, d, device=device) / d**0.5 for _ in range(2)]
    vectors = [torch.randn(d, device=device) for _ in range(4)]
    plans = (("none", "none"), ("gelu_tanh", "tanh"), ("gelu", "none"))
    return [_block(y, r, g, *(_weights(k, plan, matrices, vectors) for k in (kind, torch.float64))) for plan in plans]


def _weights(kind: torch.dtype, plan: tuple[str, str], matrices: list[Tensor], vectors: list[Tensor]) -> Any:
    wide = torch.float64 if kind == torch.float64 else torch.float32
    (W, Wa), (*own, ba) = matrices, vectors
    more = (None, None, None) if plan[1] == "none" else (Wa.to(wide), ba.to(wide), Wa.to(kind))
    kept: Any = [t.to(wide) for t in (W, *own)]
    return fused_torch.Weights(1e-5, plan[0], "none", plan[1], kind, *kept, W.to(kind), *more)  # type: ignore[call-arg]


def _block(y: Tensor, r: Tensor, g: Tensor, low: Any, wide: Any) -> float:
    quick: Any = fused._triton() if y.is_cuda else fused_torch
    (got, made), (want, kept) = quick.forward(y, r, low), fused_torch.forward(y.double(), r.double(), wide)
    assert kept is not None
    back, truth = quick.backward(g, made, y, low, True), fused_torch.backward(g.double(), kept, y.double(), wide, True)
    pairs = [*zip((got, *made[:2]), (want, *kept[:2]), strict=True), *zip(back[:2], truth[:2], strict=True)]
    return max(distance(a, w) for a, w in pairs if w is not None) / TOLERANCE[torch.bfloat16]


def norms() -> list[float]:
    found = []
    for d, axis in ((24, 0), (200, -1)):
        shape = (d, 3, 77) if axis == 0 else (3, 77, d)

        def given(function: Function, axis: int = axis) -> Function:
            return lambda x, y, a, b, s, t: function(x, y, skip_norm.Ending(a, b, s, t, 1e-5), axis)

        inputs = [normal(*shape), normal(*shape), *(torch.randn(d, device=device) for _ in range(4))]
        found.append(compared(given(skip_norm.skip_norm), given(skip_norm.plain_skip_norm), inputs))
    return found


def taps() -> list[float]:
    inputs = [normal(2, 77, 24), torch.randn(24, 4, device=device), torch.randn(24, device=device)]
    return [compared(conv_silu.conv_silu, conv_silu.plain_conv_silu, inputs)]


def gates() -> list[float]:
    inputs = [normal(5, 3, 1111), torch.randn(5, device=device)]
    return [compared(biased_silu.biased_silu, biased_silu.plain_biased_silu, inputs)]


def attention() -> list[float]:
    d, z, w, l = 16, 16, 48, 77
    maps = [normal(*s) / s[1] ** 0.5 for s in ((2 * d + z + w, d), (w, d), (d, w))]
    rows = [torch.randn(s, device=device) for s in (d, z, w, d, w, (2, z), (2, z), 2 * l - 1, d, d)]
    averages = [torch.randn(d, l, device=device) / l for _ in range(2)]

    def given(run: Function) -> Function:
        def own(x: Tensor, *t: Tensor) -> Any:
            ema = two_sided.TwoSided(*(toeplitz.toeplitz(k, t[3].dtype) for k in t[:2]))
            return run(x, gated_block.Weights._make([ema, *t[2:13], skip_norm.Ending(*t[13:], None, None, 1e-5)]))

        return own

    quick = given(lambda x, w: gated_block.gated_block(None, x, w))
    plain = given(lambda x, w: gated_block.compose(None, x, w, w.ema))
    return [compared(quick, plain, [normal(d, 3, l), *averages, *maps, *rows])]


def probes() -> list[float]:
    """Kernels that are compared with float64 before their first use, on the same small shapes."""
    from resolvent.ops.bank_scan import triton as bank_triton
    from resolvent.ops.blocked import carry_triton
    from resolvent.ops.dplr_bank import triton as dplr_triton
    from resolvent.ops.linear_scan import triton as linear_triton
    from resolvent.ops.mimo_scan import triton as mimo_triton
    from resolvent.ops.modes import bank_response_triton
    from resolvent.ops.modes import mimo_triton as mimo_tables
    from resolvent.ops.modes import triton as modes_triton
    from resolvent.ops.pointwise import post_norm_check

    real, half = torch.float32, torch.bfloat16
    held = [bank_response.agrees(bank_response_triton, device, 150), mimo._probe(mimo_triton, device, real)]
    for modes in (s4d.MODES, dss.MODES, ema.MODES):
        held += [modes.opaque.agrees(modes_triton.maker(modes.kind), device, real)]
        held += [response.agrees(modes_triton, modes, device, 301)]
        held += [bank.agrees(bank_triton, modes, device, dtype) for dtype in (real, half)]
    held += [dense.agrees(bank_triton, device, dtype) for dtype in (real, half)]
    for rank in (1, 2):
        held += [dplr.agrees(dplr_triton, half_dplr.dense_bank, "bilinear", dplr.example(device, rank, 3, 5), 16)]
    held += [tables.opaque.agrees(mimo_tables, device, real) for tables in (s5.TABLES, lru.TABLES)]
    held += [
        carry._probe_forward(carry_triton.carry, device, real),
        chain._probe_chain(carry_triton.chain, device, real),
    ]
    held += [carry._probe_backward(carry_triton.carry_backward, device, real)]
    for adjoint in (False, True):
        x = normal(1, 9, 64)
        held += [linear_triton._probe(linear_triton._job(x, x, adjoint, adjoint))]
    if chip.copies_tiles(x):
        held += [post_norm_check.is_right(kind, 64, 3 if kind == "entry" else 64, device) for kind in ("entry", "gelu")]
        held += [post_norm_check.is_right(kind, 64, 64, device) for kind in ("plain", "bare", "scaled")]
    return [0.0 if right else 2.0 for right in held]


def walkers() -> list[float]:
    """A step of FAB."""
    from resolvent.ops.ascent import fab_triton

    found, pace = [], Pace(alpha_max=0.3, eta=1.05, beta=0.7)
    x, gap = torch.rand(5, 33, device=device), torch.randn(5, 3, device=device)
    for norm in ("linf", "l2"):
        threat, slope = Threat(norm, 0.2, (0, 1)).check(x), torch.randn(5, 3, 33, device=device)
        walks = [Walk.start(t, 0.99 * t[:, None].repeat(1, 3, 1), threat, t.clone(), t[:, 0]) for t in (x, x.double())]
        want = torch_stride(walks[1], gap.double(), slope.double(), pace)
        got = fab_triton._stride(walks[0], gap, slope, pace) if x.is_cuda else torch_stride(walks[0], gap, slope, pace)
        found.append(distance(got, want) / TOLERANCE[torch.float32])
    return found


def ascent() -> list[float]:
    x, grad, out = (torch.randn(3, *shape, device=device) for shape in ((1111, 3), (1111, 3), (7,)))
    threat = Threat("linf", 0.3, (-1, 1))
    given = x, grad, (out[:, 0], out), threat.around(x.clamp(-1, 1)), 0.1 * threat.radius(x)
    return [0.0 if torch.equal(step_signs(*given), plain_step(*given)) else 2.0]


CASES: dict[str, Callable[[], list[float]]] = {
    "linear": linear, "constant": constants, "between": between, "selective": selective, "packed": packed,
    "gated": gated_ones, "toeplitz": products, "block": block, "norm": norms, "taps": taps, "gates": gates,
    "attention": attention, "ascent": ascent, "probes": probes, "walkers": walkers,
}  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
