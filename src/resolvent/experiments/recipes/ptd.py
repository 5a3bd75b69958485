"""The study of perturb-then-diagonalise (Yu et al. 2024): its first experiments and the checks that it invites.

Five are analyses and train nothing; `ptd_fourier` trains S4D and S4-PTD as the authors' noise experiment does: dt, A
and B frozen, no skip around a layer and none inside it (D), LayerNorm afterwards, so that everything passes through the
state-space layers. The noise comes at test time alone, 0.1 U(0, 1) cos(w t) at every layer's input. Two things differ:
C trains at the same rate as the rest (the released script has 4e-3 for it beside 1e-2), and one of each conjugate pair
is kept of the same 32-state systems, where the script keeps all 32.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from resolvent.experiments.cell import Budget, Cell, FourierPlan, TaskChoice
from resolvent.experiments.goal import Goal
from resolvent.experiments.recipes.size import Size
from resolvent.experiments.study import Study
from resolvent.models import ChannelsConfig, ClassifierConfig, ModelConfig, RegressionConfig, ResidualConfig, S4DConfig

Start = Literal["legs", "ptd"]
NAMES: dict[Start, str] = {"legs": "s4d", "ptd": "s4-ptd"}
SPIKES = {16: 80.966, 32: 325.426}  # where S4D-LegS of so many states amplifies what LegS does not


def ptd_conditioning(size: Size = "full") -> list[Study]:
    """Yu et al. 2024, first experiment: the condition number of LegS's eigenvectors before and after PTD, over N."""
    sizes = (2, 4, 8, 16, 32, 64) if size == "full" else (2, 4, 8, 16)
    return [Study("ptd-conditioning", ("legs",), "conditioning.before_and_after", (("sizes", sizes),))]


def ptd_transfer(size: Size = "full") -> list[Study]:
    """Yu et al. 2024, second experiment: |G - G_LegS| over frequency for S4D-LegS and PTD."""
    points, sizes = (600, (16, 32, 64)) if size == "full" else (100, (16,))
    return [
        Study("ptd-transfer", (f"n={n}",), "transfer.over_frequency", (("n", n), ("points", points))) for n in sizes
    ]


def ptd_kappa(size: Size = "full") -> list[Study]:
    """Yu et al. 2024, check: the condition number over the number of states and the size of the perturbation."""
    sizes = (4, 8, 16, 32, 64, 128) if size == "full" else (4, 8, 16)
    seeds = 5 if size == "full" else 3
    return [Study("ptd-kappa", ("legs",), "conditioning.over_sizes", (("sizes", sizes), ("seeds", seeds)))]


def ptd_sensitivity(size: Size = "full") -> list[Study]:
    """Yu et al. 2024, check: what grids of frequencies see of the difference, and the bands where it is large."""
    sizes = (32, 64) if size == "full" else (16,)
    nodes = (30, 100, 300, 1000, 3000, 10_000) if size == "full" else (30, 100, 300)
    return [Study("ptd-sensitivity", (f"n={n}",), "transfer.sensitivity", (("n", n), ("nodes", nodes))) for n in sizes]


def ptd_sizes(size: Size = "full") -> list[Study]:
    """Yu et al. 2024, check: perturbations of 1 to 50 per cent: conditioning, distance, stability, the spike."""
    n, seeds = (32, 5) if size == "full" else (16, 3)
    return [Study("ptd-sizes", (f"n={n}",), "perturbation.size_sweep", (("n", n), ("seeds", seeds)))]


def ptd_fourier(size: Size = "full") -> list[Cell]:
    """Yu et al. 2024, third experiment: clean against Fourier-noise accuracy of S4D and S4-PTD."""
    starts: tuple[Start, ...] = ("legs", "ptd")
    if size == "full":
        return [cifar_cell(start) for start in starts]
    return [make(start) for make in (digits_cell, sinusoids_cell) for start in starts]


def cifar_cell(start: Start) -> Cell:
    """Sequential CIFAR-10 in colour at the settings of the released noise experiment."""
    head = ClassifierConfig(10, "mean")
    return Cell(
        "ptd-fourier",
        (NAMES[start], "cifar10"),
        noise_model(S4DConfig(32, start), ChannelsConfig(3), head, d_model=128, layers=4, dropout=0.1),
        TaskChoice("cifar10", (("normalise", True), ("seed", 42))),
        Goal(),
        Budget(epochs=100, batch_size=64, lr=1e-2, weight_decay=0.05, ssm_lr=0.0, choose="clean"),
        fourier=FourierPlan((0.1, 0.3, 1.0, 3.0), (SPIKES[32],)),
        analyse=True,
    )


def digits_cell(start: Start) -> Cell:
    """The embedded digits: 64 steps, 16 states, time steps so small that the spike at 81 does not fold over."""
    head = ClassifierConfig(10, "last")
    return _small(start, "digits", TaskChoice("digits"), head, dt_min=0.03, dt_max=0.038, epochs=12)


def sinusoids_cell(start: Start) -> Cell:
    """Sinusoids of frequencies up to 60 over two units of time, one step of the layer for one of the wave."""
    options = (("length", 100), ("duration", 2.0), ("frequencies", (1.0, 60.0)), ("samples", (600, 100, 200)))
    task = TaskChoice("sinusoids", options)
    return _small(start, "sinusoids", task, RegressionConfig(2, "mean"), dt_min=0.02, dt_max=0.02, epochs=12)


def _small(start: Start, name: str, task: TaskChoice, head: Any, *, epochs: int, **steps: Any) -> Cell:
    return Cell(
        "ptd-fourier",
        (NAMES[start], name),
        noise_model(S4DConfig(16, start, **steps), ChannelsConfig(1), head, d_model=32, layers=2),
        task,
        Goal(),
        Budget(
            epochs=epochs,
            batch_size=64,
            lr=1e-2,
            weight_decay=1e-4,
            ssm_lr=0.0,
            clip=1.0,
            evaluate_every=4,
            choose="clean",
        ),
        fourier=FourierPlan((0.1, 0.3, 1.0, 3.0), (SPIKES[16],)),
        analyse=True,
    )


def noise_model(
    layer: S4DConfig, entry: ChannelsConfig, head: Any, *, d_model: int, layers: int, dropout: float = 0.0
) -> ModelConfig:
    """The model of the noise experiment: nothing goes around its state-space layers."""
    block = ResidualConfig(replace(layer, skip=False), mixer="glu", activation="gelu", skip=False)
    return ModelConfig(entry, block, head, d_model, layers, norm="layer", prenorm=False, dropout=dropout)
