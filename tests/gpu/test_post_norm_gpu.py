"""Post-norm blocks of passes that learn nothing, by their own kernels, against float64 modules."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from resolvent.models import build_model
from resolvent.models.config import AdSConfig, ModelConfig, ResidualConfig
from resolvent.models.layer_config import S4DConfig, S5Config
from resolvent.models.presets import robustness

pytest.importorskip("triton", reason="needs triton, which comes with a CUDA build of torch")
from resolvent.ops.pointwise import post_norm_triton

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9,
    reason="needs a CUDA device with warp groups",
)
BF16 = 2e-2


def config(kind: str) -> ModelConfig:
    act: Any = "gelu" if kind == "gelu" else "none"
    block = ResidualConfig(S4DConfig(16), "linear", act, final_activation=act)
    if kind == "s5":
        block = ResidualConfig(S5Config(64), "none", "none")
    ads = AdSConfig("sigmoid", False) if kind == "ads" else None
    return replace(robustness("s4"), d_model=64, layers=2, block=block, ads=ads)


def distance(got: Tensor, want: Tensor) -> float:
    return float((got.double() - want.double()).norm() / want.double().norm())


@pytest.mark.parametrize("shift", [0.0, 3.0])
@pytest.mark.parametrize(("b", "l"), [(96, 256), (104, 130)])
@pytest.mark.parametrize("kind", ["none", "gelu", "ads", "s5"])
def test_input_gradients(kind: str, b: int, l: int, shift: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a norm's beta exceeds its gamma, and unit is written."""
    model = build_model(config(kind)).cuda()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "norm" in name and name.endswith("bias"):
                p.add_(shift * torch.randn_like(p))
    for p in model.parameters():
        p.requires_grad_(False)
    ran = []
    own = post_norm_triton.backward
    monkeypatch.setattr(post_norm_triton, "backward", lambda *args: ran.append(args[2].kind) or own(*args))
    x = torch.rand(b, l, 3, device="cuda")
    found = []
    for wide in (False, True):
        made = copy.deepcopy(model).double() if wide else model
        at = (x.double() if wide else x).requires_grad_()
        with torch.autocast("cuda", torch.bfloat16, enabled=not wide):
            logits = made(at)
        found.append([logits.detach(), *torch.autograd.grad(logits.double().square().sum(), at)])
    assert ran
    for got, want in zip(*found, strict=True):
        assert distance(got, want) <= BF16
