"""The forms that are exported, run as they are: equal to the model, whole and step by step, for every layer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from helpers import assert_close, stir, stirred
from resolvent.data.preparation.preprocess import Preprocess
from resolvent.deployment.flow import Flow
from resolvent.deployment.forms import Pairs, Step, Whole
from resolvent.deployment.prepared import Prepared
from resolvent.lowering.describe import describe
from resolvent.models import build_model
from resolvent.models import config as c
from resolvent.models import layer_config as lc
from resolvent.usage.error import UsageError

SMALL = c.ModelConfig(c.ChannelsConfig(2), head=c.ClassifierConfig(3), d_model=4, layers=2)
LAYERS: dict[str, Any] = {
    "s4": lc.S4Config(4), "s4 zoh": lc.S4Config(4, discretisation="zoh"), "s4d": lc.S4DConfig(4),
    "s4d real": lc.S4DConfig(3, "real", skip=False), "dss": lc.DSSConfig(4),
    "dss softmax": lc.DSSConfig(4, "softmax", length=11), "open dss": lc.DSSConfig(4, "softmax"), "s5": lc.S5Config(4),
    "s5 all": lc.S5Config(4, conjugate=False), "lru": lc.LRUConfig(4),
    "l2ru": lc.L2RUConfig(4), "l2ru dense": lc.L2RUConfig(3, form="dense"),
    "ema": lc.EMAConfig(3), "s6": lc.S6Config(3), "scalar s6": lc.ScalarS6Config(3), "rglru": lc.RGLRUConfig(2),
    "shortconv": lc.ShortConvConfig(), "shortconv 1": lc.ShortConvConfig(1), "gru": lc.GRUConfig(3),
}  # fmt: skip
BOTH: dict[str, Any] = {
    f"{name} both ways": replace(LAYERS[name], bidirectional=True)
    for name in ("s4", "s4d", "dss", "open dss", "s5", "lru", "ema", "s6", "scalar s6", "rglru", "shortconv")
}
CONFIGS: dict[str, c.ModelConfig] = {
    **{name: replace(SMALL, block=c.ResidualConfig(layer)) for name, layer in (LAYERS | BOTH).items()},
    "mamba": replace(SMALL, block=c.MambaConfig(3, bias=True)),
    "mamba ads": replace(SMALL, block=c.MambaConfig(3), ads=c.AdSConfig("sigmoid", True)),
    "hawk": replace(SMALL, block=c.HawkConfig(6, 2)),
    "griffin": replace(SMALL, block=c.GriffinConfig(attention_heads=1, window=4), layers=3),
    "h3": replace(SMALL, block=c.H3Config(6), ads=c.AdSConfig("relu", True)),
    "h3 heads": replace(SMALL, block=c.H3Config(4, head_dim=2)),
    **{f"h3 {name}": replace(SMALL, block=c.H3Config(4, head_dim=2, layer=LAYERS[name]))
       for name in ("s4", "s5", "lru")},
    "attention": replace(SMALL, block=c.AttentionConfig(2)),
    "mega": replace(SMALL, block=c.MegaConfig(3, 5, 6, 3)),
    "mega chunked": replace(SMALL, block=c.MegaConfig(3, 5, 6, 3, "laplace", 4), prenorm=False),
    "mega both ways": replace(SMALL, block=c.MegaConfig(3, 5, 6, 3, bidirectional=True)),
    "mega unmasked": replace(SMALL, block=c.MegaConfig(3, 5, 6, 3, unmasked=True)),
    "attention both ways": replace(SMALL, block=c.AttentionConfig(2, bidirectional=True)),
    **{f"norm {norm}": replace(SMALL, norm=norm, final_norm=True, prenorm=False)
       for norm in ("layer", "batch", "rms", "scale")},
    **{f"pool {kind}": replace(SMALL, head=c.RegressionConfig(2, kind)) for kind in ("last", "max", "none")},
    "language": replace(SMALL, input=c.TokensConfig(7, scale=2.0), head=c.LanguageConfig(soft_cap=5.0)),
    "certified": replace(SMALL, norm="none", block=c.LipschitzConfig(lc.NormalisedLRUConfig(3), "gate"),
                         head=c.ClassifierConfig(3, "mean", 5), certified=c.CertifiedConfig(2.0)),
    "pool state": replace(SMALL, norm="none", block=c.LipschitzConfig(lc.L2RUConfig(3, 0.5), "sandwich"),
                          head=c.ClassifierConfig(3, "state", 5), certified=c.CertifiedConfig(2.0, memory=4)),
}  # fmt: skip


def made(name: str) -> Any:
    return stirred(CONFIGS[name], 0.1).eval()


def given(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = isinstance(CONFIGS[name].input, c.TokensConfig)
    x = torch.randint(0, 7, (3, 11)) if tokens else torch.randn(3, 11, 2, dtype=torch.float64)
    return x, torch.tensor([11, 1, 6])


@pytest.mark.parametrize("name", CONFIGS)
def test_the_sequence_form_is_the_model(name: str) -> None:
    model, (x, lengths) = made(name), given(name)
    with torch.no_grad():
        form = Whole(describe(model).chain[0], None)
        assert_close(form(x, lengths), model(x, lengths))
        assert_close(form(x[:1, :1], torch.tensor([1])), model(x[:1, :1]))
        want, narrow = model(x, lengths), Whole(describe(model.float()).chain[0], None)
        found = narrow(x.float() if x.is_floating_point() else x, lengths)
        assert found.dtype == torch.float32
        assert float((found - want).abs().max()) < 1e-4 * float(want.abs().max())


@pytest.mark.parametrize("entry", [c.TokensConfig(7), c.ChannelsConfig(2)], ids=["tokens", "channels"])
@pytest.mark.parametrize("block", [c.ResidualConfig(lc.S4DConfig(4, bidirectional=True)), c.H3Config(4, head_dim=2)])
def test_the_form_of_pairs_is_the_model(entry: Any, block: Any) -> None:
    torch.manual_seed(0)
    model = build_model(replace(SMALL, input=entry, block=block, head=c.RetrievalConfig(3))).double().eval()
    stir(model, 0.1)
    tokens = isinstance(entry, c.TokensConfig)
    x = torch.randint(0, 7, (3, 2, 11)) if tokens else torch.randn(3, 2, 11, 2, dtype=torch.float64)
    lengths = torch.tensor([[11, 1], [4, 9], [7, 7]])
    network = describe(model).chain[0]
    with torch.no_grad():
        form = Pairs(network)
        assert_close(form(x, lengths), model(x, lengths))
        assert_close(form(x[:1, :, :1], torch.tensor([[1, 1]])), model(x[:1, :, :1]))
    with pytest.raises(UsageError, match="two documents have no step form"):
        Step(network, None, 4)


STREAMS = [n for n in CONFIGS if "both ways" not in n and n.split()[0] not in ("attention", "mega", "open")]


@pytest.mark.parametrize("name", STREAMS)
def test_the_step_form_is_the_model_so_far(name: str) -> None:
    model, (x, _) = made(name), given(name)
    with torch.no_grad():
        form = Step(describe(model).chain[0], None, 4)
        state = [torch.zeros(3, *shape, dtype=torch.float64) for shape in form.shapes]
        for t in range(x.shape[1]):
            y, *state = form(x[:, t], *state)
            want = model(x[:, : t + 1])
            assert_close(y, want[:, -1] if want.dim() == 3 else want)


@pytest.mark.parametrize("name", ["s4d both ways", "attention", "mega", "open dss"])
def test_no_step_form_where_there_is_no_stream(name: str) -> None:
    with pytest.raises(UsageError, match="no step form"):
        Step(describe(made(name)).chain[0], None, 4)


@pytest.mark.parametrize("change", ["hook", "subclass"])
def test_what_we_did_not_build_is_refused(change: str) -> None:
    model = made("s4d")
    if change == "hook":
        model.tower.body.blocks[0].layer.register_forward_hook(lambda *a: None)
    else:
        model.head.out = torch.nn.Bilinear(4, 4, 3)
    with pytest.raises(UsageError, match="export"):
        Whole(describe(model).chain[0], None)


@pytest.mark.parametrize("missing", ["zero", "mean", "ffill", "flag"])
@pytest.mark.parametrize("scale", ["none", "standard"])
def test_preprocessing_is_that_of_training(missing: Any, scale: Any) -> None:
    flagged = (1,) if missing == "flag" else ()
    how = Preprocess(
        inputs=2, classes=3, missing=missing, flagged=flagged, scale=scale, centre=(3.0, -1.0), width=(2.0, 0.5),
        fill=(0.3, -0.2), low=(-1.0, 0.5, *(0.0 for _ in flagged)), high=(1.0, 2.0, *(1.0 for _ in flagged)),
    )  # fmt: skip
    x = torch.randn(4, 9, 2) + 2
    x[torch.rand(x.shape) < 0.4] = torch.nan
    x[0, :3] = torch.nan
    lengths = torch.tensor([9, 5, 1, 7])
    form = Prepared(how, torch.float32)
    assert_close(form(x, Flow(lengths=lengths)), how(x, lengths))
    state, last = [torch.zeros(4, *shape) for shape in form.shapes], None
    for t in range(9):
        flow = Flow(state=state)
        got = form(x[:, t], flow)
        want, last = how.step(x[:, t], last)
        assert_close(got, want)
        state = flow.end


def test_a_gap_that_training_refused_stays_a_gap() -> None:
    how = Preprocess(inputs=1, centre=(0.0,), width=(1.0,), fill=(0.0,), low=(0.0,), high=(0.0,), classes=2)
    x = torch.tensor([[[1.0], [torch.nan]]])
    assert torch.isnan(Prepared(how, torch.float32)(x, Flow(lengths=torch.tensor([2])))[0, 1]).all()
