"""Gain parts of every layer and scaffold: constants against measured slopes, reasons where there is none."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from resolvent.blocks import (
    H3,
    MLP,
    AdS,
    BatchNorm,
    Gate,
    GatedAttention,
    GatedMLP,
    Hawk,
    LayerNorm,
    LipschitzResidual,
    Mamba,
    Mixer,
    Pointwise,
    Projection,
    Residual,
    RMSNorm,
    Sandwich,
    ScaleNorm,
    Spectral,
    Stack,
)
from resolvent.blocks.activation import activation
from resolvent.layers import DSS, EMA, L2RU, LRU, RGLRU, S4, S4D, S5, S6, Attention, ScalarS6, ShortConv
from resolvent.lowering.parts import parts_of
from resolvent.ssm.part import chained
from resolvent.ssm.system import System

F64 = torch.float64


def grid_gain(system: System) -> float:
    """The largest singular value of the response on a fine grid of frequencies."""
    s = system.block_diagonal().delayed()
    A, B, C, D = (t.to(torch.complex128) for t in (s.A.dense(), s.B, s.C, s.D))
    z = torch.exp(1j * torch.linspace(0, 2 * math.pi, 256, dtype=F64))[:, None, None]
    G = C @ torch.linalg.solve(z * torch.eye(A.shape[0]) - A, B.expand(256, *B.shape)) + D
    return float(torch.linalg.matrix_norm(G, 2).max())


def slope(module: nn.Module, x: Tensor) -> float:
    """The norm of the Jacobian of a sequence map at x (l, d)."""

    def run(u: Tensor) -> Tensor:
        y = module(u[None])
        return (y[0] if isinstance(y, tuple) else y).flatten()

    J = torch.autograd.functional.jacobian(run, x)
    return float(torch.linalg.matrix_norm(J.reshape(J.shape[0], -1), 2))


BOUNDED = {
    "L2RU": lambda: L2RU(3, 4, 0.7),
    "L2RU complete": lambda: L2RU(3, gamma=0.7, form="complete"),
    "LRU": lambda: LRU(3, 4, r_max=0.9),
    "LRU both": lambda: LRU(3, 4, r_max=0.9, bidirectional=True),
    "S5": lambda: S5(3, 4, dt_min=0.1, dt_max=0.5),
    "S5 both": lambda: S5(3, 4, dt_min=0.1, dt_max=0.5, bidirectional=True),
    "S4": lambda: S4(2, 4, dt_min=0.1, dt_max=0.5),
    "S4 both": lambda: S4(2, 4, dt_min=0.1, dt_max=0.5, bidirectional=True),
    "S4D": lambda: S4D(3, 4, dt_min=0.1, dt_max=0.5),
    "S4D both": lambda: S4D(3, 4, dt_min=0.1, dt_max=0.5, bidirectional=True),
    "DSS": lambda: DSS(3, 4, dt_min=0.1, dt_max=0.5),
    "DSS both": lambda: DSS(3, 4, dt_min=0.1, dt_max=0.5, bidirectional=True),
    "EMA": lambda: EMA(3, 4, silu=True),
    "EMA both": lambda: EMA(3, 4, bidirectional=True),
    "ShortConv": lambda: ShortConv(3, 4),
    "ShortConv both": lambda: ShortConv(3, 4, bidirectional=True),
    "residual": lambda: Residual(LRU(3, 4, r_max=0.9), mixer=Mixer(3, "linear", final="silu"), norm="batch"),
    "post-norm": lambda: Residual(LRU(3, 4, r_max=0.9), mixer=Mixer(3, "mlp"), norm="batch", prenorm=False),
    "no skip": lambda: Residual(Pointwise(3, MLP(3, 5)), norm="none", skip=False),
    "lipschitz": lambda: LipschitzResidual(L2RU(3, 4), "gate"),
    "stack": lambda: Stack([Residual(Pointwise(3, MLP(3, 5)), norm="none"), LipschitzResidual(L2RU(3, 4))]),
    "linear": lambda: nn.Sequential(nn.Linear(3, 4), nn.GELU(approximate="tanh"), Projection(4, 2)),
    "capped": lambda: nn.Sequential(Spectral(3, 4), Sandwich(4, 4), Gate(4)),
}


@pytest.mark.parametrize("name", BOUNDED)
def test_bounds_hold_and_name_their_place(name: str) -> None:
    """Measured slopes never pass the bound; for a single linear layer in one direction they come close to it."""
    torch.manual_seed(0)
    module = BOUNDED[name]().double().eval()
    parts = parts_of(module, "body")
    bound = chained(parts, grid_gain)
    assert bound is not None
    steepest = max(slope(module, scale * torch.randn(16, 3 if name[:2] != "S4" or "D" in name else 2, dtype=F64))
                   for scale in (0.1, 1.0))  # fmt: skip
    assert steepest <= bound * (1 + 1e-3)  # the grid may miss the peak by this much
    if name in ("LRU", "S4D", "DSS", "S5", "ShortConv"):
        assert steepest > 0.6 * bound
    assert all(part.name.startswith("body") for part in parts)


UNBOUNDED = {
    "S6": (lambda: S6(4, 2), "selective"),
    "ScalarS6": (lambda: ScalarS6(4, 2), "selective"),
    "RGLRU": (lambda: RGLRU(4), "selective"),
    "Mamba": (lambda: Mamba(4, 2), "selective"),
    "Hawk": (lambda: Hawk(4), "selective"),
    "Attention": (lambda: Attention(4), "attention"),
    "Mega": (lambda: GatedAttention(4, z=4, hidden=4), "attention"),
    "H3": (lambda: H3(4, 4), "gate"),
    "GatedMLP": (lambda: GatedMLP(4), "gate"),
    "AdS": (lambda: AdS(4, "tanh"), "gate"),
    "GLU": (lambda: Mixer(4, "glu"), "gate"),
    "half GLU": (lambda: Mixer(4, "half_glu2"), "gate"),
    "LayerNorm": (lambda: LayerNorm(4), "norm"),
    "RMSNorm": (lambda: RMSNorm(4), "norm"),
    "ScaleNorm": (lambda: ScaleNorm(4), "norm"),
    "BatchNorm in training": (lambda: BatchNorm(4), "norm"),
    "DSS of no length": (lambda: DSS(4, 4, kernel="softmax"), "system"),
    "unknown": (lambda: nn.Bilinear(4, 4, 4), "pointwise"),
    "inside a residual": (lambda: Residual(LRU(4, 4), mixer=Mixer(4, "glu"), norm="none"), "gate"),
}


@pytest.mark.parametrize("name", UNBOUNDED)
def test_what_has_no_constant_says_why(name: str) -> None:
    make, kind = UNBOUNDED[name]
    parts = parts_of(make(), "body")
    assert chained(parts, grid_gain) is None
    found = [part for whole in parts for part in whole.unbounded()]
    assert found[0].kind == kind
    assert len(found[0].reason) > 20


@pytest.mark.parametrize("name", ["gelu", "gelu_tanh", "silu", "relu", "sigmoid", "tanh"])
def test_activation_constants_are_the_largest_slopes(name: str) -> None:
    x = torch.linspace(-8, 8, 1_600_001, dtype=F64, requires_grad=True)
    f = activation(name)  # type: ignore[arg-type]
    (d,) = torch.autograd.grad(f(x).sum(), x)
    (part,) = parts_of(f, "act")
    assert part.lipschitz is not None
    largest = float(d.abs().max())
    assert largest <= part.lipschitz + 1e-12
    assert part.lipschitz - largest < 2e-6


def test_identities_are_no_parts() -> None:
    assert parts_of(nn.Identity(), "x") == parts_of(nn.Dropout(0.5), "x") == parts_of(activation("none"), "x") == []


def test_biases_are_told() -> None:
    kinds = [part.kind for part in parts_of(nn.Linear(3, 3), "x")]
    assert kinds == ["linear", "bias"]
    assert [part.kind for part in parts_of(nn.Linear(3, 3, bias=False), "x")] == ["linear"]
    assert "gain" in parts_of(ShortConv(3), "x")[-1].reason


def test_systems_come_in_float64_without_a_graph_also_when_frozen() -> None:
    layer = LRU(3, 4, bidirectional=True)
    with layer.frozen():
        (part,) = parts_of(layer, "x")
    for leaf in part.leaves():
        assert leaf.system is not None
        assert leaf.system.dtype == torch.complex128
        assert not leaf.system.B.requires_grad
