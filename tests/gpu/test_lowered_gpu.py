"""The lowered form on a GPU, bf16 and float32 against float64 modules; its kernels; the recorded step."""

from __future__ import annotations

import copy
from dataclasses import replace
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers import assert_close, filters
from resolvent.attacks import Draws, Threat
from resolvent.layers import DSS, S4, S4D
from resolvent.lowering import lowered
from resolvent.lowering.gpu import fused, fused_torch
from resolvent.lowering.gpu.fused_torch import Weights
from resolvent.lowering.responses import impulse_responses
from resolvent.models import build_model
from resolvent.models.config import AdSConfig, ModelConfig, ResidualConfig
from resolvent.models.layer_config import DSSConfig, S4Config, S4DConfig
from resolvent.models.presets import robustness
from resolvent.ops.filter.convolution import fft_conv
from resolvent.training import pgd_at, trades
from resolvent.training.step import cuda_graph
from resolvent.training.step.adversarial import Inner, Passes, lowered_step
from resolvent.training.step.batch import Batch, criterion

toeplitz = import_module("resolvent.ops.filter.toeplitz")

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
LAYERS = [S4Config(16), S4DConfig(16), DSSConfig(16), DSSConfig(16, "softmax", separate_dt=False)]
BF16 = 2e-2


def distance(got: Tensor, want: Tensor) -> float:
    """‖difference‖ / ‖truth‖: single entries of a gradient may cancel to less than bf16 resolves."""
    got, want = got.detach().double(), want.detach().double()
    return float((got - want).norm() / want.norm())


def config(layer: Any = LAYERS[1], d: int = 32, act: Any = "none", ads: Any = None) -> ModelConfig:
    block = ResidualConfig(layer, "linear", act, final_activation=act)
    return replace(robustness("s4"), d_model=d, layers=2, block=block, ads=ads and AdSConfig(ads, False))


def both(model: Any, x: Tensor, y: Tensor, half: bool = True) -> tuple[list[Tensor], list[Tensor]]:
    """Logits, input gradient and all parameter gradients as one vector: lowered, and float64 modules."""
    found = []
    for wide in (False, True):
        own = copy.deepcopy(model).double() if wide else model
        at = (x.double() if wide else x).clone().requires_grad_()
        with torch.autocast("cuda", torch.bfloat16, enabled=half and not wide):
            assert (own.lowered(at) is None) == wide
            logits = own(at)
        gradients = torch.autograd.grad(criterion(logits.double(), y).sum(), [at, *own.parameters()])
        found.append([logits, gradients[0], torch.cat([g.flatten().double() for g in gradients[1:]])])
    return found[0], found[1]


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: type(layer).__name__)
@pytest.mark.parametrize(("b", "l"), [(1, 1), (3, 130), (128, 256), (2, 4099), (1, 20_000)])
def test_against_float64(layer: Any, b: int, l: int) -> None:
    x, y = torch.rand(b, l, 3, device="cuda"), torch.arange(b, device="cuda") % 10
    for got, want in zip(*both(build_model(config(layer)).cuda(), x, y), strict=True):
        assert distance(got, want) <= BF16


fine = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() < (9, 0),
    reason="float32 products need a GPU that copies tiles by descriptor",
)


@fine
@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: type(layer).__name__)
@pytest.mark.parametrize(("b", "l"), [(1, 128), (5, 384), (130, 256), (1, 1), (3, 131), (2, 1025), (1, 20_000)])
def test_float32_against_float64(layer: Any, b: int, l: int) -> None:
    x, y = torch.rand(b, l, 3, device="cuda"), torch.arange(b, device="cuda") % 10
    found = zip(*both(build_model(config(layer)).cuda(), x, y, half=False), (1e-5, 1e-4, 1e-4), strict=True)
    assert all(distance(got, want) <= tolerance for got, want, tolerance in found)


@fine
@pytest.mark.parametrize(("d", "act", "ads"), [(24, "gelu", "relu"), (128, "none", None), (200, "none", None)])
def test_float32_widths_and_activations(d: int, act: str, ads: str | None) -> None:
    x, y = torch.rand(4, 128, 3, device="cuda"), torch.arange(4, device="cuda")
    made = build_model(config(d=d, act=act, ads=ads)).cuda()
    for got, want, tolerance in zip(*both(made, x, y, half=False), (1e-5, 1e-4, 1e-4), strict=True):
        assert distance(got, want) <= tolerance


