"""Pictures of linear systems: state, modes, kernels, gain, selectivity, pseudospectra and the spike of S4D."""

from __future__ import annotations

import math

import torch
from page import INK, MUTED, SERIES, legend_above, panels, save

import resolvent as rv
from resolvent.analysis import eigenvector_condition, frequency_response, hidden_attention, hinf_norm, pseudospectrum
from resolvent.experiments.studies.starts import start
from resolvent.report.figures.figure import levels
from resolvent.ssm.response_grid import refined_grid

f64 = torch.float64


def oscillator(dt: float = 0.1, damping: float = 0.15) -> rv.System:
    """A mass on a spring: position and speed, pushed by u, position read out."""
    A = torch.tensor([[0.0, 1.0], [-1.0, -2 * damping]], dtype=f64)
    B, C = torch.tensor([[0.0], [1.0]], dtype=f64), torch.tensor([[1.0, 0.0]], dtype=f64)
    return rv.ssm.discretise(rv.System(A, B, C, torch.zeros(1, 1, dtype=f64)), dt)


def state_memory() -> None:
    """One push, and what the two numbers of the state do afterwards."""
    system = oscillator()
    u = torch.zeros(240, 1, dtype=f64)
    u[20] = 1
    x, states = torch.zeros(2, dtype=f64), []
    A, B = system.A.dense(), system.B
    for u_k in u:
        x = A @ x + B @ u_k
        states.append(x)
    x = torch.stack(states)
    figure, (left, right) = panels(2)
    k = torch.arange(240)
    left.plot(k, u[:, 0], color=MUTED, lw=1.2, label="input u")
    left.plot(k, x[:, 0] * 8, color=SERIES[0], lw=1.4, label="x₁ position (×8)")
    left.plot(k, x[:, 1] * 8, color=SERIES[1], lw=1.4, label="x₂ speed (×8)")
    left.set(xlabel="step", title="over time")
    right.plot(x[:, 0], x[:, 1], color=SERIES[0], lw=1.2)
    right.plot(x[20, 0], x[20, 1], "o", ms=4, color=SERIES[1])
    right.set(xlabel="x₁", ylabel="x₂", title="the state as a point in the plane")
    legend_above(left)
    save(figure, "state_memory")


def state_modes() -> None:
    """Where an eigenvalue lies in the unit disc says what its part of the kernel looks like."""
    shown = [(0.98, 0.0), (0.9, 0.0), (0.97, 0.35), (0.85, 1.2)]
    figure, (left, right) = panels(2)
    t = torch.linspace(0, 2 * math.pi, 200)
    left.plot(t.cos(), t.sin(), color=MUTED, lw=0.8)
    left.set_aspect("equal")
    k = torch.arange(60)
    for colour, (radius, angle) in zip(SERIES, shown, strict=True):
        left.plot(radius * math.cos(angle), radius * math.sin(angle), "o", ms=5, color=colour)
        if angle:
            left.plot(radius * math.cos(angle), -radius * math.sin(angle), "o", ms=5, color=colour)
        right.plot(k, radius**k * (angle * k).cos(), color=colour, lw=1.3, label=f"|λ| {radius:g}, angle {angle:g}")
    left.set(xlabel="Re λ", ylabel="Im λ", title="eigenvalues in the unit disc")
    right.set(xlabel="step", title="what each adds to the kernel")
    legend_above(right)
    save(figure, "state_modes")


def state_two_ways() -> None:
    """The same output as a recurrence and as a convolution."""
    system = oscillator(dt=0.3)
    K = rv.ssm.kernel(system, 120)[0, 0]
    u = torch.zeros(120, 1, dtype=f64)
    u[10:13], u[50:70], u[90] = 1.0, 0.5, -1.0
    y = system.simulate(u)[0][:, 0]
    figure, (left, middle, right) = panels(3, (6.8, 2.2))
    k = torch.arange(120)
    left.plot(k, u[:, 0], color=SERIES[1], lw=1.3)
    left.set(title="input u", xlabel="step")
    middle.plot(k, K, color=SERIES[0], lw=1.3)
    middle.set(title="kernel K = C Aᵏ B", xlabel="step")
    right.plot(k, y, color=SERIES[2], lw=2.4, alpha=0.6, label="step by step")
    right.plot(k, rv.ssm.causal_conv(u[:, 0], K), color=INK, lw=0.8, ls="--", label="K ∗ u")
    right.set(title="output y", xlabel="step")
    legend_above(right)
    save(figure, "state_two_ways")


def state_gain() -> None:
    """Gain over frequency, and a tone at the peak beside a tone elsewhere."""
    system = oscillator()
    norm = hinf_norm(system)
    w = torch.logspace(-2, math.log10(math.pi), 600, dtype=f64)
    G = frequency_response(system, w).abs().flatten()
    figure, (left, right) = panels(2)
    left.loglog(w, G, color=SERIES[0], lw=1.4)
    left.axhline(float(norm.upper), color=SERIES[1], lw=1, ls="--")
    left.plot(float(norm.frequency), float(norm.value), "o", ms=4, color=SERIES[1])
    left.set(xlabel="frequency, radians a step", title="gain |G|: dashed, the H∞ norm")
    k = torch.arange(600, dtype=f64)
    for colour, at, name in ((SERIES[1], float(norm.frequency), "at the peak"), (SERIES[0], 0.5, "at 0.5")):
        right.plot(k, system.simulate(torch.cos(at * k)[:, None])[0][:, 0], color=colour, lw=1.1, label=name)
    right.set(xlabel="step", title="answers to tones of size 1")
    legend_above(right)
    save(figure, "state_gain")


