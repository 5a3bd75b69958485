"""A non-finite loss: the run stops, and the layer in which it first appeared is named."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


class Diverged(RuntimeError):
    """Training produced a loss or gradient that is not finite. The model has the weights from before that step.

    Examples:
        >>> issubclass(rv.training.Diverged, Exception)
        True
    """


def first_non_finite(model: nn.Module, run: Callable[[], Any]) -> str | None:
    """Call `run` with hooks on every module; describes the first to return NaN or infinity, None if none did."""
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if not _finite(tensor):
            return f"the weight {name} is already not finite"
    found: list[str] = []
    with _watch(model, found):
        run()
    return found[0] if found else None


def non_finite_gradient(model: nn.Module) -> str | None:
    """The first parameter whose gradient is not finite, nearest to the input."""
    for name, parameter in model.named_parameters():
        if parameter.grad is not None and not _finite(parameter.grad):
            return f"the gradient of {name} is not finite although every output is"
    return None


@contextmanager
def _watch(model: nn.Module, found: list[str]) -> Iterator[None]:
    """A module's hook runs before its parent's, so the first entry is the innermost module."""

    def hook(name: str) -> Callable[..., None]:
        def look(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            if not _finite(output):
                came = "from finite inputs" if _finite(inputs) else "from inputs that were not finite"
                found.append(f"it first appeared in {name or 'the model'} ({type(module).__name__}), {came}")

        return look

    handles = [module.register_forward_hook(hook(name)) for name, module in model.named_modules()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _finite(value: Any) -> bool:
    if isinstance(value, Tensor):
        return not (value.is_floating_point() or value.is_complex()) or bool(torch.isfinite(value).all())
    if isinstance(value, dict):
        return all(_finite(item) for item in value.values())
    if isinstance(value, tuple | list):
        return all(_finite(item) for item in value)
    return True
