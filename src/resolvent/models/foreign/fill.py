"""Fill a module with foreign tensors, all of them and no others, or leave it unchanged.

An importer gives, for each parameter of ours, the foreign tensors that it is made of (`Take`); names and shapes are
compared here before anything is changed, so that a wrong or partial state dict is refused with the full list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from resolvent.models.build import build_model
from resolvent.models.config import ModelConfig
from resolvent.models.model import Model
from resolvent.usage.numbers import list_some

SHOWN = 24  # names that an error lists
HALF = (torch.float16, torch.bfloat16)
Module = TypeVar("Module", bound=nn.Module)


@dataclass(frozen=True)
class Take:
    """One parameter of ours from foreign tensors by name; `change` receives them in float64 or complex128."""

    names: tuple[str, ...]
    change: Callable[..., Tensor] = lambda tensor: tensor


def take(*names: str, change: Callable[..., Tensor] | None = None) -> Take:
    return Take(names) if change is None else Take(names, change)


class Weights:
    """The foreign tensors of one source, by name."""

    def __init__(self, source: str, tensors: dict[str, Tensor]) -> None:
        self.source, self.tensors = source, tensors
        if not tensors:
            raise ValueError(f"import_weights: expected weights of {source}, got none.")

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    def stripped(self, *prefixes: str) -> Weights:
        """Without the first of these prefixes that all names have, or that some have and the others do not need."""
        for prefix in prefixes:
            if any(name.startswith(prefix) for name in self.tensors):
                return Weights(self.source, {name.removeprefix(prefix): t for name, t in self.tensors.items()})
        return self

    def shape(self, name: str, rank: int) -> tuple[int, ...]:
        """The shape of a tensor that determines a size of the model."""
        if name not in self.tensors:
            raise ValueError(
                f"import_weights: these are no weights of {self.source}: {name!r} is missing; "
                f"got {list_some(self.described(), SHOWN) or 'nothing'}."
            )
        found = tuple(self.tensors[name].shape)
        if len(found) != rank:
            raise ValueError(f"import_weights: {self.source}: expected {name} with {rank} axes, got shape {found}.")
        return found

    def count(self, prefix: str) -> int:
        """The number of layers: names `prefix`0., `prefix`1., ...; gaps show as missing names later."""
        numbers = [name.removeprefix(prefix).split(".")[0] for name in self.tensors if name.startswith(prefix)]
        found = [int(number) for number in numbers if number.isdigit()]
        if not found:
            raise ValueError(
                f"import_weights: these are no weights of {self.source}: no name begins with {prefix + '0.'!r}; "
                f"got {list_some(self.described(), SHOWN) or 'nothing'}."
            )
        return max(found) + 1

    def described(self) -> list[str]:
        return [f"{name} {tuple(tensor.shape)}" for name, tensor in self.tensors.items()]

    @property
    def dtype(self) -> torch.dtype:
        """float64 if any tensor has it, else float32, the layers' minimum."""
        wide = any(t.dtype in (torch.float64, torch.complex128) for t in self.tensors.values())
        return torch.float64 if wide else torch.float32


def fill(module: Module, weights: Weights, table: dict[str, Take], ignored: Iterable[str] = ()) -> Module:
    """`module` in the dtype of the weights, its parameters from `table`; every foreign tensor must be used.

    `ignored` are foreign names that hold nothing trainable.
    """
    module.to(weights.dtype)
    own = {name: tensor for name, tensor in module.state_dict().items() if tensor.is_floating_point()}
    assert own.keys() == table.keys(), f"{weights.source}: {own.keys() ^ table.keys()}"
    made, wrong = {}, []
    for name, taken in table.items():
        absent = [n for n in taken.names if n not in weights]
        if absent:
            wrong += [f"{n} is missing (for {name} {tuple(own[name].shape)})" for n in absent]
            continue
        value = _make(taken, weights, own[name])
        if isinstance(value, str):
            wrong.append(f"{value}, expected for {name} {tuple(own[name].shape)}")
        else:
            made[name] = value
    used = {n for taken in table.values() for n in taken.names} | set(ignored)
    extra = [f"{n} {tuple(weights[n].shape)} is not known" for n in weights.tensors if n not in used]
    if wrong or extra:
        raise ValueError(
            f"import_weights: {weights.source}: {list_some([*wrong, *extra], SHOWN)}; nothing was imported."
        )
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(made[name])
    return module


def fill_model(config: ModelConfig, weights: Weights, table: dict[str, Take], ignored: Iterable[str] = ()) -> Model:
    """A model of these settings, filled."""
    model = build_model(config)
    assert isinstance(model, Model)
    return fill(model, weights, table, ignored)


def _make(taken: Take, weights: Weights, own: Tensor) -> Tensor | str:
    """The value, or a description of the tensors that do not fit."""
    given = [weights[name] for name in taken.names]
    message = ", ".join(f"{name} {tuple(t.shape)}" for name, t in zip(taken.names, given, strict=True))
    if not all(t.is_floating_point() or t.is_complex() for t in given):  # integers of a quantised model
        return f"{message} is of {', '.join(str(t.dtype).removeprefix('torch.') for t in given)}"
    try:
        value: Any = taken.change(*(t.to(_wide(t)) for t in given))
    except (RuntimeError, IndexError, ValueError):  # shapes that the change does not accept
        return f"{message} does not fit"
    if value.shape != own.shape:
        return f"{message} gives {tuple(value.shape)}"
    return value if bool(value.isfinite().all()) else f"{message} holds values that are not finite"


def _wide(tensor: Tensor) -> torch.dtype:
    return torch.complex128 if tensor.is_complex() else torch.float64
