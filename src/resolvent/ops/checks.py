"""Checks of an operation's tensors."""

from __future__ import annotations

from torch import Tensor


def check_real(op: str, name: str, tensor: object, like: tuple[str, Tensor], optional: bool = False) -> None:
    """Require a real floating tensor on the device of `like` (name, tensor); None is allowed if `optional`."""
    if tensor is None and optional:
        return
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{op}: expected a tensor for {name}, got {type(tensor).__name__}; convert it first.")
    if not tensor.is_floating_point():
        raise TypeError(f"{op}: expected a real floating {name}, got {tensor.dtype}; convert it first.")
    if tensor.device != like[1].device:
        whose, device = like[0], like[1].device
        raise ValueError(f"{op}: expected {name} on {device} like {whose}, got {tensor.device}; move it there.")
