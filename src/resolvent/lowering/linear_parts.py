"""Parts of linear maps and of time-invariant layers, in one direction or both."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from resolvent.lowering import program as p
from resolvent.ssm.contraction import spectral_norm
from resolvent.ssm.part import Part
from resolvent.ssm.rounding import of_bias, of_function, of_linear
from resolvent.ssm.system import Dense, Diagonal, System

NO_GAIN = "a bias maps zero elsewhere: Lipschitz as before, but no pure gain"
SILU_SLOPE = 1.09984  # sup |silu'| = 1.099839..., at 2.399357
UNDECLARED = 'DSS with kernel="softmax" is another system for every length; build it with length=... to bound it'


def linear_parts(name: str, weight: Tensor, bias: Tensor | None) -> list[Part]:
    """W x + b: the spectral norm of W, and the bias as a separate part."""
    own = Part(name, "linear", spectral_norm(weight), rounding=of_linear(weight))
    return [own] if bias is None else [own, bias_part(f"{name}.bias", bias)]


def bias_part(name: str, bias: Tensor, terms: Tensor | None = None) -> Part:
    """b (d,) at every step; `terms` (d,) are the sizes from which it was computed, if it was."""
    return Part(name, "bias", 1.0, reason=NO_GAIN, rounding=of_bias(bias, terms))


def system_parts(node: p.Filter | p.Recurrence) -> list[Part]:
    """A time-invariant layer: its system, or the sum of its two directions; operations inside after it; its bias."""
    layer, name = node.module, node.name
    if node.kind == "dss" and layer.kernel == "softmax" and layer.length is None:
        return [Part(name, "system", None, reason=UNDECLARED)]
    if node.kind == "normalised_lru":
        return [Part(name, "system", layer.gain(), widen(layer.system()))]
    parts = [_both_ways(node) if layer.bidirectional else _one_way(node.kind, layer, name)]
    if isinstance(node, p.Filter) and node.silu:
        parts.append(Part(f"{name}.silu", "pointwise", SILU_SLOPE, rounding=of_function(SILU_SLOPE)))
    if node.kind == "shortconv" and layer.bias is not None:
        parts.append(bias_part(f"{name}.bias", layer.bias))
    return parts


def _one_way(kind: str, layer: Any, name: str) -> Part:
    known = layer.gain() if kind == "l2ru" else None  # by construction; the rest is computed from the system
    return Part(name, "system", known, widen(layer.system()))


def _both_ways(node: p.Filter | p.Recurrence) -> Part:
    """Time reversal preserves L2 norms, so each direction counts as a causal system."""
    name, (forward, back) = node.name, _directions(node.kind, node.module)
    own = _one_way(node.kind, forward, f"{name}.forward")
    return Part(name, "sum", parts=(own, Part(f"{name}.back", "system", None, back)))


def _directions(kind: str, layer: Any) -> tuple[Any, System]:
    """The forward layer, and the system of its backward direction (S4, S4D and DSS exclude the current input there)."""
    if kind == "ema":
        names = ("alpha", "damping", "beta", "eta")
        forward = _swap_tensors(layer, {name: getattr(layer, name)[:1] for name in names})
        other = {name: getattr(layer, name)[1:] for name in names}
        return forward, widen(_swap_tensors(layer, {**other, "omega": torch.zeros_like(layer.omega)}).system())
    forward = _swap_tensors(layer, {})
    if kind == "shortconv":
        return forward, widen(_swap_tensors(layer, {"weight": layer.weight_back}).system())
    read, back = ("W", layer.W_back) if kind == "dss" else ("C", layer.C_back)
    system = _swap_tensors(layer, {read: back, "D": layer.anchor.new_zeros(layer.d_model)}).system()
    return forward, widen(dataclasses.replace(system, delay=kind in ("s4", "s4d", "dss")))


def _swap_tensors(layer: Any, tensors: dict[str, Any]) -> Any:
    """A shallow copy with one direction and these tensors in place of its own (`copy` refuses a frozen layer)."""
    single = object.__new__(type(layer))
    single.__dict__.update(layer.__dict__)
    single._tables, single._specs = None, {}
    single._parameters = dict(layer._parameters)
    for name, tensor in tensors.items():
        single._parameters[name] = torch.nn.Parameter(tensor.detach(), requires_grad=False)
    single.bidirectional = False
    return single


def widen(system: System) -> System:
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
