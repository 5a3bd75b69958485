"""Attribution on chains whose changes are known in closed form, on foreign models, and on every robustness preset."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any, get_args

import pytest
import torch
from torch import Tensor, nn

import resolvent as rv
from resolvent.analysis import Attribution, Change, attribution, feature_kl, feature_mse
from resolvent.models import DSSConfig, ModelConfig, S4Config, S5Config, build_model, components_of, config, presets
from resolvent.models.presets.robustness import Structure

SMALL: dict[str, Any] = {
    "s4": config.ResidualConfig(S4Config(4), mixer="linear", activation="gelu"),
    "dss": config.ResidualConfig(DSSConfig(2, "softmax", separate_dt=False), mixer="linear", activation="gelu"),
    "s5": config.ResidualConfig(S5Config(4, conjugate=False), mixer="none", activation="none"),
    "mega": config.MegaConfig(z=4, hidden=8, d_state=2, ffn=8, max_length=16, bidirectional=True),
    "mamba": config.MambaConfig(3),
}
LABELS = {  # what Figure 3 has bars for, AdS apart
    "s4": {"ssm", "linear"},
    "dss": {"ssm", "linear"},
    "s5": {"ssm"},
    "mega": {"ssm", "attention", "linear"},
    "mamba": {"ssm", "linear"},
}


class Scale(nn.Module):
    """A component that multiplies differences by a known number, with a state beside its output as layers have."""

    def __init__(self, factor: float, shift: float = 0.0) -> None:
        super().__init__()
        self.factor, self.shift = factor, shift

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, None]:
        return self.factor * x + self.shift, None


class Chain(nn.Module):
    def __init__(self, *factors: float) -> None:
        super().__init__()
        self.parts = nn.ModuleList(Scale(factor, 0.7) for factor in factors)
        self.drop = nn.Dropout(0.5)
        self.modes: list[bool] = []

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        self.modes.append(self.training)
        for part in self.parts:
            x = self.drop(part(x=x, lengths=lengths)[0])
        return x.mean(1)


def pair(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(*shape, generator=generator, dtype=torch.float64)
    return x.to(dtype), (x + 0.1 * torch.randn(*shape, generator=generator, dtype=torch.float64)).to(dtype)


def small(structure: str, **changes: Any) -> nn.Module:
    torch.manual_seed(0)
    base = presets.robustness(structure, "mnist", ads=changes.pop("ads", "sigmoid"))  # type: ignore[arg-type]
    return build_model(replace(base, block=SMALL[structure], d_model=6, **changes)).double()


def values(found: Attribution) -> list[float | None]:
    return [c.percent for part in found.components for kind in (part.mse, part.kl) for c in kind.layers]


def hooks(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


# -- closed form ---------------------------------------------------------------------------------------------------


def test_a_scaling_changes_mse_by_its_square() -> None:
    """x -> a x + c: 100 (a^2 - 1) percent, layer by layer; the mean is that over layers. KL from its own function."""
    x, x_adv = pair(4, 9, 3)
    found = attribution(Chain(2.0, 0.5, 3.0), x, x_adv, {"scale": ["parts.0", "parts.1", "parts.2"]})
    assert found.samples == 4
    assert [c.where for c in found["scale"].mse.layers] == ["parts.0", "parts.1", "parts.2"]
    assert [c.percent for c in found["scale"].mse.layers] == pytest.approx([300, -75, 800], rel=1e-10)
    assert found["scale"].mse.mean == pytest.approx(1025 / 3, rel=1e-10)
    before, after = feature_kl(x, x_adv).mean(), feature_kl(2 * x, 2 * x_adv).mean()
    first = found["scale"].kl.layers[0]
    assert first.percent == pytest.approx(float(100 * (after - before) / before), rel=1e-10)
    assert (first.before, first.after) == pytest.approx((float(before), float(after)), rel=1e-10)


def test_a_span_reaches_from_an_input_to_an_output() -> None:
    x, x_adv = pair(2, 5, 2)
    found = attribution(Chain(2.0, 3.0), x, x_adv, {"both": [("parts.0", "parts.1")]})
    assert found["both"].mse.layers[0].where == "parts.0 -> parts.1"
    assert found["both"].mse.mean == pytest.approx(3500, rel=1e-10)


def test_a_predicate_chooses_in_the_order_of_the_model() -> None:
    x, x_adv = pair(2, 5, 2)
    by_rule = attribution(Chain(2.0, 3.0), x, x_adv, {"s": lambda name, module: isinstance(module, Scale)})
    assert by_rule == attribution(Chain(2.0, 3.0), x, x_adv, {"s": ["parts.0", "parts.1"]})


def test_samples_are_averaged_before_dividing() -> None:
    """Mean of squares: a sample that hardly moved has no weight of its own."""

    class Gain(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * torch.tensor([1.0, 10.0], dtype=x.dtype)[:, None, None]

    x = torch.zeros(2, 4, 1, dtype=torch.float64)
    moved = torch.tensor([2.0, 1.0], dtype=torch.float64)[:, None, None].expand(2, 4, 1)
    found = attribution(nn.Sequential(Gain()), x, moved, {"g": ["0"]})
    assert found["g"].mse.mean == pytest.approx(100 * (104 - 5) / 5, rel=1e-12)  # not the mean of 0 and 9900


def test_a_module_called_twice_is_two_layers() -> None:
    shared = Scale(2.0)

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = shared

        def forward(self, x: Tensor) -> Tensor:
            return self.part(self.part(x)[0])[0]

    x, x_adv = pair(2, 5, 2)
    found = attribution(Twice(), x, x_adv, {"s": ["part"]})
    assert [c.where for c in found["s"].mse.layers] == ["part", "part (call 2)"]
    assert found["s"].mse.layers[1].before == pytest.approx(4 * found["s"].mse.layers[0].before)


def test_what_follows_in_place_does_not_reach_back() -> None:
    model = nn.Sequential(nn.Identity(), nn.ReLU(inplace=True))
    x, x_adv = pair(2, 5, 2)
    x, x_adv = x - 0.5, x_adv - 0.5
    found = attribution(model, x.clone(), x_adv.clone(), {"same": ["0"]})
    assert found["same"].mse.mean == 0
    assert found["same"].mse.layers[0].before == pytest.approx(float(feature_mse(x, x_adv).mean()))


# -- no value, with the reason -------------------------------------------------------------------------------------


def test_identical_inputs_have_no_change_but_a_reason() -> None:
    x, _ = pair(3, 6, 2)
    found = attribution(Chain(2.0), x, x.clone(), {"s": ["parts.0"]})
    for changes in (found["s"].mse, found["s"].kl):
        assert changes.mean is None
        assert changes.counted == 0
        assert "agree before" in changes.layers[0].reason
    assert "no MSE at parts.0: clean and perturbed features agree" in str(found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_constant_shift_has_no_kl_to_change(dtype: torch.dtype) -> None:
    x = pair(3, 17, 2, dtype=dtype)[0]
    found = attribution(Chain(2.0), x, x + 0.3, {"s": ["parts.0"]})
    assert found["s"].kl.mean is None
    assert found["s"].kl.layers[0].reason
    assert found["s"].mse.mean == pytest.approx(300, rel=1e-4)


def test_a_dead_layer_stays_out_of_the_mean() -> None:
    x, x_adv = pair(3, 6, 2)
    found = attribution(Chain(2.0, 0.0, 3.0), x, x_adv, {"s": ["parts.0", "parts.1", "parts.2"]})
    assert [c.percent for c in found["s"].mse.layers] == [pytest.approx(300), pytest.approx(-100), None]
    assert found["s"].mse.mean == pytest.approx(100)
    assert found["s"].mse.counted == 2


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [(math.nan, 1, "NaN"), (1, math.inf, "NaN"), (0, 1, "agree"), (1e-9, 1, "rounding"), (5e-324, 1e300, "beyond")],
)
def test_no_change_is_ever_infinite(before: float, after: float, reason: str) -> None:
    change = Change.of("here", before, after, floor=1e-8 if before == 1e-9 else 0.0)
    assert change.percent is None
    assert reason in change.reason
    json.dumps(change.as_dict(), allow_nan=False)


def test_overflow_inside_a_model_is_told() -> None:
    x, x_adv = pair(2, 5, 2)
    found = attribution(Chain(math.inf, 1.0), x, x_adv, {"s": ["parts.0", "parts.1"]})
    assert values(found) == [None] * 4
    json.dumps(found.as_dict(), allow_nan=False)


# -- the model is left as it was found -----------------------------------------------------------------------------


def test_eval_mode_is_used_and_the_mode_restored() -> None:
    model = Chain(2.0, 3.0)
    model.parts[1].eval()
    x, x_adv = pair(3, 6, 2)
    found = attribution(model, x, x_adv, {"s": ["parts.0", "parts.1"]})
    assert model.modes == [False, False]
    assert [c.percent for c in found["s"].mse.layers] == pytest.approx([300, 800])  # no dropout in between
    assert [m.training for m in (model, model.parts[0], model.parts[1], model.drop)] == [True, True, False, True]
    assert hooks(model) == 0


def test_hooks_and_modes_after_an_exception() -> None:
    class Failing(Chain):
        def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
            super().forward(x)
            raise RuntimeError("broken on purpose")

    model = Failing(2.0)
    with pytest.raises(RuntimeError, match="on purpose"):
        attribution(model, *pair(2, 5, 2), {"s": ["parts.0"]})
    assert hooks(model) == 0
    assert model.training


def test_other_peoples_hooks_stay() -> None:
    model = small("s4")
    seen: list[str] = []
    model.get_submodule("tower.body").register_forward_hook(lambda *_: seen.append("body"))
    attribution(model, *pair(2, 8, 1), components_of(model))
    assert seen == ["body", "body"]
    assert hooks(model) == 1
    assert all(p.requires_grad for p in model.parameters())


# -- the library's own models --------------------------------------------------------------------------------------


@pytest.mark.parametrize("ads", [None, "relu", "sigmoid", "tanh"])
@pytest.mark.parametrize("structure", get_args(Structure))
def test_every_robustness_preset(structure: Structure, ads: Any) -> None:
    model = small(structure, ads=ads)
    parts = components_of(model)
    assert set(parts) == LABELS[structure] | ({"ads"} if ads else set())
    assert all(len(chosen) == 2 for chosen in parts.values())  # one in each of the two layers
    found = attribution(model, *pair(3, 12, 1), parts)
    assert {c.label for c in found.components} == set(parts)
    for value in values(found):
        assert value is not None
        assert -100 <= value < 1e6


@pytest.mark.parametrize("structure", get_args(Structure))
def test_published_sizes_name_the_same_components(structure: Structure) -> None:
    parts = components_of(build_model(presets.robustness(structure, ads="relu")))
    assert set(parts) == LABELS[structure] | {"ads"}
    assert all(len(chosen) == 4 for chosen in parts.values())


@pytest.mark.parametrize("structure", get_args(Structure))
def test_batches_add_up_to_one(structure: Structure) -> None:
    model = small(structure)
    x, x_adv = pair(5, 12, 1)
    lengths = torch.tensor([12, 3, 7, 1, 12])
    whole = attribution(model, x, x_adv, components_of(model), lengths=lengths)
    for size in (1, 2, 4):
        pieces = attribution(model, x, x_adv, components_of(model), lengths=lengths, batch_size=size)
        assert values(pieces) == pytest.approx(values(whole), rel=1e-9)


@pytest.mark.parametrize("structure", ["s4", "mega", "mamba"])
def test_padding_does_not_count(structure: Structure) -> None:
    """Whatever stands beyond the lengths; and it is as if each sequence had been cut there."""
    model = small(structure)
    x, x_adv = pair(3, 12, 1)
    lengths = torch.full((3,), 7)
    want = attribution(model, x[:, :7], x_adv[:, :7], components_of(model))
    x[:, 7:], x_adv[:, 7:] = 1e3, -1e3
    found = attribution(model, x, x_adv, components_of(model), lengths=lengths)
    assert values(found) == pytest.approx(values(want), rel=1e-9)


def test_ssm_of_mamba_is_read_beside_its_fused_gate() -> None:
    """Without AdS Mamba fuses gate and scan; watched, it must give the same answer and the scan's own output."""
    model = small("mamba", ads=None).eval()
    x, x_adv = pair(2, 8, 1)
    want: list[Tensor] = []
    found = attribution(model, x, x_adv, components_of(model), call=lambda v: want.append(model(v)))
    torch.testing.assert_close(want[0], model(x))
    assert found["ssm"].mse.counted == 2


