"""The pieces of work that benchmarks/cpu times: ours and what a user would otherwise pick.

A contender is a function of a shape that returns `Work`: a forward pass, a forward with backward pass, and for ours the
error against a float64 reference, without which no speed is printed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Work:
    forward: Callable[[], object]
    backward: Callable[[], object] | None = None  # forward and backward together
    error: Callable[[], float] | None = None  # largest error relative to the scale of the float64 truth


def differentiated(run: Callable[[], Tensor], leaves: list[Tensor]) -> Callable[[], object]:
    def work() -> object:
        return torch.autograd.grad(run().square().sum(), leaves)

    return work


def relative(got: Tensor, truth: Tensor) -> float:
    return float((got.to(truth.dtype) - truth).abs().max() / truth.abs().max())


# -- selective scan ----------------------------------------------------------------------------------------------------


def selective_inputs(b: int, l: int, d: int, n: int) -> list[Tensor]:
    g = torch.Generator().manual_seed(0)
    u = torch.randn(b, l, d, generator=g)
    dt = torch.nn.functional.softplus(torch.randn(b, l, d, generator=g) - 3)
    A = -torch.arange(1, n + 1).float().repeat(d, 1)
    B, C = torch.randn(b, l, n, generator=g), torch.randn(b, l, n, generator=g)
    return [t.requires_grad_() for t in (u, dt, A, B, C, torch.ones(d))]


def selective_ours(b: int, l: int, d: int, n: int) -> Work:
    from resolvent.scan import selective_scan

    x = selective_inputs(b, l, d, n)

    def error() -> float:
        small = [t.detach() for t in selective_inputs(2, 200, 8, n)]
        got, _ = selective_scan(*small)
        return relative(got, selective_loop(*(t.double() for t in small)))

    return Work(lambda: selective_scan(*x), differentiated(lambda: selective_scan(*x)[0], x), error)


def selective_loop(u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor) -> Tensor:
    """The straightforward eager version: discretise everything, then step."""
    A_bar = torch.exp(dt[..., None] * A)  # (b, l, d, n)
    Bu = (dt * u)[..., None] * B[:, :, None, :]
    h = torch.zeros_like(Bu[:, 0])
    ys = []
    for A_t, Bu_t, C_t in zip(A_bar.unbind(1), Bu.unbind(1), C.unbind(1), strict=True):  # indexing is slower still
        h = A_t * h + Bu_t
        ys.append((h @ C_t[..., None])[..., 0])
    return torch.stack(ys, 1) + D * u


def selective_torch(b: int, l: int, d: int, n: int) -> Work:
    x = selective_inputs(b, l, d, n)
    return Work(lambda: selective_loop(*x), differentiated(lambda: selective_loop(*x), x))


def selective_mambapy(b: int, l: int, d: int, n: int) -> Work:
    from mambapy.mamba import MambaBlock, MambaConfig

    block = MambaBlock(MambaConfig(d_model=d, n_layers=1, d_state=n, expand_factor=1))
    x = selective_inputs(b, l, d, n)
    return Work(lambda: block.selective_scan(*x), differentiated(lambda: block.selective_scan(*x), x))


def selective_transformers(b: int, l: int, d: int, n: int) -> Work:
    from transformers.models.mamba.modeling_mamba import mamba_selective_scan

    u, dt, A, B, C, D = selective_inputs(b, l, d, n)
    args = (u.mT, dt.mT, A, B.mT, C.mT, D)

    def run() -> Tensor:
        out = mamba_selective_scan(*args)
        return out[0] if isinstance(out, tuple) else out

    return Work(run)  # its backward takes more than a minute at the longer shape


# -- layers ------------------------------------------------------------------------------------------------------------


def layer_work(layer: nn.Module, b: int, l: int, d: int, call: Callable[..., Tensor]) -> Work:
    x = torch.randn(b, l, d, generator=torch.Generator().manual_seed(0)).requires_grad_()
    leaves = [x, *layer.parameters()]

    def backward() -> object:
        return torch.autograd.grad(call(x).square().sum(), leaves, allow_unused=True)

    return Work(lambda: call(x), backward)


def ours_layer(layer: nn.Module, b: int, l: int, d: int) -> Work:
    def error() -> float:
        import copy

        x = torch.randn(1, 300, d, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        exact = copy.deepcopy(layer).double()
        state, ys = exact.initial_state(1), []
        for t in range(x.shape[1]):
            y_t, state = exact.step(x[:, t], state)
            ys.append(y_t)
        return relative(layer(x.float())[0], torch.stack(ys, 1))

    work = layer_work(layer, b, l, d, lambda x: layer(x)[0])
    return Work(work.forward, work.backward, error)


class EagerS4D(nn.Module):
    """S4D written the usual way: the (d, n, l) table of exponentials, then an FFT convolution."""

    def __init__(self, d: int, n: int) -> None:
        super().__init__()
        self.log_dt = nn.Parameter(torch.rand(d) * 4.6 - 6.9)
        self.C = nn.Parameter(torch.randn(d, n // 2, 2))
        self.log_re = nn.Parameter(torch.full((d, n // 2), 0.5).log())
        self.im = nn.Parameter(torch.pi * torch.arange(n // 2).float().repeat(d, 1))
        self.D = nn.Parameter(torch.randn(d))

    def discrete(self) -> tuple[Tensor, Tensor]:
        lam = torch.complex(-self.log_re.exp(), self.im)
        lam_dt = lam * self.log_dt.exp()[:, None]
        return lam_dt, torch.view_as_complex(self.C) * (lam_dt.exp() - 1) / lam

    def forward(self, x: Tensor) -> Tensor:
        l = x.shape[1]
        lam_dt, C = self.discrete()
        table = (lam_dt[..., None] * torch.arange(l)).exp()  # (d, n / 2, l)
        k = 2 * torch.einsum("dn,dnl->dl", C, table).real
        u = x.mT
        y = torch.fft.irfft(torch.fft.rfft(u, n=2 * l) * torch.fft.rfft(k, n=2 * l), n=2 * l)[..., :l]
        return (y + u * self.D[:, None]).mT


def s4d_ours(b: int, l: int, d: int, n: int) -> Work:
    from resolvent.layers import S4D

    return ours_layer(S4D(d, n), b, l, d)


def s4d_eager(b: int, l: int, d: int, n: int) -> Work:
    layer = EagerS4D(d, n)
    return layer_work(layer, b, l, d, layer)


def s5_ours(b: int, l: int, d: int, n: int) -> Work:
    from resolvent.layers import S5

    return ours_layer(S5(d, n), b, l, d)


def s5_ours_full(b: int, l: int, d: int, n: int) -> Work:
    from resolvent.layers import S5

    return ours_layer(S5(d, n, conjugate=False), b, l, d)


def s5_pytorch(b: int, l: int, d: int, n: int) -> Work:
    from s5 import S5

    layer = S5(d, n)
    return layer_work(layer, b, l, d, layer)


def lru_ours(b: int, l: int, d: int, n: int) -> Work:
    from resolvent.layers import LRU

    return ours_layer(LRU(d, n, r_min=0.9, r_max=0.999), b, l, d)


def lru_neural_ssm(b: int, l: int, d: int, n: int) -> Work:
    from neural_ssm.ssm.cells.lti.lru import LRU

    layer = LRU(d, d, n, rmin=0.9, rmax=0.999)
    return layer_work(layer, b, l, d, lambda x: layer(x, mode="scan")[0])


# -- linear scan -------------------------------------------------------------------------------------------------------


def scan_inputs(b: int, l: int, n: int, dtype: torch.dtype) -> list[Tensor]:
    g = torch.Generator().manual_seed(0)
    a = torch.rand(b, l, n, generator=g).to(dtype)
    if dtype.is_complex:
        a = a * torch.exp(1j * torch.rand(b, l, n, generator=g))
    return [a.requires_grad_(), torch.randn(b, l, n, generator=g, dtype=dtype).requires_grad_()]


def scan_ours(b: int, l: int, n: int, dtype: torch.dtype) -> Work:
    from resolvent.scan import linear_scan

    a, x = scan_inputs(b, l, n, dtype)

    def error() -> float:
        wide = torch.complex128 if dtype.is_complex else torch.float64
        h, truth = torch.zeros(b, n, dtype=wide), []
        for t in range(300):
            h = a[:, t].to(wide) * h + x[:, t].to(wide)
            truth.append(h)
        return relative(linear_scan(a[:, :300], x[:, :300]), torch.stack(truth, 1))

    def backward() -> object:
        return torch.autograd.grad(linear_scan(a, x), (a, x), x.detach())

    return Work(lambda: linear_scan(a, x), backward, error)


def scan_mambapy(b: int, l: int, n: int, dtype: torch.dtype) -> Work:
    from mambapy.pscan import pscan

    a, x = scan_inputs(b, l, n, dtype)

    def run() -> Tensor:
        return pscan(a[:, :, None], x[:, :, None])  # (b, l, 1, n)

    return Work(run, lambda: torch.autograd.grad(run(), (a, x), x.detach()[:, :, None]))


def scan_s5_pytorch(b: int, l: int, n: int, dtype: torch.dtype) -> Work:
    from s5.jax_compat import associative_scan
    from s5.s5_model import binary_operator

    a, x = scan_inputs(b, l, n, dtype)

    def run() -> Tensor:
        return associative_scan(binary_operator, (a, x), axis=1)[1]

    return Work(run, lambda: torch.autograd.grad(run(), (a, x), x.detach()))


def scan_copy(b: int, l: int, n: int, dtype: torch.dtype) -> Work:
    """The floor: the same bytes read and written. Forward: a, x -> h; backward, after it: g, a, h -> dx, da."""
    a, x = (t.detach() for t in scan_inputs(b, l, n, dtype))
    out, out2 = torch.empty_like(x), torch.empty_like(x)

    def forward() -> object:
        return torch.add(a, x, out=out)

    def backward() -> object:
        torch.add(a, x, out=out)
        torch.add(a, x, out=out)
        return torch.add(out, x, out=out2)

    return Work(forward, backward)


# -- one streaming step ------------------------------------------------------------------------------------------------


def streaming(layer: nn.Module, batch: int, d: int) -> Work:
    x = torch.randn(batch, d)
    layer.requires_grad_(False)
    context = layer.frozen()
    context.__enter__()
    state = layer.initial_state(batch)

    def work(held: object = context) -> object:  # frozen for the process's life, as a server would
        return layer.step(x, state)

    return Work(work)


def step_s6_ours(batch: int, d: int) -> Work:
    from resolvent.layers import S6

    return streaming(S6(d, 16), batch, d)


def step_s4d_ours(batch: int, d: int) -> Work:
    from resolvent.layers import S4D

    return streaming(S4D(d, 64), batch, d)


def step_s5_ours(batch: int, d: int) -> Work:
    from resolvent.layers import S5

    return streaming(S5(d, 64), batch, d)


def step_s6_mambapy(batch: int, d: int) -> Work:
    from mambapy.mamba import MambaBlock, MambaConfig

    block = MambaBlock(MambaConfig(d_model=d, n_layers=1, d_state=16, expand_factor=1)).requires_grad_(False)
    x, h = torch.randn(batch, d), torch.zeros(batch, d, 16)
    return Work(lambda: block.ssm_step(x, h))


def step_s4d_eager(batch: int, d: int) -> Work:
    with torch.no_grad():
        layer = EagerS4D(d, 64)
        lam_dt, C = layer.discrete()
        A = lam_dt.exp()
        D = layer.D.detach()
    x, h = torch.randn(batch, d), torch.zeros(batch, d, 32, dtype=torch.complex64)

    def work() -> object:
        new = A * h + x[..., None]
        return 2 * (C * new).sum(-1).real + D * x, new

    return Work(work)


def step_s5_eager(batch: int, d: int) -> Work:
    A = torch.randn(64, dtype=torch.complex64) * 0.1
    B, C = torch.randn(64, d, dtype=torch.complex64), torch.randn(d, 64, dtype=torch.complex64)
    D = torch.randn(d)
    x, h = torch.randn(batch, d), torch.zeros(batch, 64, dtype=torch.complex64)

    def work() -> object:
        new = A * h + x.to(B.dtype) @ B.mT
        return (new @ C.mT).real + D * x, new

    return Work(work)


def step_s5_pytorch(batch: int, d: int) -> Work:
    from s5 import S5

    layer = S5(d, 64).requires_grad_(False)
    step = torch.vmap(layer.seq.forward_rnn)
    x, h = torch.randn(batch, d), torch.zeros(batch, 64, dtype=torch.complex64)
    return Work(lambda: step(x, h))
