"""Intervals through recurrences: exact, sound on many perturbations, never wider than interval arithmetic."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from helpers import assert_close
from resolvent.analysis.certificates.interval import Box, convolve, response, system_box, system_radius
from resolvent.analysis.certificates.interval_certify import LinfSettings, certify_linf, linf_radius
from resolvent.analysis.certificates.interval_pointwise import CURVES, lines, value_range
from resolvent.analysis.certificates.interval_stages import Affine, Memory, Pointwise, Skip, boxes, pull_back, run
from resolvent.analysis.certificates.interval_time import Pool, Recurrence
from resolvent.layers import EMA, LRU, S4, S4D, S5
from resolvent.layers.scalar_s6 import ScalarS6
from resolvent.ssm.system import Dense, Diagonal, System, conjugate_closed

LAYERS = {
    "S4D": lambda: S4D(3, 8),
    "S4": lambda: S4(3, 8),
    "S5": lambda: S5(3, 8),
    "LRU": lambda: LRU(3, 8),
    "EMA": lambda: EMA(3, 4),
}


def stepped_radius(system: System, radius: Tensor) -> Tensor:
    """Bounds by interval arithmetic on the recurrence, real and imaginary parts apart: the wider, slower way."""
    wide = system.real()
    A, B, C, D = (t.detach().double() for t in (wide.A.dense(), wide.B, wide.C, wide.D))
    if not system.bank:
        return replace(wide, A=Dense(A.abs()), B=B.abs(), C=C.abs(), D=D.abs()).simulate(radius)[0]
    moduli = System(Dense(A.abs()), B.abs(), C.abs(), D.abs(), dt=1.0, delay=system.delay)
    return moduli.simulate(radius.mT[..., None])[0][..., 0].mT  # one channel for each member of the bank


def oscillator(angle: float = 0.8, radius: float = 0.99) -> System:
    """One conjugate pair: a rotation, what interval arithmetic is worst at."""
    lam = torch.polar(torch.tensor([radius], dtype=torch.float64), torch.tensor([angle], dtype=torch.float64))
    one = torch.ones(1, 1, dtype=torch.complex128)
    return conjugate_closed(lam, one, one / 2, torch.zeros(1, 1, dtype=torch.float64), dt=1.0)


def output(system: System, u: Tensor) -> Tensor:
    """The simulation, (..., l, m) -> (..., l, p); a bank takes one channel each."""
    if not system.bank:
        y = system.simulate(u)[0]
        return y.real if y.is_complex() else y
    y = system.simulate(u.mT[..., None])[0][..., 0].mT
    return y.real if y.is_complex() else y


# -- one recurrence ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("uniform", [True, False], ids=["uniform", "per-step"])
def test_both_ends_are_reached(name: str, uniform: bool) -> None:
    """The worst signs for the last output, by the gradient of a simulation: it meets the radius to rounding."""
    system = LAYERS[name]().double().system()
    radius = torch.full((11, 3), 0.2, dtype=torch.float64) if uniform else torch.rand(11, 3, dtype=torch.float64)
    u = torch.zeros(11, 3, dtype=torch.float64, requires_grad=True)
    for channel in range(3):
        (grad,) = torch.autograd.grad(output(system, u)[-1, channel], u)
        worst = output(system, radius * grad.sign())[-1, channel]
        assert_close(system_radius(system, radius)[-1, channel].detach(), worst.detach())


@pytest.mark.parametrize("name", LAYERS)
def test_the_box_is_sound(name: str) -> None:
    """Perturbations inside the box, corners among them, on the layer itself."""
    layer = LAYERS[name]().double()
    c, r = torch.randn(1, 17, 3, dtype=torch.float64), torch.rand(1, 17, 3, dtype=torch.float64)
    box = system_box(layer.system(), Box(c, r)).widened()
    inside = 2 * torch.rand(200, 17, 3, dtype=torch.float64) - 1
    for u in (c + r * inside, c + r * inside.sign()):
        assert layer(u)[0] in box


@pytest.mark.parametrize("name", [*LAYERS, "oscillator"])
def test_never_wider_than_interval_arithmetic(name: str) -> None:
    """At every length from 1 to 64: the radius after l steps is the l-th entry of one pass."""
    system = oscillator() if name == "oscillator" else LAYERS[name]().double().system()
    radius = torch.full((64, system.bank[0] if system.bank else system.inputs), 0.1, dtype=torch.float64)
    exact, wider = system_radius(system, radius), stepped_radius(system, radius)
    assert bool((exact <= wider * (1 + 1e-12)).all())


def test_five_times_tighter_at_64_steps() -> None:
    """In every channel of layers as they are initialised; a lone slow rotation is wrapped most."""
    radius = torch.full((64, 16), 0.1, dtype=torch.float64)
    for make in (S4D, S4, S5, LRU):
        system = make(16, 16).double().system()
        with torch.no_grad():
            ratio = stepped_radius(system, radius)[-1] / system_radius(system, radius)[-1]
        assert float(ratio.min()) > 5, make.__name__
    one = radius[:, :1]
    assert float(stepped_radius(oscillator(), one)[-1] / system_radius(oscillator(), one)[-1]) > 1e5


def test_plain_interval_arithmetic_is_sound_too() -> None:
    system = LAYERS["S5"]().double().system()
    u = 0.1 * (2 * torch.rand(100, 20, 3, dtype=torch.float64) - 1)
    radius = torch.full((20, 3), 0.1, dtype=torch.float64)
    assert bool((output(system, u).abs() <= stepped_radius(system, radius)).all())


@pytest.mark.parametrize("reverse", [False, True])
def test_convolutions_against_sums(reverse: bool) -> None:
    h, u = torch.randn(2, 3, 9, dtype=torch.float64), torch.randn(4, 9, 2 if reverse else 3, dtype=torch.float64)
    want = torch.zeros(4, 9, 3 if reverse else 2, dtype=torch.float64)
    for t in range(9):
        for s in range(t + 1):
            if reverse:
                want[:, s] += u[:, t] @ h[..., t - s]
            else:
                want[:, t] += u[:, s] @ h[..., t - s].mT
    assert_close(convolve(h, u, reverse), want)


def test_length_one_and_delay() -> None:
    system = oscillator()
    assert_close(system_radius(system, torch.ones(1, 1, dtype=torch.float64)), response(system, 1)[..., 0].abs())
    delayed = system.delayed()
    radius = torch.rand(7, 1, dtype=torch.float64)
    assert_close(system_radius(delayed, radius), system_radius(system, radius))


@pytest.mark.slow  # compares times, which a busy machine spoils
@pytest.mark.parametrize("uniform", [True, False], ids=["uniform", "per-step"])
def test_linear_in_length(uniform: bool) -> None:
    """Eight times the length takes no more than sixteen times the CPU time: a quadratic pass would take 64."""
    system = LAYERS["S4D"]().double().system()

    def seconds(l: int) -> float:
        radius = torch.full((l, 3), 0.1, dtype=torch.float64)
        radius[0] = 0.1 if uniform else 0.2
        times = []
        for _ in range(3):
            start = time.process_time()
            system_radius(system, radius)
            times.append(time.process_time() - start)
        return min(times)

    assert seconds(131_072) <= 16 * seconds(16_384)


# -- pointwise ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CURVES)
def test_ranges_and_lines_enclose(name: str) -> None:
    """On random intervals, wide, narrow and empty, at a fine grid of points."""
    low = 8 * torch.rand(300, dtype=torch.float64) - 5
    width = torch.rand(300, dtype=torch.float64) ** 3 * 6
    width[:20], width[20:40] = 0.0, 1e-10
    high = low + width
    z = low + width * torch.linspace(0, 1, 1001, dtype=torch.float64)[:, None]
    value = CURVES[name].f(z)
    least, most = value_range(name, low, high)
    assert bool((value >= least - 1e-12).all())
    assert bool((value <= most + 1e-12).all())
    assert_close(most, value.amax(0), tolerance=1e-6)  # the grid itself misses a minimum by its step
    assert float((value.amin(0) - least).max()) < 1e-4
    found = lines(name, low, high)
    assert bool((found.slope_low * z + found.low <= value + 1e-12).all())
    assert bool((found.slope_high * z + found.high >= value - 1e-12).all())


def test_unknown_function() -> None:
    with pytest.raises(ValueError, match="'relu'"):
        Pointwise("softmax")  # type: ignore[arg-type]


# -- whole networks ----------------------------------------------------------------------------------------------------


class Net(nn.Module):
    """Encoder, residual block with a recurrent layer, pooling, head: what the stages below describe."""

    def __init__(self, layer: nn.Module, function: str = "gelu", pooling: str = "mean") -> None:
        super().__init__()
        self.inp, self.mix, self.out = nn.Linear(2, 3), nn.Linear(3, 3), nn.Linear(3, 4)
        self.layer, self.function, self.pooling = layer, function, pooling

    def forward(self, x: Tensor) -> Tensor:
        e = self.inp(x)
        h = e + self.mix(CURVES[self.function].f(self.layer(e)[0]))
        return self.out(h.mean(1) if self.pooling == "mean" else h[:, -1])

    def stages(self) -> list[object]:
        branch = [Recurrence(self.layer.system()), Pointwise(self.function), Affine(self.mix.weight, self.mix.bias)]
        return [
            Affine(self.inp.weight, self.inp.bias),
            Skip(branch),
            Pool(self.pooling),
            Affine(self.out.weight, self.out.bias),
        ]


@pytest.mark.parametrize("function", ["gelu", "relu", "tanh", "silu"])
@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_stages_compute_the_network_and_its_bounds_hold(function: str, pooling: str) -> None:
    net = Net(S4D(3, 4), function, pooling).double()
    x = torch.randn(3, 9, 2, dtype=torch.float64)
    stages = net.stages()
    logits = net(x).detach()
    assert_close(run(stages, x), logits)
    y, eps = logits.argmax(1), 0.02
    margins = {m: certify_linf(stages, x, y, eps, LinfSettings(method=m)).margin for m in ("interval", "linear")}
    assert bool((margins["linear"] >= margins["interval"]).all())
    with torch.no_grad():
        for _ in range(50):
            noise = 2 * torch.rand(3, 9, 2, dtype=torch.float64) - 1
            for delta in (noise, noise.sign()):
                z = net(x + eps * delta)
                own = z.gather(1, y[:, None])[:, 0]
                rest = z.scatter(1, y[:, None], -math.inf).amax(1)
                assert bool((own - rest >= margins["linear"]).all())


def test_bounds_over_the_whole_network_are_tighter() -> None:
    """The inputs of pointwise functions bounded linearly, in a branch and after pooling; sound as tested below."""
    net = Net(S5(3, 6), "relu").double()
    deep = [*net.stages()[:-1], Affine(torch.randn(8, 3)), Pointwise("relu"), Affine(torch.randn(4, 8))]
    x = torch.randn(5, 12, 2, dtype=torch.float64)
    y = run(deep, x).argmax(1)
    boxed, whole = (certify_linf(deep, x, y, 0.1, LinfSettings(rows=rows)).margin for rows in (0, 64))
    assert bool((whole >= boxed - 1e-9).all())
    assert bool((whole > boxed + 1e-3).any())
    noise = (2 * torch.rand(500, 5, 12, 2, dtype=torch.float64) - 1).sign()
    z = run(deep, (x + 0.1 * noise).flatten(0, 1)).unflatten(0, (500, 5))
    own = z.gather(2, y.expand(500, -1)[..., None])[..., 0]
    assert bool((own - z.scatter(2, y.expand(500, -1)[..., None], -math.inf).amax(2) >= whole).all())


def test_sound_on_ten_thousand_perturbations() -> None:
    """A certified sample keeps its class under 10 000 perturbations, half of them corners of the ball."""
    net = Net(S5(3, 6), "gelu").double()
    x = torch.randn(4, 12, 2, dtype=torch.float64)
    with torch.no_grad():
        y = net(x).argmax(1)
        eps = 0.999 * linf_radius(net.stages(), x, y, largest=1.0, steps=12)
        assert bool((eps > 0).all())
        certified = certify_linf(net.stages(), x, y, eps)
        assert bool(certified.certified.all())
        for part in range(10):
            noise = 2 * torch.rand(1000, 4, 12, 2, dtype=torch.float64) - 1
            delta = noise.sign() if part % 2 else noise
            z = net((x + eps[:, None, None] * delta).flatten(0, 1))
            assert bool((z.argmax(1).unflatten(0, (1000, 4)) == y).all())


def test_linear_networks_are_bounded_exactly() -> None:
    """Without a pointwise function the linear bound is the dual norm: a gradient attack reaches it."""
    net = Net(LRU(3, 4), "none").double()
    x, eps = torch.randn(1, 8, 2, dtype=torch.float64, requires_grad=True), 0.05
    logits = net(x)
    y = logits.detach().argmax(1)
    found = certify_linf(net.stages(), x, y, eps).margin
    least = math.inf
    for j in range(4):
        if j == int(y):
            continue
        (grad,) = torch.autograd.grad(net(x)[0, int(y)] - net(x)[0, j], x)
        z = net(x - eps * grad.sign()).detach()[0]
        least = min(least, float(z[int(y)] - z[j]))
    assert float(found) == pytest.approx(least, rel=1e-7)  # boxes are widened by 1e-9 at every stage


def test_pulled_bounds_are_transposes() -> None:
    """sum(a * stage(x)) = sum(pull(a) * x) for linear stages, both directions of time included."""
    system = LAYERS["LRU"]().double().system()
    both = Recurrence(system, LAYERS["LRU"]().double().system())
    x, a = torch.randn(2, 9, 3, dtype=torch.float64), torch.randn(2, 5, 9, 3, dtype=torch.float64)
    for stage in (both, Recurrence(LAYERS["S4D"]().double().system()), Skip([both])):
        back, offset = pull_back([stage], a, Memory(Box(x, x)))
        assert_close((back * x[:, None]).sum((2, 3)) + offset, (a * run([stage], x)[:, None]).sum((2, 3)))


def test_both_directions_are_bounded_exactly() -> None:
    stage = Recurrence(LAYERS["LRU"]().double().system(), LAYERS["LRU"]().double().system())
    r = torch.rand(1, 7, 3, dtype=torch.float64)
    start = Box(torch.zeros(1, 7, 3, dtype=torch.float64), r)
    box = boxes([stage], start, Memory(start))
    u = torch.zeros(1, 7, 3, dtype=torch.float64)
    eye = torch.eye(21, dtype=torch.float64).reshape(21, 7, 3)
    want = (run([stage], u + eye).abs() * r.reshape(21, 1, 1)).sum(0)  # |column| times radius
    assert_close(box.radius[0], want, tolerance=1e-8)  # widened by 1e-9


def test_bounds_lengths_and_padding() -> None:
    x = torch.tensor([[[0.05], [0.5], [0.97]]])
    box = Box.around(x, 0.1, (0.0, 1.0), torch.tensor([2]))
    assert_close(box.low.flatten(), torch.tensor([0.0, 0.4, 0.97], dtype=torch.float64), tolerance=1e-7)
    assert_close(box.high.flatten(), torch.tensor([0.15, 0.6, 0.97], dtype=torch.float64), tolerance=1e-7)
    pooled = Pool("mean", torch.tensor([2]))
    assert float(pooled.apply(x.double())[0, 0]) == pytest.approx(0.275, rel=1e-6)
    assert float(Pool("last", torch.tensor([2])).apply(x.double())[0, 0]) == pytest.approx(0.5)


def test_radius_of_samples() -> None:
    """By bisection; a sample that is misclassified has none."""
    net = Net(S4D(3, 4)).double()
    x = torch.randn(3, 6, 2, dtype=torch.float64)
    y = net(x).detach().argmax(1)
    y[0] = (y[0] + 1) % 4
    eps = linf_radius(net.stages(), x, y, steps=10)
    assert float(eps[0]) == 0.0
    assert bool((eps[1:] > 0).all())
    assert bool(certify_linf(net.stages(), x[1:], y[1:], eps[1:]).certified.all())
    found = certify_linf(net.stages(), x, y, 0.0)
    assert found.certified.tolist() == [False, True, True]
    assert found.as_dict()["accuracy"] == pytest.approx(2 / 3)


def test_refusals() -> None:
    x, y = torch.randn(1, 5, 2, dtype=torch.float64), torch.zeros(1, dtype=torch.int64)
    net = Net(S4D(3, 4)).double()
    with pytest.raises(ValueError, match="last stage"):
        certify_linf([Pool("mean")], x, y, 0.1)
    with pytest.raises(ValueError, match="eps must be finite"):
        certify_linf(net.stages(), x, y, -0.1)
    with pytest.raises(ValueError, match="method"):
        LinfSettings(method="exact")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="bounds"):
        LinfSettings((1.0, 0.0))
    with pytest.raises(ValueError, match="rows"):
        LinfSettings(rows=-1)
    with pytest.raises(ValueError, match="labels must lie"):
        certify_linf(net.stages(), x, y + 9, 0.1)
    with pytest.raises(ValueError, match="selects"):
        system_radius(ScalarS6(2, 2).linearise(torch.randn(1, 4, 2)), torch.ones(4, 2))
    with pytest.raises(ValueError, match="not linear"):
        Pool("max")  # type: ignore[arg-type]
    one = torch.ones(1, 1)
    with pytest.raises(ValueError, match="continuous"):
        system_radius(System(Diagonal(torch.ones(1)), one, one, one), torch.ones(3, 1))
    many = System(Diagonal(torch.ones(2, 3, 1)), torch.ones(1, 1), torch.ones(1, 1), one, dt=1.0)
    with pytest.raises(ValueError, match="block_diagonal"):
        system_radius(many, torch.ones(3, 1))