@fine
@pytest.mark.parametrize("l", [256, 250])
def test_a_sample_alone_and_in_a_batch(l: int) -> None:
    """Float32: an attack computes a sample in batches of many sizes, and its verdict must not hang on them."""
    model, x = build_model(config(d=128)).cuda().eval(), torch.rand(300, l, 3, device="cuda")
    with torch.no_grad():
        whole = model(x)
        for part in (1, 7, 128, 200):
            assert float((model(x[:part]) - whole[:part]).abs().max()) <= 1e-6 * float(whole.abs().max())


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, BF16), (torch.float32, 1e-5)])
@pytest.mark.parametrize(("b", "l"), [(2, 5000), (3, 131), (4, 16_384), (1, 65_537)])
@pytest.mark.parametrize("kind", [S4, S4D, DSS])
def test_filters_of_long_sequences(kind: Any, b: int, l: int, dtype: torch.dtype, tolerance: float) -> None:
    own = kind(20, 16).cuda()
    (k,) = impulse_responses(filters(own), l)
    x, g = (torch.randn(20, b, l, device="cuda").to(dtype) for _ in range(2))
    wide = x.double().requires_grad_()
    want = fft_conv(wide, k[:, None])
    leaves = [wide, *own.parameters()]
    gx, *slopes = torch.autograd.grad(want, leaves, g.double(), allow_unused=True)
    _, (made,) = lowered.make_kernels(filters(own), l, dtype)
    found = torch.autograd.grad(made.learned, leaves[1:], made.taps(x, g), allow_unused=True)
    assert distance(made.forward(x), want) <= tolerance
    assert distance(made.adjoint(g), gx) <= tolerance
    assert distance(made.adjoint(g, onto=x.clone()), gx + x.double()) <= tolerance
    for got, true in zip(found, slopes, strict=True):
        if true is not None:
            assert got is not None
            assert distance(got, true) <= max(tolerance, 1e-4)


@pytest.mark.parametrize(
    ("d", "act", "ads"), [(24, "gelu", "relu"), (128, "silu", None), (128, "none", "tanh"), (200, "none", "tanh")]
)
def test_widths_activations_and_scaling(d: int, act: str, ads: str | None) -> None:
    x, y = torch.rand(4, 100, 3, device="cuda"), torch.arange(4, device="cuda")
    for got, want in zip(*both(build_model(config(d=d, act=act, ads=ads)).cuda(), x, y), strict=True):
        assert distance(got, want) <= BF16


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, BF16), (torch.float32, 1e-5)])
@pytest.mark.parametrize(
    ("d", "b", "l"),
    [(3, 128, 256), (2, 256, 1024), (2, 200, 1024), (3, 5, 77), (1, 1, 128), (2, 256, 784), (3, 7, 261)],
)
def test_toeplitz_products(d: int, b: int, l: int, dtype: torch.dtype, tolerance: float) -> None:
    k = torch.randn(d, l, device="cuda") / l**0.5
    x, g = (torch.randn(d, b, l, device="cuda").to(dtype) for _ in range(2))
    wide, taps = x.double().requires_grad_(), k.double().requires_grad_()
    want = toeplitz.plain_product(wide, taps)
    gx, gk = torch.autograd.grad(want, (wide, taps), g.double())
    made = toeplitz.toeplitz(k, dtype)
    assert_close(toeplitz.product(x, made.ahead, False).double(), want, tolerance=tolerance)
    assert_close(toeplitz.product(g, made.back, True).double(), gx, tolerance=tolerance)
    assert_close(toeplitz.product(g, made.back, True, onto=x.clone()).double(), gx + x.double(), tolerance=tolerance)
    assert_close(toeplitz.kernel_gradient(x, g, made.back.shape[-2]).double(), gk, tolerance=tolerance)


@pytest.mark.parametrize("l", [1, 127, 2049, 4096, 5000, 65_536])
def test_any_length(l: int) -> None:
    """Under autocast, whole and in blocks."""
    model, x = build_model(config(d=16)).cuda(), torch.rand(2, l, 3, device="cuda")
    with torch.autocast("cuda", torch.bfloat16), torch.no_grad():
        got = model(x)
    with torch.no_grad():
        assert distance(got, copy.deepcopy(model).double()(x.double())) <= BF16


