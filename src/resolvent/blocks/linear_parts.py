"""Parts of linear maps and of time-invariant layers, in one direction or both."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from resolvent.layers.contract import Layer
from resolvent.layers.dss import DSS
from resolvent.layers.ema import EMA
from resolvent.layers.l2ru import L2RU
from resolvent.layers.lru import LRU
from resolvent.layers.s4 import S4
from resolvent.layers.s4d import S4D
from resolvent.layers.s5 import S5
from resolvent.layers.shortconv import ShortConv
from resolvent.ssm.contraction import spectral_norm
from resolvent.ssm.part import Part
from resolvent.ssm.system import Dense, Diagonal, System

NO_GAIN = "a bias maps zero elsewhere: Lipschitz as before, but no pure gain"
SILU_SLOPE = 1.09984  # sup |silu'| = 1.099839..., at 2.399357
UNDECLARED = 'DSS with kernel="softmax" is another system for every length; build it with length=... to bound it'


def linear_parts(name: str, weight: Tensor, bias: Tensor | None) -> list[Part]:
    """W x + b: the spectral norm of W, and the bias as a part of its own."""
    own = Part(name, "linear", spectral_norm(weight))
    return [own] if bias is None else [own, Part(f"{name}.bias", "bias", 1.0, reason=NO_GAIN)]


def system_parts(layer: Layer, name: str) -> list[Part]:
    """A time-invariant layer: its system, or the sum of its two directions; what follows it inside; its bias."""
    if isinstance(layer, DSS) and layer.kernel == "softmax" and layer.length is None:
        return [Part(name, "system", None, reason=UNDECLARED)]
    if not isinstance(layer, L2RU | LRU | S5 | S4 | S4D | DSS | EMA | ShortConv):
        return [Part(name, "pointwise", None, reason=f"{type(layer).__name__} has no known Lipschitz constant")]
    parts = [_both_ways(layer, name) if layer.bidirectional else _one_way(layer, name)]
    if isinstance(layer, EMA) and layer.silu:
        parts.append(Part(f"{name}.silu", "pointwise", SILU_SLOPE))
    if isinstance(layer, ShortConv) and layer.bias is not None:
        parts.append(Part(f"{name}.bias", "bias", 1.0, reason=NO_GAIN))
    return parts


def _one_way(layer: Any, name: str) -> Part:
    known = layer.gain() if isinstance(layer, L2RU) else None  # by construction; the rest is computed from the system
    return Part(name, "system", known, widened(layer.system()))


def _both_ways(layer: Any, name: str) -> Part:
    """Turning time around changes no L2 norm, so each direction counts as the causal system that it is."""
    forward, back = _directions(layer)
    return Part(name, "sum", parts=(_one_way(forward, f"{name}.forward"), Part(f"{name}.back", "system", None, back)))


def _directions(layer: Any) -> tuple[Any, System]:
    """The layer read forwards, and the system of its other direction (S4, S4D and DSS leave out the present there)."""
    if isinstance(layer, EMA):
        names = ("alpha", "damping", "beta", "eta")
        forward = _swapped(layer, {name: getattr(layer, name)[:1] for name in names})
        other = {name: getattr(layer, name)[1:] for name in names}
        return forward, widened(_swapped(layer, {**other, "omega": torch.zeros_like(layer.omega)}).system())
    forward = _swapped(layer, {})
    if isinstance(layer, ShortConv):
        return forward, widened(_swapped(layer, {"weight": layer.weight_back}).system())
    read, back = ("W", layer.W_back) if isinstance(layer, DSS) else ("C", layer.C_back)
    system = _swapped(layer, {read: back, "D": layer.anchor.new_zeros(layer.d_model)}).system()
    return forward, widened(dataclasses.replace(system, delay=isinstance(layer, S4 | S4D | DSS)))


def _swapped(layer: Any, tensors: dict[str, Any]) -> Any:
    """A shallow twin with one direction and these tensors in place of its own (`copy` refuses a frozen layer)."""
    twin = object.__new__(type(layer))
    twin.__dict__.update(layer.__dict__)
    twin._tables, twin._specs = None, {}
    twin._parameters = dict(layer._parameters)
    for name, tensor in tensors.items():
        twin._parameters[name] = torch.nn.Parameter(tensor.detach(), requires_grad=False)
    twin.bidirectional = False
    return twin


def widened(system: System) -> System:
    """The same numbers in float64, without a graph."""
    dtype = torch.complex128 if system.dtype.is_complex else torch.float64
    A = system.A
    detached: Any
    if isinstance(A, Diagonal):
        detached = Diagonal(A.lam.detach().to(dtype))
    elif isinstance(A, Dense):
        detached = Dense(A.matrix.detach().to(dtype))
    else:
        detached = dataclasses.replace(A, lam=A.lam.detach(), P=A.P.detach(), Q=A.Q.detach()).to(dtype)
    dt = system.dt.detach() if isinstance(system.dt, Tensor) else system.dt
    B, C, D = (t.detach().to(dtype) for t in (system.B, system.C, system.D))
    return dataclasses.replace(system, A=detached, B=B, C=C, D=D, dt=dt)
