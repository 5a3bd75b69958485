"""On a GPU: tables by one kernel, states between blocks, recorded streaming steps, compiled stacks, foreign GRUs."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from helpers import assert_close
from resolvent.attacks import Threat, pgd
from resolvent.layers import DSS, EMA, LRU, RGLRU, S4, S4D, S5, S6, dss, ema, s4d
from resolvent.models import build_model
from resolvent.models.presets import robustness
from resolvent.ops.blocked import carry, chain
from resolvent.ops.step import recorded
from resolvent.runtime.dispatch import available

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
DIAGONAL = [
    S4D(6, 8),
    S4D(6, 8, bidirectional=True),
    DSS(6, 8),
    DSS(6, 5, separate_dt=False),
    EMA(6, 4, bidirectional=True),
]
named = pytest.mark.parametrize("layer", DIAGONAL, ids=lambda layer: type(layer).__name__)


def test_the_kernels_are_chosen() -> None:
    here = torch.device("cuda"), torch.float32
    for modes in (s4d.MODES, dss.MODES, ema.MODES):
        assert available(f"{modes.kind.value}_tables", modes._candidates, *here)[0] == "triton"
    assert available("carry", carry._FORWARD, *here)[0] == "triton"
    assert available("carry_backward", carry._BACKWARD, *here)[0] == "triton"
    assert available("chain", chain._CHAIN, *here)[0] == "triton"


@named
@pytest.mark.parametrize("length", [64, 129, 1024])
def test_every_gradient_is_that_of_float64(layer: Any, length: int) -> None:
    x, lengths = torch.randn(3, length, 6, dtype=torch.float64), torch.tensor([length, length // 2, 1])
    found = []
    for own, at in ((copy.deepcopy(layer).double(), x), (copy.deepcopy(layer).cuda(), x.float().cuda())):
        at = at.clone().requires_grad_()
        y = own(at, None, lengths.to(at.device))[0]
        found.append([y, *torch.autograd.grad(y.square().sum(), [at, *own.parameters()], allow_unused=True)])
    for want, got in zip(*found, strict=True):
        assert_close(got.cpu().double(), want, tolerance=1e-3)


@named
def test_gradients_of_gradients(layer: Any) -> None:
    x = torch.randn(2, 130, 6, dtype=torch.float64)
    found = []
    for own, at in ((copy.deepcopy(layer).double(), x), (copy.deepcopy(layer).cuda(), x.float().cuda())):
        parameters = list(own.parameters())
        at = at.clone().requires_grad_()
        first = torch.autograd.grad(own(at)[0].square().sum(), at, create_graph=True)[0]
        found.append(torch.autograd.grad(first.square().sum(), parameters, allow_unused=True))
    for want, got in zip(*found, strict=True):
        if want is not None:
            assert got is not None
            assert_close(got.cpu().double(), want, tolerance=1e-2)


@pytest.mark.parametrize(
    "layer", [S4D(6, 8), S4(6, 4), DSS(6, 4), EMA(6, 4), S5(6, 8), LRU(6, 4), S6(6, 4), RGLRU(6)],
    ids=lambda layer: type(layer).__name__,
)  # fmt: skip
def test_a_recorded_step_is_the_step(layer: Any) -> None:
    layer = copy.deepcopy(layer).cuda()
    x = torch.randn(2, 9, 6, device="cuda")
    want, _ = layer(x)
    with torch.no_grad(), layer.frozen():
        state, ys = layer.initial_state(2), []
        for x_t in x.unbind(1):
            y_t, state = layer.step(x_t, state)
            ys.append(y_t)
        made = [r for r in layer.frozen_tables[recorded.KEY].values() if isinstance(r, recorded.Recording)]
    assert len(made) == 1
    assert_close(torch.stack(ys, 1), want, tolerance=1e-4)


def test_a_model_streams_as_one_recording() -> None:
    model = build_model(replace(robustness("s4", "mnist"), layers=2, d_model=16)).eval().cuda()
    x = torch.rand(1, 6, 1, device="cuda")
    with torch.no_grad(), model.frozen():
        state = model.initial_state(1)
        for x_t in x.unbind(1):
            y, state = model.step(x_t, state)
        made = model.tower.body.frozen_tables[recorded.KEY].values()
        assert any(isinstance(r, recorded.Recording) for r in made)
        assert_close(y, model(x), tolerance=1e-3)


@pytest.mark.parametrize("kind", [S4D, EMA])
def test_a_compiled_layer_trains_under_autocast(kind: Any) -> None:
    torch.manual_seed(0)
    layer = kind(16).cuda()
    x = torch.randn(2, 200, 16, device="cuda", requires_grad=True)
    found = []
    for run in (layer, torch.compile(layer, fullgraph=True)):
        with torch.autocast("cuda", torch.bfloat16):
            y = run(x)[0]
        found.append(torch.autograd.grad(y.float().square().sum(), [x, *layer.parameters()]))
    for want, got in zip(*found, strict=True):
        assert_close(got, want, tolerance=2e-2)  # uncompiled, products follow autocast


def test_a_foreign_gru_in_evaluation_mode_is_attacked() -> None:
    class Foreign(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gru, self.out = nn.GRU(2, 8, batch_first=True), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.gru(x)[0][:, -1])

    model = Foreign().cuda().eval()
    x = torch.rand(4, 12, 2, device="cuda")
    for f in (model, lambda x: model(x)):
        assert pgd(f, x, model(x).argmax(-1), Threat("linf", 0.1, (0, 1))).x_adv.shape == x.shape
    assert torch.backends.cudnn.enabled
