"""The numbers behind the demo's figures: eigenvalues and impulse responses of each initialisation, as plain records."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from resolvent import layers
from resolvent.init import spectra as starts
from resolvent.report.record import Curve, Panel, Spectrum
from resolvent.ssm.hippo import dplr, hippo

Maker = Callable[[float, int], nn.Module]  # (dt, states) -> a layer of one channel
Respond = Callable[[nn.Module], list[float]]
STEPS = (0.001, 0.01, 0.1)  # the plotted time steps
N = 64  # states of the spectra
N_HEARD = 16  # states of the impulse responses: few enough to see single modes
LENGTH = 2048

S4D = {
    "legs": ("S4D-LegS", "The normal part of HiPPO-LegS alone; frequencies up to N²/π."),
    "lin": ("S4D-Lin", "Evenly spaced frequencies: a damped Fourier series."),
    "inv": ("S4D-Inv", "Close to the LegS frequencies, in closed form."),
    "real": ("S4D-Real", "−1 … −N: decays without oscillation."),
}


def spectra(seed: int = 0) -> list[Spectrum]:
    """Continuous spectra as defined, then discrete ones as in the layers."""
    torch.manual_seed(seed)
    return [*_continuous(), *_discrete()]


def panels(seed: int = 0) -> list[Panel]:
    """Impulse responses of one channel, by time step (or its equivalent in a layer)."""
    made = [_by_step("S4", "HiPPO-LegS with its low-rank part, read out at random.", _s4, seed)]
    made += [_by_step(name, caption, _s4d(init), seed) for init, (name, caption) in S4D.items()]
    made.append(_by_step("S5", "Four LegS blocks of four states.", _s5, seed))
    held = "Held at a constant input, where it is time-invariant."
    made.append(_by_step("S6 (Mamba)", held, _s6, seed, _held_response))
    made.append(_lru_panel(seed))
    made.append(_ema_panel(seed))
    return made


def _continuous() -> list[Spectrum]:
    A, _ = hippo("legs", N)
    normal = _close_conjugates(dplr("legs", N)[0])
    lam = torch.cat([A.diagonal().to(normal.dtype), normal])  # A is triangular: its diagonal holds its eigenvalues
    groups = [0] * N + [1] * len(normal)
    legs = "Where S4 starts. A = normal part − P P* has the eigenvalues −1 … −N."
    found = [_spectrum("HiPPO-LegS", legs, lam, groups, ["A", "normal part"])]
    found += [
        _spectrum(name, caption, _close_conjugates(starts.SPECTRA[init](N)[0])) for init, (name, caption) in S4D.items()
    ]
    for basis, word in {"LegT": "a sliding window of Legendre polynomials", "FouT": "a sliding Fourier window"}.items():
        caption = f"The normal part of {word}: undamped, until the low-rank part is added."
        found.append(_spectrum(f"HiPPO-{basis}", caption, _close_conjugates(dplr(basis.lower(), N)[0])))
    blocks = _close_conjugates(dplr("legs", N // 4)[0])
    found.append(_spectrum("S5, four blocks", "LegS of size N/4, once per block: lower frequencies, repeated.", blocks))
    A_mamba = -torch.exp(layers.S6(1, 16).A_log.detach())[0]
    found.append(_spectrum("S6 (Mamba)", "Real, −1 … −16 in every channel; the input chooses the time step.", A_mamba))
    return found


def _discrete() -> list[Spectrum]:
    found = []
    makers = {"S4": _s4, "S4D-Lin": _s4d("lin"), "S4D-Real": _s4d("real"), "S5": _s5}
    for name, make in makers.items():
        parts = [_eigenvalues(make(dt, N)) for dt in STEPS]
        groups = [k for k, part in enumerate(parts) for _ in part]
        caption = "Bilinear." if name == "S4" else "Zero-order hold."
        labels = [f"dt {dt:g}" for dt in STEPS]
        found.append(_spectrum(f"{name}, stepped", caption, torch.cat(parts), groups, labels, discrete=True))
    lam = _eigenvalues(layers.LRU(1, 128, r_min=0.9, r_max=0.999))
    area = "Radius from 0.9 to 0.999, any phase: drawn uniformly in area."
    found.append(_spectrum("LRU ring", area, lam, discrete=True))
    ema = _eigenvalues(layers.EMA(16, 16))
    found.append(_spectrum("EMA", "Mega's damped average: real, between 0 and 1.", ema, discrete=True))
    return found


def _s4(dt: float, n: int) -> nn.Module:
    return layers.S4(1, n, dt_min=dt, dt_max=dt)


def _s4d(init: str) -> Maker:
    return lambda dt, n: layers.S4D(1, n, init=init, dt_min=dt, dt_max=dt)


def _s5(dt: float, n: int) -> nn.Module:
    return layers.S5(1, n, blocks=4, dt_min=dt, dt_max=dt)


def _s6(dt: float, n: int) -> nn.Module:
    return layers.S6(1, n, dt_min=dt, dt_max=dt)


def _close_conjugates(lam: Tensor) -> Tensor:
    return torch.cat([lam, lam.conj()]) if lam.is_complex() else lam


@torch.no_grad()
def _eigenvalues(layer: nn.Module) -> Tensor:
    """Eigenvalues of one layer's discrete system, all channels together."""
    A = layer.double().system().A  # type: ignore[operator]
    diagonal = hasattr(A, "lam") and not hasattr(A, "P")
    return (A.lam if diagonal else torch.linalg.eigvals(A.dense())).flatten().to(torch.complex128)


