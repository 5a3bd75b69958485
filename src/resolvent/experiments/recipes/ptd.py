"""The study of perturb-then-diagonalise (Yu et al. 2024): its first experiments and further checks.

Five are analyses and train nothing; `ptd_fourier` trains S4D and S4-PTD as the authors' noise experiment does: dt, A
and B frozen, no skip around a layer and none inside it (D), LayerNorm afterwards, so that everything passes through the
state-space layers. The noise comes at test time alone, 0.1 U(0, 1) cos(w t) at every layer's input. Two things differ:
C trains at the same rate as the rest (the released script has 4e-3 for it beside 1e-2), and one of each conjugate pair
is kept of the same 32-state systems, where the script keeps all 32.

S5 and S5-PTD use the same residual block, with blocks of as many states as S4D, so that their spikes are at S4D's. S5
keeps its D, a path around its states that the experiment's S4D lacks; its time steps belong to states, and the tone
uses their geometric mean.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, get_args

from resolvent.experiments.cell import Budget, Cell, FourierPlan, TaskChoice
from resolvent.experiments.objective_settings import Goal
from resolvent.experiments.recipes.size import Size
from resolvent.experiments.study import Study
from resolvent.models import (
    ChannelsConfig,
    ClassifierConfig,
    ModelConfig,
    RegressionConfig,
    ResidualConfig,
    S4DConfig,
    S5Config,
)

Name = Literal["s4d", "s4-ptd", "s5", "s5-ptd"]
SPIKES = {16: 80.966, 32: 325.426}  # where S4D-LegS of this size amplifies and LegS does not
AMPLITUDES = (0.1, 0.3, 1.0, 3.0)
LOUD = 0.3  # amplitude of the tone in the training of ptd_noisy
STRENGTHS = (0.01, 0.03, 0.1, 0.3, 0.5)  # ||E|| / ||A|| of ptd_ablation


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
    """Yu et al. 2024, check: how much of the difference frequency grids find, and the bands where it is large."""
    sizes = (32, 64) if size == "full" else (16,)
    nodes = (30, 100, 300, 1000, 3000, 10_000) if size == "full" else (30, 100, 300)
    return [Study("ptd-sensitivity", (f"n={n}",), "transfer.sensitivity", (("n", n), ("nodes", nodes))) for n in sizes]


def ptd_sizes(size: Size = "full") -> list[Study]:
    """Yu et al. 2024, check: perturbations of 1 to 50 per cent: conditioning, distance, stability, the spike."""
    n, seeds = (32, 5) if size == "full" else (16, 3)
    return [Study("ptd-sizes", (f"n={n}",), "perturbation.size_sweep", (("n", n), ("seeds", seeds)))]


def ptd_fourier(size: Size = "full") -> list[Cell]:
    """Yu et al. 2024, third experiment: clean against Fourier-noise accuracy of S4D, S4-PTD, S5 and S5-PTD."""
    names: tuple[Name, ...] = get_args(Name)
    return [cell("ptd-fourier", name, data) for data in _data(size) for name in names]


def ptd_noisy(size: Size = "full") -> list[Cell]:
    """Yu et al. 2024, check: S4D and S4-PTD trained on noisy data, with the tone of the test already in training."""
    names: tuple[Name, ...] = ("s4d", "s4-ptd")
    cells = [cell("ptd-noisy", name, data) for data in _data(size) for name in names]
    return [replace(each, goal=Goal(tone=(LOUD, _spike(each)))) for each in cells]


def ptd_ablation(size: Size = "full") -> list[Cell]:
    """Yu et al. 2024, appendix: S4-PTD trained from perturbations of 1 to 50 per cent, clean and under tones."""
    cells = [(cell("ptd-ablation", "s4-ptd", data), strength) for data in _data(size) for strength in STRENGTHS]
    return [_set_perturbation(each, strength) for each, strength in cells]


def _data(size: Size) -> tuple[str, ...]:
    return ("cifar10",) if size == "full" else ("digits", "sinusoids")


def _spike(held: Cell) -> float:
    assert held.fourier is not None
    return held.fourier.frequencies[0]


def _set_perturbation(held: Cell, strength: float) -> Cell:
    block = held.model.block
    assert isinstance(block, ResidualConfig)
    assert isinstance(block.layer, S4DConfig)
    layer = replace(block.layer, perturbation=strength)
    return replace(
        held, tags=(*held.tags, f"size={strength:g}"), model=replace(held.model, block=replace(block, layer=layer))
    )


def cell(recipe: str, name: Name, data: str) -> Cell:
    """One model of the noise experiment on one set of data."""
    if data == "cifar10":
        return cifar_cell(recipe, name)
    return digits_cell(recipe, name) if data == "digits" else sinusoids_cell(recipe, name)


def layer_of(name: Name, n: int, blocks: int = 1, **steps: Any) -> S4DConfig | S5Config:
    """n states per channel, or for S5 `blocks` blocks of n."""
    start: Literal["legs", "ptd"] = "ptd" if name.endswith("ptd") else "legs"
    if name.startswith("s5"):
        return S5Config(n * blocks, blocks, init=start, **steps)
    return S4DConfig(n, start, **steps)


def cifar_cell(recipe: str, name: Name) -> Cell:
    """Sequential CIFAR-10 in colour at the settings of the released noise experiment."""
    head = ClassifierConfig(10, "mean")
    return Cell(
        recipe,
        (name, "cifar10"),
        noise_model(layer_of(name, 32, 4), ChannelsConfig(3), head, d_model=128, layers=4, dropout=0.1),
        TaskChoice("cifar10", (("normalise", True), ("seed", 42))),
        Goal(),
        Budget(epochs=100, batch_size=64, lr=1e-2, weight_decay=0.05, ssm_lr=0.0, choose="clean"),
        fourier=FourierPlan(AMPLITUDES, (SPIKES[32],)),
        analyse=True,
    )


def digits_cell(recipe: str, name: Name) -> Cell:
    """The embedded digits: 64 steps, 16 states, time steps small enough that the spike at 81 is not aliased."""
    head = ClassifierConfig(10, "last")
    return _small(recipe, name, "digits", TaskChoice("digits"), head, dt_min=0.03, dt_max=0.038)


def sinusoids_cell(recipe: str, name: Name) -> Cell:
    """Sinusoids of frequencies up to 60 over two units of time, one step of the layer for one of the wave."""
    options = (("length", 100), ("duration", 2.0), ("frequencies", (1.0, 60.0)), ("samples", (600, 100, 200)))
    task = TaskChoice("sinusoids", options)
    return _small(recipe, name, "sinusoids", task, RegressionConfig(2, "mean"), dt_min=0.02, dt_max=0.02)


def _small(recipe: str, name: Name, data: str, task: TaskChoice, head: Any, **steps: Any) -> Cell:
    return Cell(
        recipe,
        (name, data),
        noise_model(layer_of(name, 16, **steps), ChannelsConfig(1), head, d_model=32, layers=2),
        task,
        Goal(),
        Budget(
            epochs=12, batch_size=64, lr=1e-2, weight_decay=1e-4, ssm_lr=0.0, clip=1.0, evaluate_every=4, choose="clean"
        ),
        fourier=FourierPlan(AMPLITUDES, (SPIKES[16],)),
        analyse=True,
    )


def noise_model(
    layer: S4DConfig | S5Config, entry: ChannelsConfig, head: Any, *, d_model: int, layers: int, dropout: float = 0.0
) -> ModelConfig:
    """The model of the noise experiment: nothing goes around its state-space layers."""
    own = replace(layer, skip=False) if isinstance(layer, S4DConfig) else layer
    block = ResidualConfig(own, mixer="glu", activation="gelu", skip=False)
    return ModelConfig(entry, block, head, d_model, layers, norm="layer", prenorm=False, dropout=dropout)