def test_tokens_are_perturbed_after_the_embedding() -> None:
    torch.manual_seed(0)
    settings = ModelConfig(config.TokensConfig(5), SMALL["s4"], config.ClassifierConfig(2), d_model=6, layers=1)
    model = build_model(settings).double()
    e = model.embed(torch.randint(5, (3, 9))).detach()
    noisy = e + 0.1 * torch.randn_like(e)
    lengths = torch.tensor([9, 4, 6])
    found = attribution(model, e, noisy, components_of(model), lengths=lengths, call=model.from_embedding)
    assert found["ssm"].mse.mean is not None


def test_two_documents_for_each_answer() -> None:
    torch.manual_seed(0)
    settings = ModelConfig(config.ChannelsConfig(1), SMALL["s4"], config.RetrievalConfig(2), d_model=6, layers=1)
    model = build_model(settings).double()
    x, x_adv = pair(2, 2, 9, 1)
    lengths = torch.tensor([[9, 2], [5, 7]])
    want = attribution(model, x, x_adv, components_of(model), lengths=lengths)
    x[0, 1, 2:] = 50
    x_adv[1, 0, 5:] = -50
    assert values(attribution(model, x, x_adv, components_of(model), lengths=lengths)) == pytest.approx(values(want))


@pytest.mark.parametrize(
    "block", [config.H3Config(4, head_dim=2), config.HawkConfig(), config.GriffinConfig(window=4, attention_heads=1)]
)
def test_other_blocks(block: Any) -> None:
    torch.manual_seed(0)
    settings = ModelConfig(config.ChannelsConfig(1), block, config.ClassifierConfig(2), d_model=4, layers=3)
    model = build_model(settings).double()
    parts = components_of(model)
    assert set(parts) == {"ssm", "linear"} | ({"attention"} if isinstance(block, config.GriffinConfig) else set())
    x, x_adv = pair(3, 9, 1)
    lengths = torch.tensor([9, 2, 5])
    found = attribution(model, x, x_adv, parts, lengths=lengths)
    assert None not in values(found)
    single = attribution(model, x, x_adv, parts, lengths=lengths, batch_size=1)  # H3 runs four rows for each sample
    assert values(single) == pytest.approx(values(found), rel=1e-9)