def _spectrum(
    name: str,
    caption: str,
    lam: Tensor,
    group: list[int] | None = None,
    groups: list[str] | None = None,
    discrete: bool = False,
) -> Spectrum:
    lam = lam.to(torch.complex128)
    plane = "discrete" if discrete else "continuous"
    return Spectrum(name, caption, plane, lam.real.tolist(), lam.imag.tolist(), group or [0] * len(lam), groups or [])  # type: ignore[arg-type]


def _by_step(name: str, caption: str, make: Maker, seed: int, respond: Respond | None = None) -> Panel:
    curves = []
    for dt in STEPS:
        torch.manual_seed(seed)  # the same read-out at every time step
        curves.append(Curve(f"dt {dt:g}", (respond or _response)(make(dt, N_HEARD))))
    return Panel(name, caption, curves)


def _lru_panel(seed: int) -> Panel:
    curves = []
    for radius in (0.999, 0.99, 0.9):
        torch.manual_seed(seed)
        inner = radius - 0.05 * (1 - radius)
        layer = layers.LRU(1, N_HEARD, r_min=inner, r_max=radius, max_phase=math.pi / 10)
        curves.append(Curve(f"radius {radius:g}", _response(layer)))
    return Panel("LRU", "No time step: the ring's radius sets the memory. Phases up to π/10.", curves)


def _ema_panel(seed: int) -> Panel:
    torch.manual_seed(seed)
    layer = layers.EMA(3, 16).double()
    curves = [Curve(f"channel {k + 1}", _response(layer, k)) for k in range(3)]
    return Panel("EMA", "Three channels of Mega's multi-dimensional damped average.", curves)


@torch.no_grad()
def _response(layer: nn.Module, channel: int = 0) -> list[float]:
    """The kernel K_0, K_1, ... of one channel without its direct term, scaled to a largest size of one."""
    layer = layer.double()
    system = layer.system()  # type: ignore[operator]
    impulse = torch.zeros(1, LENGTH, layer.d_model, dtype=torch.float64)  # type: ignore[call-overload]
    impulse[:, 0, channel] = 1
    kernel = layer(impulse)[0][0, :, channel]
    direct = system.D.real if system.D.is_complex() else system.D
    kernel[0] -= direct.reshape(-1)[channel if direct.dim() == 3 else 0]
    return _thin(kernel)


@torch.no_grad()
def _held_response(layer: nn.Module) -> list[float]:
    """C exp(l dt A) dt B of a selective layer with constant input one, for which it is time-invariant."""
    held = layer.double().linearise(torch.ones(1, 1, layer.d_model, dtype=torch.float64))  # type: ignore[operator, call-overload]
    lam, B, C = held.A.lam[0, 0, 0], held.B[0, 0, 0, :, 0], held.C[0, 0, 0, 0]
    return _thin((lam[None] ** torch.arange(LENGTH)[:, None] * (B * C)).sum(-1))


def _thin(kernel: Tensor) -> list[float]:
    scaled = kernel / kernel.abs().max().clamp_min(1e-300)
    return [round(v, 4) for v in scaled.tolist()]
