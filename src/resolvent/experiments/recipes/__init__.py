"""Recipes: each a function of the size, "full" as published or "small" for two cores, that returns its cells.

On the command line underscores are dashes: `resolvent run qi2024-table1 --only s4,cifar10,trades`.
"""

from resolvent.experiments.recipes.adversarial import (
    qi2024_error_growth,
    qi2024_figure1,
    qi2024_figure2,
    qi2024_figure3,
    qi2024_figure4,
    qi2024_figure5,
    qi2024_shift,
    qi2024_table1,
    qi2024_table2,
    qi2024_versions,
)
from resolvent.experiments.recipes.certified import certified_digits
from resolvent.experiments.recipes.digits import digits_robustness
from resolvent.experiments.recipes.long_range import lra
from resolvent.experiments.recipes.ptd import (
    ptd_ablation,
    ptd_conditioning,
    ptd_fourier,
    ptd_kappa,
    ptd_noisy,
    ptd_sensitivity,
    ptd_sizes,
    ptd_transfer,
)
from resolvent.experiments.recipes.quickstart import quickstart
from resolvent.experiments.recipes.selective import (
    honarpisheh2025_abscissa,
    honarpisheh2025_gap,
    honarpisheh2025_stability,
    honarpisheh2025_table1,
)
from resolvent.experiments.recipes.sequential import smnist

__all__ = [
    "certified_digits", "digits_robustness", "honarpisheh2025_abscissa", "honarpisheh2025_gap",
    "honarpisheh2025_stability", "honarpisheh2025_table1", "lra", "ptd_ablation", "ptd_conditioning", "ptd_fourier",
    "ptd_kappa", "ptd_noisy", "ptd_sensitivity", "ptd_sizes", "ptd_transfer", "qi2024_error_growth", "qi2024_figure1",
    "qi2024_figure2", "qi2024_figure3", "qi2024_figure4", "qi2024_figure5", "qi2024_shift", "qi2024_table1",
    "qi2024_table2", "qi2024_versions", "quickstart", "smnist",
]  # fmt: skip