def state_selective() -> None:
    """y = M u: Toeplitz for a constant system, a matrix of its own for each input of a selective one."""
    torch.manual_seed(3)
    fixed = rv.S4D(1, 16, dt_min=0.05, dt_max=0.05, skip=False)
    selective = rv.S6(4, d_state=8, dt_min=0.05, dt_max=0.5)
    torch.nn.init.zeros_(selective.D)
    x = torch.randn(1, 40, 4).mul(2)
    shown = [(hidden_attention(fixed.system(), length=40), "S4D: the same for every input")]
    shown += [(hidden_attention(selective.linearise(x)), "S6 along one input")]
    figure, axes = panels(2, (6.4, 3.0))
    for one, (M, title) in zip(axes, shown, strict=True):
        M = M.detach().real.reshape(-1, M.shape[-2], M.shape[-1])[0].abs()
        strength = (M / M.max()).sqrt()
        image = torch.zeros(*M.shape, 4)
        image[..., :3] = torch.tensor([0x2F, 0x82, 0xD9]) / 255
        image[..., 3] = strength
        one.imshow(image.numpy(), interpolation="nearest")
        one.grid(visible=False)
        one.set(title=title, xlabel="input step", ylabel="output step")
    save(figure, "state_selective")


def ptd_pseudospectra() -> None:
    """How near to singular z - A is, for LegS, for its normal part, and for LegS perturbed a little."""
    figure, axes = panels(3, (7.2, 2.9))
    names = (("legs", "HiPPO-LegS"), ("s4d-legs", "its normal part (S4D)"), ("ptd", "LegS + E (PTD)"))
    for one, (name, title) in zip(axes, names, strict=True):
        begun = start(name, 16)
        found = pseudospectrum(begun.A, torch.linspace(-40, 25, 60), torch.linspace(-100, 100, 80))
        height = found.sigma.clamp_min(1e-16).log10().tolist()
        at = [v for v in (-10.0, -8.0, -6.0, -4.0, -2.0, -1.0, 0.0, 1.0) if v >= levels(height)[0] - 1]
        colours = [SERIES[j % 4] for j in range(len(at))]
        lines = one.contour(found.re, found.im, height, levels=at, linewidths=0.8, colors=colours, linestyles="solid")
        one.clabel(lines, fmt=lambda v: f"1e{v:g}", fontsize=6, colors=INK)
        one.plot(begun.lam.real, begun.lam.imag, "o", ms=2.2, mew=0, color=INK)
        one.axvline(0, color=MUTED, lw=0.8)
        one.set(title=title, xlabel="Re z", xlim=(-40, 25), ylim=(-100, 100))
    axes[0].set_ylabel("Im z")
    save(figure, "ptd_pseudospectra")


def ptd_condition() -> None:
    """Condition number of the eigenvectors over N."""
    figure, (one,) = panels(1, (4.4, 2.4))
    sizes = (4, 8, 12, 16, 24, 32)
    legs = [eigenvector_condition(rv.ssm.hippo("legs", n)[0]).log10 for n in sizes]
    perturbed = [math.log10(rv.init.ptd("legs", n).kappa) for n in sizes]
    one.plot(sizes, legs, "o-", ms=3, color=SERIES[0], lw=1.3, label="HiPPO-LegS")
    one.plot(sizes, perturbed, "o-", ms=3, color=SERIES[2], lw=1.3, label="after PTD")
    one.set(xlabel="states N", ylabel="log₁₀ κ(V)")
    legend_above(one)
    save(figure, "ptd_condition")


def spike() -> None:
    """|G| of the first state over frequency: LegS, S4D-LegS, PTD."""
    figure, (left, right) = panels(2, (6.6, 2.6))
    begun = [start(name, 32) for name in ("legs", "s4d-legs", "ptd")]
    w = refined_grid(torch.cat([b.lam for b in begun[1:]]), 400)[1:]
    near = torch.linspace(300, 350, 800, dtype=f64)
    for colour, b, name in zip(SERIES, begun, ("LegS", "S4D-LegS", "PTD"), strict=False):
        style = {"color": colour, "lw": 1.2, "ls": "--" if name == "LegS" else "-", "label": name}
        left.loglog(w, b.gain(b.read(0), w).abs(), **style)
        right.semilogy(near, b.gain(b.read(0), near).abs(), **{**style, "label": None})
    left.set(xlabel="frequency", title="gain to the first state, N = 32", xlim=(1, 2000), ylim=(1e-4, 3))
    right.set(xlabel="frequency", title="near N²/π", ylim=(1e-3, 2))
    legend_above(left)
    save(figure, "spike")


DRAW = (
    state_memory,
    state_modes,
    state_two_ways,
    state_gain,
    state_selective,
    ptd_pseudospectra,
    ptd_condition,
    spike,
)

if __name__ == "__main__":
    for draw in DRAW:
        draw()
