"""What S5 and LRU share, against an oracle of dense matrices that uses none of their code."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, jvp, vmap

from helpers import assert_close, random_cuts
from resolvent.layers import mimo
from resolvent.layers.contract import Layer
from resolvent.layers.lru import LRU
from resolvent.layers.s5 import S5
from resolvent.scan import linear_scan

D_MODEL = 5
CASES: dict[str, Callable[..., Layer]] = {
    "s5": lambda **k: S5(D_MODEL, 8, **k),
    "s5-blocks-bilinear": lambda **k: S5(D_MODEL, 12, blocks=3, discretisation="bilinear", **k),
    "s5-full": lambda **k: S5(D_MODEL, 9, blocks=3, conjugate=False, c_init="complex_normal", **k),
    "lru": lambda **k: LRU(D_MODEL, 7, **k),
}
every_case = pytest.mark.parametrize("name", CASES)


def make(name: str, dtype: torch.dtype = torch.float64, **options: bool) -> Layer:
    return CASES[name](**options).to(dtype)


def parameters(layer: Layer) -> dict[str, Tensor]:
    return {name: p.detach().clone().requires_grad_() for name, p in layer.named_parameters()}


def complex_of(pairs: Tensor) -> Tensor:
    return pairs[..., 0] + 1j * pairs[..., 1]


def matrices(layer: Layer, w: dict[str, Tensor]) -> tuple[Tensor, Tensor, float]:
    """lam_bar, B_bar and the read-out's factor by the papers' formulas, nothing stabilised."""
    B = complex_of(w["B"])
    if isinstance(layer, LRU):
        lam = torch.exp(-torch.exp(w["nu_log"]) + 1j * torch.exp(w["theta_log"]))
        return lam, torch.exp(w["gamma_log"])[:, None] * B, 1.0
    assert isinstance(layer, S5)
    lam, dt, scale = complex_of(w["lam"]), torch.exp(w["log_step"]), 2.0 if layer.conjugate else 1.0
    if layer.discretisation == "bilinear":
        inverse = 1 / (1 - dt * lam / 2)
        return inverse * (1 + dt * lam / 2), (inverse * dt)[:, None] * B, scale
    lam_bar = torch.exp(dt * lam)
    return lam_bar, ((lam_bar - 1) / lam)[:, None] * B, scale


def impulse_response(layer: Layer, w: dict[str, Tensor], length: int, C: str = "C") -> Tensor:
    """K_k = s Re(C diag(lam_bar)^k B_bar): (l, d, d)."""
    lam_bar, B_bar, scale = matrices(layer, w)
    powers = torch.stack([lam_bar**k for k in range(length)])  # (l, p)
    return scale * torch.einsum("dp,lp,pe->lde", complex_of(w[C]), powers, B_bar).real


def toeplitz(K: Tensor) -> Tensor:
    """The causal map of an impulse response (l, d, d) as one array T[t, s] = K[t - s]: (l, l, d, d)."""
    l = K.shape[0]
    lag = torch.arange(l)[:, None] - torch.arange(l)
    return K[lag.clamp_min(0)] * (lag >= 0)[..., None, None]


def dense_output(layer: Layer, w: dict[str, Tensor], x: Tensor) -> Tensor:
    """y = T x (+ T_back x) + D x with whole matrices: x (b, l, d)."""
    T = toeplitz(impulse_response(layer, w, x.shape[1]))
    if layer.bidirectional:
        T = T + toeplitz(impulse_response(layer, w, x.shape[1], "C_back")).transpose(0, 1)
    return torch.einsum("tsde,bse->btd", T, x) + w["D"] * x


def sample(length: int, batch: int = 2, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(batch, length, D_MODEL, dtype=dtype)


@every_case
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize(("batch", "length"), [(2, 33), (1, 1), (3, 2)])
def test_equals_dense_map_in_values_and_gradients(name: str, bidirectional: bool, batch: int, length: int) -> None:
    layer = make(name, bidirectional=bidirectional)
    x, weight = sample(length, batch).requires_grad_(), sample(length, batch)
    w = parameters(layer)
    y, want = layer(x)[0], dense_output(layer, w, x)
    assert_close(y, want)
    got = torch.autograd.grad((y * weight).sum(), [x, *layer.parameters()])
    assert_close(list(got), list(torch.autograd.grad((want * weight).sum(), [x, *w.values()])))


@every_case
def test_scan_loop_and_fft_convolution_agree(name: str) -> None:
    layer, x = make(name), sample(257)
    y, state = layer(x)
    K = impulse_response(layer, parameters(layer), 257)  # (l, d, d)
    spectrum = torch.einsum("fde,bfe->bfd", torch.fft.rfft(K, 514, 0), torch.fft.rfft(x, 514, 1))
    assert_close(y, torch.fft.irfft(spectrum, 514, 1)[:, :257] + layer.D * x)
    lam_bar, B_bar, scale = matrices(layer, parameters(layer))
    assert_close(y, mimo.simulate(lam_bar, B_bar, complex_of(layer.C), layer.D, x, scale))
    h = linear_scan(lam_bar, x.to(B_bar.dtype) @ B_bar.mT)
    assert_close(state, h[:, -1])


@every_case
def test_system_simulates_the_layer(name: str) -> None:
    layer, x = make(name), sample(40)
    full, _ = layer.system().simulate(x)  # type: ignore[operator]
    assert full.imag.abs().max() < 1e-12
    assert_close(full.real, layer(x)[0])
    assert_close(layer.system().delayed().simulate(x)[0].real, layer(x)[0])  # type: ignore[operator]


@every_case
def test_any_chunking_and_steps_equal_the_whole(name: str) -> None:
    layer, x, generator = make(name), sample(61), torch.Generator().manual_seed(1)
    y, end = layer(x)
    for pieces in (2, 5, 9):
        state, parts = None, []
        for part in x.split(random_cuts(61, pieces, generator), 1):
            y_part, state = layer(part, state)
            parts.append(y_part)
        assert_close(torch.cat(parts, 1), y)
        assert_close(state, end)
    state, steps = None, []
    for x_t in x.unbind(1):
        y_t, state = layer.step(x_t, state)
        steps.append(y_t)
    assert_close(torch.stack(steps, 1), y)
    assert_close(state, end)


@every_case
def test_gradients_flow_through_the_state(name: str) -> None:
    layer, x = make(name), sample(20)
    start = torch.randn_like(layer(x)[1].detach(), requires_grad=True)
    y, end = layer(x, start)
    y_1, middle = layer(x[:, :7], start)
    y_2, end_2 = layer(x[:, 7:], middle)
    whole = torch.autograd.grad(y.square().sum() + end.abs().square().sum(), [start, *layer.parameters()])
    cut_loss = y_1.square().sum() + y_2.square().sum() + end_2.abs().square().sum()
    assert_close(list(torch.autograd.grad(cut_loss, [start, *layer.parameters()])), list(whole))
    lam_bar = matrices(layer, parameters(layer))[0]
    zero_input = linear_scan(lam_bar, torch.zeros(2, 20, lam_bar.shape[0], dtype=lam_bar.dtype), start)
    assert_close(end - layer(x)[1], zero_input[:, -1])


@every_case
@pytest.mark.parametrize("bidirectional", [False, True])
def test_padding_equals_the_short_sequence(name: str, bidirectional: bool) -> None:
    layer, x = make(name, bidirectional=bidirectional), sample(19, 4)
    lengths = torch.tensor([19, 1, 7, 18])
    x[1, 1:] = torch.nan  # whatever stands in the padding must not be read
    y, end = layer(x, lengths=lengths)
    for i, n in enumerate(lengths.tolist()):
        y_i, end_i = layer(x[i : i + 1, :n])
        assert_close(y[i : i + 1, :n], y_i)
        assert not y[i, n:].any()
        if not bidirectional:
            assert_close(end[i : i + 1], end_i)


@every_case
def test_is_causal(name: str) -> None:
    layer, x = make(name), sample(30)
    later = torch.cat([x[:, :17], x[:, 17:] + 1], 1)
    assert torch.equal(layer(x)[0][:, :17], layer(later)[0][:, :17])


@every_case
@pytest.mark.parametrize("bidirectional", [False, True])
def test_first_and_second_gradients(name: str, bidirectional: bool) -> None:
    layer = make(name, bidirectional=bidirectional)
    names, values = zip(*parameters(layer).items(), strict=True)

    def run(x: Tensor, *weights: Tensor) -> Tensor:
        return functional_call(layer, dict(zip(names, weights, strict=True)), (x,))[0]

    x = sample(4, 1).requires_grad_()
    assert torch.autograd.gradcheck(run, (x, *values), fast_mode=True)
    assert torch.autograd.gradgradcheck(run, (x, *values), fast_mode=True)


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["s5", "lru"])
def test_compiles_without_graph_breaks(name: str, backend: str) -> None:
    torch._dynamo.reset()
    layer, x = make(name), sample(13).requires_grad_()
    compiled = torch.compile(layer, backend=backend, fullgraph=True)
    y, state = layer(x)
    y_c, state_c = compiled(x)
    assert_close((y_c, state_c), (y, state))
    variables = [x, *layer.parameters()]
    got = torch.autograd.grad(y_c.square().sum(), variables)
    assert_close(list(got), list(torch.autograd.grad(y.square().sum(), variables)))


@every_case
def test_function_transforms(name: str) -> None:
    layer, x, tangent = make(name), sample(9), sample(9)
    assert_close(vmap(lambda one: layer(one[None])[0][0])(x), layer(x)[0])
    y, dy = jvp(lambda u: layer(u)[0], (x,), (tangent,))
    assert_close(y, layer(x)[0])
    assert_close(dy, layer(tangent)[0])  # the layer is linear in x
    jacobian = jacrev(lambda u: layer(u)[0][0])(x[:1, :4])  # (l, d, 1, l, d)
    K = impulse_response(layer, parameters(layer), 4)
    want = toeplitz(K) + torch.eye(4)[..., None, None] * torch.diag(layer.D)
    assert_close(jacobian[:, :, 0].transpose(1, 2), want)


@every_case
def test_vmap_over_a_stack_of_layers(name: str) -> None:
    layers, x = [make(name) for _ in range(3)], sample(9)
    stacked = {k: torch.stack([dict(m.named_parameters())[k].detach() for m in layers]) for k in parameters(layers[0])}
    y = vmap(lambda w: functional_call(layers[0], w, (x,))[0])(stacked)
    assert_close(y, torch.stack([m(x)[0] for m in layers]))


@every_case
def test_float32_and_half_precision(name: str) -> None:
    truth, x = make(name), sample(400)
    layer = copy.deepcopy(truth).float()
    x_32 = x.float().requires_grad_()
    x = x_32.detach().double().requires_grad_()
    y, y_32 = truth(x)[0], layer(x_32)[0]
    assert_close(y_32, y)
    want = torch.autograd.grad(y.square().mean(), [x, *truth.parameters()])
    got = torch.autograd.grad(y_32.square().mean(), [x_32, *layer.parameters()])
    assert_close(list(got), list(want), gradient=True)
    assert layer.bfloat16().dtype == torch.float32  # parameters stay: 0.999 has no neighbour in bfloat16
    y_16 = layer(x_32.detach().bfloat16())[0]
    assert y_16.dtype == torch.bfloat16
    assert_close(y_16, y)


@every_case
def test_frozen_keeps_values_and_input_gradients(name: str) -> None:
    for bidirectional in (False, True):
        layer, x = make(name, bidirectional=bidirectional), sample(12).requires_grad_()
        y = layer(x)[0]
        want = torch.autograd.grad(y.square().sum(), x)[0]
        with layer.frozen():
            y_frozen = layer(x)[0]
            assert layer.cached("tables", lambda: pytest.fail("computed twice"))
            assert_close(torch.autograd.grad(y_frozen.square().sum(), x)[0], want)
            assert not layer(x.detach())[0].requires_grad
        assert_close(y_frozen, y)
        assert layer(x.detach())[0].requires_grad


@every_case
@pytest.mark.parametrize("value", [1e4, -1e4, 30.0, -30.0, 0.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_modulus_below_one_for_any_parameter(name: str, value: float, dtype: torch.dtype) -> None:
    """Each special parameter in turn, then all at once: |lam_bar| < 1 as stored, outputs and gradients finite."""
    special = [
        n for n, _ in make(name).named_parameters() if n in ("lam", "log_step", "nu_log", "theta_log", "gamma_log")
    ]
    for chosen in [[n] for n in special] + [special]:
        layer, x = make(name, dtype), sample(5, dtype=dtype)
        with torch.no_grad():
            for parameter in chosen:
                getattr(layer, parameter).fill_(value)
        modulus = layer.tables().lam_bar.to(torch.complex128).abs()  # type: ignore[operator]
        assert (modulus < 1).all()
        y = layer(x)[0]
        assert y.isfinite().all()
        gradients = torch.autograd.grad(y.sum(), list(layer.parameters()))
        assert all(g.isfinite().all() for g in gradients)


def test_inside_disc_leaves_the_inside_alone() -> None:
    radii = torch.tensor([0.0, 0.5, 0.999999, 1 - 1e-12], dtype=torch.float64)
    inner = torch.polar(radii, torch.arange(4, dtype=torch.float64))
    assert torch.equal(mimo.inside_disc(inner), inner)
    outer = torch.polar(torch.tensor([1.0, 1.5, 1e30]), torch.tensor([0.1, 2.0, -3.0]))
    held = mimo.inside_disc(outer)
    assert (held.to(torch.complex128).abs() < 1).all()
    assert_close(held.angle(), outer.angle())


@every_case
def test_memory_of_the_state_does_not_grow(name: str) -> None:
    """A final state that were a view into all states would keep l of them alive."""
    layer = make(name)
    for lengths in (None, torch.tensor([3, 50])):
        _, state = layer(sample(50), lengths=lengths)
        assert state.untyped_storage().nbytes() == state.numel() * state.element_size()


@every_case
def test_empty_sequence_passes_the_state_on(name: str) -> None:
    layer = make(name)
    state = layer(sample(3))[1]
    y, after = layer(sample(0), state)
    assert y.shape == (2, 0, D_MODEL)
    assert torch.equal(after, state)


@every_case
def test_initial_values_survive_an_outer_init(name: str) -> None:
    def init(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.zeros_(module.weight)

    layer = make(name, bidirectional=True)
    before = copy.deepcopy(layer.state_dict())
    layer.apply(init)
    assert all(torch.equal(before[k], v) for k, v in layer.state_dict().items())
    assert not any(p.is_complex() for p in layer.parameters())  # real pairs: optimisers, DDP and safetensors take them


@every_case
def test_saved_weights_give_the_same_numbers(name: str) -> None:
    layer, other, x = make(name, bidirectional=True), make(name, bidirectional=True), sample(8)
    assert not torch.equal(layer(x)[0], other(x)[0])
    other.load_state_dict(layer.state_dict())
    assert torch.equal(layer(x)[0], other(x)[0])


@every_case
def test_bad_input_is_refused(name: str) -> None:
    layer, both = make(name), make(name, bidirectional=True)
    x = sample(6)
    state = layer(x)[1]
    with pytest.raises(ValueError, match="d_model"):
        layer(x[..., :3])
    with pytest.raises(ValueError, match="shape"):
        layer(x[0])
    with pytest.raises(TypeError, match=r"float64"):
        layer(x.float())
    with pytest.raises(ValueError, match="state"):
        layer(x, state[:1])
    with pytest.raises(TypeError, match="complex128"):
        layer(x, state.real)
    with pytest.raises(ValueError, match="length"):
        layer(x, lengths=torch.tensor([0, 6]))
    for refused in (lambda: both.step(x[:, 0]), lambda: both(x, state), lambda: both.system()):
        with pytest.raises(ValueError, match="bidirectional"):
            refused()
