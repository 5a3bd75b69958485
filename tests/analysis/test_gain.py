"""Lipschitz constants of whole models: composition, the component that breaks it, and attacks that never exceed it."""

from __future__ import annotations

import json
import math

import pytest
import torch
from torch import Tensor, nn

from resolvent.analysis.certificates.gain import SLACK, BrokenClaim, Gain, NoBound, certified_gain, hinf_gain
from resolvent.models import ModelConfig, build_model
from resolvent.models import config as c
from resolvent.ssm.part import Part
from resolvent.ssm.system import Diagonal, System


def first_order(pole: float, gain: float = 1.0) -> System:
    """y_k = pole y_{k-1} + gain u_k: the H-infinity norm is gain / (1 - |pole|)."""
    one = torch.ones(1, 1, dtype=torch.float64)
    return System(Diagonal(torch.tensor([pole], dtype=torch.float64)), gain * one, one, 0 * one, dt=1.0)


CHAIN = [
    Part("in", "linear", 2.0),
    Part("in.bias", "bias", 1.0, reason="no pure gain"),
    Part("block", "residual", parts=(Part("layer", "system", system=first_order(0.5)), Part("act", "pointwise", 1.5))),
    Part("two", "sum", parts=(Part("a", "linear", 0.25), Part("b", "series", parts=(Part("c", "linear", 3.0),)))),
]


def test_composition() -> None:
    found = certified_gain(CHAIN)
    assert found.value == pytest.approx(2.0 * (1 + 2.0 * 1.5) * (0.25 + 3.0), rel=3e-6)
    assert found.value >= 2.0 * 4.0 * 3.25
    assert found.biased == ("in.bias",)
    assert [p.value for p in found.parts[:2]] == [2.0, 1.0]
    assert found.require() == found.value
    assert "block  residual  4" in str(found)
    json.dumps(found.as_dict(), allow_nan=False)


def test_a_broken_component_is_named_with_its_reason() -> None:
    norm = Part("tower.norm", "norm", None, reason="divides by a statistic")
    found = certified_gain([*CHAIN, Part("deep", "residual", parts=(norm,))])
    assert found.value is None
    assert [p.name for p in found.broken_by] == ["tower.norm"]
    with pytest.raises(NoBound, match=r"tower.norm \(norm\): divides by a statistic"):
        found.require()
    json.dumps(found.as_dict(), allow_nan=False)


@pytest.mark.parametrize("pole", [1.0, -1.0, 1.5])
def test_an_unstable_system_has_no_bound(pole: float) -> None:
    found = certified_gain([Part("layer", "system", system=first_order(pole))])
    assert found.value is None
    assert found.broken_by[0].name == "layer"
    assert found.broken_by[0].reason


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0])
def test_constants_that_are_no_numbers(value: float) -> None:
    found = certified_gain([Part("w", "linear", value)])
    assert found.value is None
    assert "not finite" in found.explanation


def test_a_product_beyond_all_numbers_is_no_bound() -> None:
    found = certified_gain([Part("a", "linear", 1e200), Part("b", "linear", 1e200)])
    assert found.value is None
    assert "beyond the largest number" in found.explanation


def test_a_claim_that_does_not_verify_is_refused() -> None:
    """The norm is 2; a part built for 2 passes, one that was tampered with does not."""
    assert certified_gain([Part("l2ru", "system", 2.0, first_order(0.5))]).value == pytest.approx(2.0, rel=1e-5)
    with pytest.raises(BrokenClaim, match=r"l2ru was built for a gain of 1\.9"):
        certified_gain([Part("l2ru", "system", 1.9, first_order(0.5))])


def test_banks_count_with_their_largest() -> None:
    one = torch.ones(1, 1, dtype=torch.float64)
    bank = System(Diagonal(torch.tensor([[0.5], [0.9]], dtype=torch.float64)), one, one, 0 * one, dt=1.0)
    lower, upper, _ = hinf_gain(bank)
    assert lower <= 10.0 * (1 + 1e-9)
    assert 10.0 * (1 - 1e-9) <= upper <= 10.0 * (1 + 1e-5)


