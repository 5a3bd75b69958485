"""The Long Range Arena's tasks as seen by a model: its input, and the number of classes."""

from __future__ import annotations

from typing import Literal

from resolvent.models.config import (
    ChannelsConfig,
    ClassifierConfig,
    HeadConfig,
    InputConfig,
    RetrievalConfig,
    TokensConfig,
)

Task = Literal["listops", "text", "retrieval", "image", "pathfinder", "pathx"]

LENGTHS: dict[Task, int] = {
    "listops": 2048, "text": 4096, "retrieval": 4000, "image": 1024, "pathfinder": 1024, "pathx": 16384,
}  # fmt: skip
VOCABULARIES: dict[Task, int] = {"listops": 16, "text": 135, "retrieval": 98}
"""ListOps: ten digits, four operators, closing bracket, padding. Text, retrieval: characters as S4 counts them."""


def lra_input(task: Task, vocab: int | None = None, *, channels: int = 1, std: float = 1.0) -> InputConfig:
    if task in VOCABULARIES:
        return TokensConfig(vocab or VOCABULARIES[task], std)
    if vocab is not None:
        raise ValueError(f"lra: {task!r} reads pixels and has no vocabulary, got vocab={vocab}; leave it out.")
    return ChannelsConfig(channels)


def lra_head(task: Task, hidden: int = 0) -> HeadConfig:
    if task == "retrieval":
        return RetrievalConfig(2, "mean", hidden or None)
    return ClassifierConfig(10 if task in ("listops", "image") else 2, "mean", hidden)
