"""The single selective block of the generalisation study: embedding, scalar-step S6, last step, linear read-out."""

from __future__ import annotations

from typing import Literal, get_args

from resolvent.models.config import ClassifierConfig, ModelConfig, ResidualConfig, TokensConfig
from resolvent.models.layer_config import ScalarS6Config
from resolvent.models.presets.recipe import TrainConfig
from resolvent.usage.numbers import check_choice

StudyTask = Literal["imdb", "majority", "listops"]
VOCABULARIES: dict[StudyTask, int] = {"imdb": 30522, "majority": 2, "listops": 16}
_LENGTHS: dict[StudyTask, tuple[int, int]] = {"imdb": (30, 256), "majority": (40, 64), "listops": (50, 64)}


def selective_block(
    task: StudyTask = "imdb", *, abscissa: float = 0.0, fixed_A: bool = False, vocab: int | None = None
) -> ModelConfig:
    """d = 16 (4 on Majority), n = 4; no norm, no skip, no bias; one logit for the binary tasks, ten for ListOps.

    `abscissa` is s_A, the largest initial entry of A; `fixed_A` fixes all of A at it. Every weight is initialised
    standard normal.
    """
    check_choice("selective_block", "task", task, get_args(StudyTask))
    layer = ScalarS6Config(4, abscissa, fixed_A)
    return ModelConfig(
        input=TokensConfig(vocab or VOCABULARIES[task]),
        block=ResidualConfig(layer, mixer="none", activation="none", skip=False),
        head=ClassifierConfig(10 if task == "listops" else 1, "last", bias=False, std=1.0),
        d_model=4 if task == "majority" else 16,
        layers=1,
        norm="none",
    )


def selective_training(task: StudyTask = "imdb") -> TrainConfig:
    """Experiment 2: Adam, L2 of 1e-5 on everything, rate times .9 on a plateau, gradients clipped at 5."""
    check_choice("selective_training", "task", task, get_args(StudyTask))
    epochs, batch = _LENGTHS[task]
    return TrainConfig(1e-2, 1e-5, batch, epochs, groups=False, optimiser="adam", schedule="plateau", clip=5.0)