# -- what comes out, and what is refused ---------------------------------------------------------------------------


def test_the_result_as_text_and_as_json() -> None:
    model = small("mega")
    found = rv.analysis.attribution(model, *pair(3, 8, 1), components_of(model))
    read = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert read["components"]["ssm"]["mse"]["mean"] == found["ssm"].mse.mean
    assert len(read["components"]["attention"]["kl"]["layers"]) == 2
    lines = str(found).splitlines()
    assert len(lines) == 2 + 4 * 3
    assert f"{found['ssm'].mse.mean:+.1f} %" in str(found)
    with pytest.raises(KeyError, match="'ssm'"):
        found["nothing"]


def test_a_foreign_model() -> None:
    """Nothing of this library: attention and a linear map of torch.nn."""
    torch.manual_seed(0)
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), 2).double()
    x, x_adv = pair(3, 7, 4)
    found = attribution(model, x, x_adv, {"block": lambda name, m: isinstance(m, nn.TransformerEncoderLayer)})
    assert len(found["block"].mse.layers) == 2
    assert None not in values(found)
    with pytest.raises(ValueError, match="no layer or block of this library"):
        components_of(model)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"x_adv": torch.zeros(2, 4, 2)}, "one shape"),
        ({"x": torch.zeros(0, 5, 2), "x_adv": torch.zeros(0, 5, 2)}, "not empty"),
        ({"components": {}}, "at least one"),
        ({"components": {"s": []}}, "matches no module"),
        ({"components": {"s": ["parts.9"]}}, "'parts.9'"),
        ({"components": {"s": "parts.0"}}, "list of module names"),
        ({"components": {"s": [("parts.0", "unused")]}}, "to be called"),
        ({"components": {"s": ["parts"]}}, "to be called"),
        ({"batch_size": 0}, "batch_size"),
        ({"lengths": torch.tensor([5])}, "2 rows"),
        ({"lengths": torch.tensor([5, 6])}, r"at parts.0: .*within 1\.\.5"),
        ({"model": lambda x: x}, "nn.Module"),
        ({"components": {"all": [""]}}, "batch, length, channels"),
    ],
)
def test_refusals(changes: dict[str, Any], match: str) -> None:
    model = Chain(2.0)
    model.add_module("unused", nn.Identity())
    x, x_adv = pair(2, 5, 2)
    arguments: dict[str, Any] = {"model": model, "x": x, "x_adv": x_adv, "components": {"s": ["parts.0"]}} | changes
    with pytest.raises((TypeError, ValueError), match=match):
        attribution(**arguments)
    assert hooks(model) == 0
