"""Pointwise functions by name."""

from __future__ import annotations

from typing import Literal

from torch import nn

from resolvent.usage.numbers import check_choice

Activation = Literal["none", "gelu", "gelu_tanh", "silu", "relu", "sigmoid", "tanh"]
"""gelu is the exact erf form (S4, S4D, DSS, H3); gelu_tanh the tanh form (S5, LRU, Hawk)."""


def activation(name: Activation) -> nn.Module:
    table: dict[str, nn.Module] = {
        "none": nn.Identity(),
        "gelu": nn.GELU(),
        "gelu_tanh": nn.GELU(approximate="tanh"),
        "silu": nn.SiLU(),
        "relu": nn.ReLU(),
        "sigmoid": nn.Sigmoid(),
        "tanh": nn.Tanh(),
    }
    check_choice("activation", "name", name, table)
    return table[name]