def test_head_is_taken_apart() -> None:
    W = torch.randn(3, 5)
    size = float(torch.linalg.matrix_norm(W.double(), 2))
    parts = [Part("in", "linear", 2.0), Part("out", "linear", size), Part("out.bias", "bias", 1.0)]
    found = certified_gain(parts, head=W)
    assert found.features == pytest.approx(2.0, rel=2 * SLACK)
    assert found.value == pytest.approx(2.0 * size, rel=2 * SLACK)
    with pytest.raises(ValueError, match="weight of the last linear map"):
        certified_gain(parts, head=2 * W)
    with pytest.raises(ValueError, match="weight of the last linear map"):
        certified_gain([Part("in", "linear", size), Part("act", "pointwise", 1.0)], head=W)


def test_what_is_no_list_of_parts() -> None:
    for wrong in ([], [nn.Linear(2, 2)], nn.Linear(2, 2)):
        with pytest.raises(TypeError, match="gain_parts"):
            certified_gain(wrong)


# -- models ------------------------------------------------------------------------------------------------------------


def small(block: object, norm: str = "none", **change: object) -> ModelConfig:
    settings = {"d_model": 4, "layers": 2, "norm": norm, "input": c.ChannelsConfig(2), "head": c.ClassifierConfig(3)}
    return ModelConfig(block=block, **{**settings, **change})


def models() -> dict[str, nn.Module]:
    from resolvent.models import layer_config as lc

    made = {
        name: build_model(small(c.ResidualConfig(layer=layer, mixer="linear")))
        for name, layer in {"LRU": lc.LRUConfig(d_state=6), "S4D": lc.S4DConfig(d_state=4)}.items()
    }
    certified = small(c.LipschitzConfig(), certified=c.CertifiedConfig(gain=2.5, memory=8))
    return made | {"L2RU": build_model(certified)}


def climb(f: nn.Module, x: Tensor, steps: int = 30) -> float:
    """A gradient search for the largest ||f(x + d) - f(x)|| / ||d||, in float64."""
    d = 0.1 * torch.randn_like(x)
    best = 0.0
    for _ in range(steps):
        d.requires_grad_()
        ratio = (f(x + d) - f(x)).flatten(1).norm(dim=1) / d.flatten(1).norm(dim=1)
        best = max(best, float(ratio.detach().max()))
        (grad,) = torch.autograd.grad(ratio.sum(), d)
        size = d.detach().flatten(1).norm(dim=1)[:, None, None]
        d = (d + 0.3 * size * grad / grad.flatten(1).norm(dim=1)[:, None, None].clamp_min(1e-12)).detach()
    return best


@pytest.mark.parametrize("name", ["LRU", "S4D", "L2RU"])
def test_no_search_exceeds_the_bound(name: str) -> None:
    model = models()[name].double().eval()
    bound = certified_gain(model.gain_parts(7)).require()
    found = climb(model, torch.randn(6, 7, 2, dtype=torch.float64))
    assert found <= bound
    assert found > 1e-3 * bound  # the search does climb
    if name == "L2RU":
        assert bound <= 2.5 * (1 + 1e-5)  # prescribed


def test_bound_holds_after_absurd_training_steps() -> None:
    model = models()["L2RU"].double()
    x, y = torch.randn(8, 7, 2, dtype=torch.float64), torch.randint(3, (8,))
    optimiser = torch.optim.Adam(model.parameters(), lr=1.0)
    for _ in range(5):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimiser.step()
    bound = certified_gain(model.gain_parts(7)).require()
    assert bound <= 2.5 * (1 + 1e-5)
    assert climb(model, x, 8) <= bound


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        (small(c.ResidualConfig(), norm="layer"), "norm"),
        (small(c.MambaConfig()), "selective"),
    ],
    ids=["LayerNorm", "Mamba"],
)
def test_models_without_a_bound_say_why(config: ModelConfig, kind: str) -> None:
    found = certified_gain(build_model(config).gain_parts(9))
    assert isinstance(found, Gain)
    assert found.value is None
    assert kind in {p.kind for p in found.broken_by}
    assert all(p.reason and p.name for p in found.broken_by)
