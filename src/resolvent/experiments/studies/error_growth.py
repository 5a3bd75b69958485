"""How the output error of a perturbed input grows with the length: bounds, the exact mean, and an attack."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from resolvent.analysis import error_bounds
from resolvent.experiments.studies.findings import Findings, chart, findings, series
from resolvent.layers import LRU, S4D, S6
from resolvent.ssm.system import System

Make = Callable[[int], System]  # the system acting on this many steps


def over_length(
    lengths: Sequence[int] = (4, 8, 16, 32, 64, 128), eps: float = 0.1, d: int = 2, n: int = 8, seed: int = 0
) -> Findings:
    """Entries of |e| <= eps with mean eps / 2 into S4D, LRU and S6 at initialisation; sums over d channels."""
    torch.manual_seed(seed)
    rows, charts = [], []
    for name, make in systems(max(lengths), d, n).items():
        longest = make(max(lengths))
        length = None if longest.time_varying else max(lengths)
        growth = error_bounds(longest, length, mean=eps / 2, second_moment=eps**2).growth()
        measured = [attack_system(make(l), l, eps) for l in lengths]
        for l, found in zip(lengths, measured, strict=True):
            at = [None if growth[k] is None else growth[k][l - 1] for k in KEYS]  # type: ignore[index]
            rows.append([name, l, *at[:2], found, *at[2:]])
        charts.append(_chart(name, growth, lengths, measured))
    text = (
        f"Perturbations of at most {eps:g} and mean {eps / 2:g}. The worst error that sign ascent finds lies between "
        "the exact mean and the upper bound at every length."
    )
    names = ("layer", "length", "lower", "mean, exact", "attack", "upper", "theorem, lower", "theorem, upper")
    return findings(text, names, rows, charts)


KEYS = ("lower", "exact", "upper", "theorem_lower", "theorem_upper")


def systems(length: int, d: int, n: int) -> dict[str, Make]:
    """Two fixed layers, and a selective one at the selection of a random input."""
    s4d, lru, s6 = S4D(d, n).double(), LRU(d, n).double(), S6(d, n).double()
    x = torch.randn(1, length, d, dtype=torch.float64)
    return {
        "S4D-LegS": lambda _: s4d.system(),
        "LRU": lambda _: lru.system(),
        "S6, selection held": lambda l: s6.linearise(x[:, :l]),
    }


def attack_system(system: System, length: int, eps: float, starts: int = 8, steps: int = 12) -> float:
    """The largest ||H e||^2 over |e_k| <= eps that sign ascent finds, summed over the bank.

    The square is convex, so a step to the corner of the gradient's signs never lowers it. Starts are a constant, and
    corners drawn with the mean eps / 2 of the bounds.
    """
    drawn = torch.rand(starts, *system.bank, length, system.inputs, dtype=torch.float64) < 0.75
    drawn[0] = True
    e, best = torch.where(drawn, eps, -eps).double(), torch.zeros(system.bank, dtype=torch.float64)
    for _ in range(steps):
        e = e.detach().requires_grad_()
        size = energy(system, e)  # (starts, *bank)
        (gradient,) = torch.autograd.grad(size.sum(), e)
        best = torch.maximum(best, size.detach().amax(0))
        e = torch.where(gradient >= 0, eps, -eps).double()
    return float(best.sum())


def energy(system: System, e: Tensor) -> Tensor:
    y = system.simulate(e)[0]
    return (y.real if y.is_complex() else y).square().sum((-1, -2))


def _chart(name: str, growth: dict[str, list[float] | None], lengths: Sequence[int], measured: list[float]) -> Findings:
    names = {"lower": "lower bound", "exact": "mean, exact", "upper": "upper bound", "theorem_upper": "theorem's upper"}
    steps = growth["length"] or []
    curves = [series(words, steps, values) for key, words in names.items() if (values := growth[key]) is not None]
    curves.append(series("attack", lengths, measured, "points"))
    return chart(f"{name}: squared output error over the length", curves, ("length", "‖y′ − y‖²"), log="xy")
