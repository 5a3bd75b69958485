"""Presets by name, for the command line: `robustness-s4-cifar10`, `lra-s5-ptd-image`, `lru-stack`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import get_args

from resolvent.models.config import ModelConfig
from resolvent.models.presets.generalisation import StudyTask, selective_block
from resolvent.models.presets.l2ru import l2ru_classifier, l2ru_stack, lru_classifier
from resolvent.models.presets.lra import Family, lra
from resolvent.models.presets.lra_task import Task
from resolvent.models.presets.lru_stack import lru_stack
from resolvent.models.presets.robustness import Dataset, Structure, robustness
from resolvent.usage.numbers import did_you_mean


def named_presets() -> dict[str, Callable[[], ModelConfig]]:
    """Every published model of this library; calling one gives its settings."""
    made: dict[str, Callable[[], ModelConfig]] = {}
    for structure in get_args(Structure):
        for dataset in get_args(Dataset):
            made[f"robustness-{structure}-{dataset}"] = partial(robustness, structure, dataset, activation="gelu")
    for family in get_args(Family):
        for task in get_args(Task):
            if (family, task) == ("transformer", "pathx"):  # none was published
                continue
            made[f"lra-{family.replace('_', '-')}-{task}"] = partial(lra, family, task)
    for study in get_args(StudyTask):
        made[f"selective-block-{study}"] = partial(selective_block, study)
    classifiers = {"l2ru-classifier": l2ru_classifier, "lru-classifier": lru_classifier}
    return made | classifiers | {"l2ru-stack": l2ru_stack, "lru-stack": lru_stack}


def named_preset(name: str) -> ModelConfig:
    """The model of that name; an error suggests the nearest name."""
    known = named_presets()
    if name not in known:
        raise ValueError(
            f"run: --preset names a published model such as {', '.join(list(known)[:3])} or {list(known)[-1]}; "
            f"got {name!r}{did_you_mean(name, known)} `resolvent list` shows all of them."
        )
    return known[name]()