@pytest.mark.parametrize("still", [False, True])
@pytest.mark.parametrize("learn", [False, True])
@pytest.mark.parametrize(
    ("act", "final", "sigma", "dtype"),
    [
        ("none", "none", None, torch.bfloat16),
        ("gelu_tanh", "sigmoid", "tanh", torch.bfloat16),
        ("gelu", "gelu", None, torch.bfloat16),
        ("sigmoid", "silu", None, torch.bfloat16),
        ("relu", "tanh", None, torch.bfloat16),
        ("none", "none", None, torch.float32),
        ("gelu", "gelu", None, torch.float32),
        ("none", "silu", None, torch.float32),
        ("relu", "none", None, torch.float32),
    ],
)
def test_fused_kernels(act: str, final: str, sigma: str | None, dtype: torch.dtype, learn: bool, still: bool) -> None:
    triton = fused._triton()
    assert triton is not None
    d, b, l, tolerance = 48, 3, 112 if still else 77, BF16 if dtype == torch.bfloat16 else 1e-5
    y, r, g = (torch.randn(d, b, l, device="cuda").to(dtype) for _ in range(3))
    g = g[:, :, :1].expand(d, b, l) if still else g  # what a mean over time hands back
    W, Wa = (torch.randn(d, d, device="cuda") / d**0.5 for _ in range(2))
    bias, gamma, beta, ba = (torch.randn(d, device="cuda") for _ in range(4))

    def weights(kind: torch.dtype) -> Weights:
        wide = torch.float64 if kind == torch.float64 else torch.float32
        own = [t.to(wide) for t in (W, bias, gamma, beta)]
        more = (Wa.to(wide), ba.to(wide), Wa.to(kind)) if sigma else (None, None, None)
        return Weights(1e-5, act, final, sigma or "none", kind, *own, W.to(kind), *more)

    low, wide = weights(dtype), weights(torch.float64)
    got, made = triton.forward(y, r, low)
    want, kept = fused_torch.forward(y.double(), r.double(), wide)
    assert kept is not None
    for a, w in zip((got, *made[:2]), (want, *kept[:2]), strict=True):
        assert distance(a, w) <= tolerance
    assert torch.equal(triton.forward(y, r, low, keep=False)[0], got)
    back = triton.backward(g, made, y, low, learn)
    truth = fused_torch.backward(g.double(), kept, y.double(), wide, learn)
    for a, w in zip((*back[:2], *(back[2] or ())), (*truth[:2], *(truth[2] or ())), strict=True):
        if w is not None:
            assert a is not None
            assert distance(a, w) <= tolerance


@pytest.mark.parametrize("half", [True, False])
@pytest.mark.parametrize(("make", "b", "l"), [(pgd_at, 128, 128), (trades, 128, 128), (pgd_at, 64, 2100)])
def test_the_recorded_step_is_the_step(make: Any, b: int, l: int, half: bool) -> None:
    """Replays with other samples and other parameters give what the same step gives without a graph."""
    model, objective = build_model(config()).cuda(), make(Threat("linf", 8 / 255, (0, 1)), steps=3)
    g = torch.Generator().manual_seed(0)

    def step(own: Any, batch: Batch) -> list[Tensor]:
        with torch.autocast("cuda", torch.bfloat16, enabled=half):
            loss = objective(own, batch)
        return [loss.value, loss.output, *torch.autograd.grad(loss.value, list(own.parameters()))]

    for turn in range(4):
        x, y = torch.rand(b, l, 3, generator=g).cuda(), torch.randint(0, 10, (b,), generator=g).cuda()
        batch, before = Batch(x, y, None, Draws(turn, torch.arange(b, device="cuda"))), copy.deepcopy(model)
        with torch.no_grad():
            for p in model.parameters():
                p.add_(0.05 * torch.randn_like(p))
        got, want = step(model, batch), step(copy.deepcopy(model), batch)  # a new copy never gets to a recording
        for a, w in zip(got, want, strict=True):
            assert distance(a, w) <= BF16  # a last bit turns the sign of a gradient near zero, and so a step
        old, new = (torch.cat([t.flatten() for t in found[2:]]) for found in (step(before, batch), want))
        assert distance(old, new) > 2 * BF16  # tables of older parameters would be noticed
    recordings = cuda_graph._recorded[model][1].values()
    assert sum(isinstance(r, cuda_graph._Recording) for r in recordings) == 1


def test_a_step_that_cannot_be_recorded_runs_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    """It is said once, and random numbers are drawn as if nothing had been tried."""
    model, inner = build_model(config()).cuda(), Inner(Threat("linf", 8 / 255, (0, 1)), 2)
    batch = Batch(torch.rand(4, 128, 3, device="cuda"), torch.arange(4).cuda(), None, Draws(0, torch.arange(4).cuda()))

    def looks(f: Passes, held: Batch, threat: Threat) -> tuple[Tensor, Tensor]:
        output = f.learnt(held.x)
        assert output.sum().item() < 1e9  # nothing can be read while a step is recorded
        return output.square().mean(), output

    torch.manual_seed(0)
    with torch.autocast("cuda", torch.bfloat16):
        assert [lowered_step(model, batch, inner, looks) for _ in range(3)] == [None] * 3
    got = torch.rand(5, device="cuda")
    torch.manual_seed(0)
    assert torch.equal(got, torch.rand(5, device="cuda"))
    assert sum("cannot be recorded" in line for line in caplog.messages) == 1


def test_no_recording_for_other_norms() -> None:
    model, objective = build_model(config()).cuda(), pgd_at(Threat("l2", 0.5, (0, 1)), steps=2)
    batch = Batch(torch.rand(4, 64, 3, device="cuda"), torch.arange(4).cuda(), None, Draws(0, torch.arange(4).cuda()))
    for _ in range(3):
        with torch.autocast("cuda", torch.bfloat16):
            loss = objective(model, batch)
        loss.value.backward()
    assert torch.isfinite(loss.value)
    assert model not in cuda_graph._recorded
