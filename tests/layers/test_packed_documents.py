"""Documents packed in a row: each layer and model reads every one of them as if it were alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import resolvent as rv
from helpers import assert_close
from resolvent import layers
from resolvent.conformance.cases import CASES
from resolvent.models import S4DConfig
from resolvent.models import config as c

LENGTHS = ([4, 1, 6], [11], [2, 9])
START = torch.stack([rv.packed_starts(lengths) for lengths in LENGTHS])


def alone(call: Any, x: torch.Tensor) -> list[torch.Tensor]:
    """Each document by itself, row after row."""
    return [call(part) for row, lengths in zip(x, LENGTHS, strict=True) for part in row.split(lengths)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.layer} {case.label}")
def test_a_layer_reads_each_document_as_if_alone(case: Any) -> None:
    torch.manual_seed(0)
    layer = getattr(layers, case.layer)(**case.settings).double().eval()
    x = torch.randn(3, 11, layer.d_model, dtype=torch.float64, requires_grad=True)
    y, state = layer(x, start=START)
    parts = alone(lambda part: layer(part[None])[0][0], x)
    want = torch.cat(parts).view_as(y)
    assert_close(y, want)
    assert_close(torch.autograd.grad(y.square().sum(), x)[0], torch.autograd.grad(want.square().sum(), x)[0])
    if isinstance(state, torch.Tensor):
        last = torch.cat([layer(row[None, -lengths[-1] :])[1] for row, lengths in zip(x, LENGTHS, strict=True)])
        assert_close(state, last)


@pytest.mark.parametrize("head", [c.ClassifierConfig(3), c.RegressionConfig(2)], ids=["pooled", "every step"])
@pytest.mark.parametrize(
    "block",
    [c.MambaConfig(4), c.ResidualConfig(), c.GriffinConfig(attention_heads=1, window=3)],
    ids=["mamba", "s4d", "griffin"],
)
def test_a_model_reads_each_document_as_if_alone(block: Any, head: Any) -> None:
    torch.manual_seed(0)
    model = rv.build_model(c.ModelConfig(c.ChannelsConfig(2), block, head, d_model=4, layers=3)).double().eval()
    x = torch.randn(3, 11, 2, dtype=torch.float64)
    parts = alone(lambda part: model(part[None])[0], x)
    pooled = isinstance(head, c.ClassifierConfig)
    assert_close(model(x, start=START), torch.stack(parts) if pooled else torch.cat(parts).view(3, 11, -1))
    one = rv.packed_starts([5, 6])
    assert_close(
        model(x, start=one)[:2],
        torch.stack([model(x[:1, :5])[0], model(x[:1, 5:])[0]]) if pooled else model(x, start=one.expand(3, 11))[:2],
    )


def test_tokens_and_bad_marks() -> None:
    torch.manual_seed(0)
    model = rv.build_model(
        c.ModelConfig(c.TokensConfig(9), c.MambaConfig(4), c.LanguageConfig(), d_model=4, layers=1)
    ).double()
    x = torch.randint(0, 9, (3, 11))
    want = torch.cat(alone(lambda part: model(part[None])[0], x)).view(3, 11, 9)
    assert_close(model(x, start=START), want)
    with pytest.raises(ValueError, match="leave lengths out"):
        model(x, torch.tensor([1, 2, 3]), START)
    with pytest.raises(TypeError, match="bool"):
        model(x, start=START.int())
    layer = layers.S4D(3, 4)
    with pytest.raises(ValueError, match="mark padding as a document"):
        layer(torch.randn(3, 11, 3), layer.initial_state(3), start=START)
    with pytest.raises(ValueError, match="broadcasts"):
        layer(torch.randn(3, 11, 3), start=START[:, :5])


def test_groups_of_a_selective_scan() -> None:
    torch.manual_seed(0)
    b, l, d, n, g = 2, 9, 6, 3, 2
    u, dt, z = torch.randn(b, l, d), torch.rand(b, l, d), torch.randn(b, l, d)
    A, D, h0 = -torch.rand(d, n), torch.randn(d), torch.randn(b, d, n)
    B, C = torch.randn(2, b, l, g, n).double()
    u, dt, z, A, D, h0 = (t.double() for t in (u, dt, z, A, D, h0))
    h, want = h0, []
    for t in range(l):  # channel i belongs to group i // (d / g)
        Bt, Ct = (m[:, t].repeat_interleave(d // g, 1) for m in (B, C))  # (b, d, n)
        h = torch.exp(dt[:, t, :, None] * A) * h + (dt[:, t] * u[:, t])[..., None] * Bt
        want.append(((h * Ct).sum(-1) + D * u[:, t]) * torch.nn.functional.silu(z[:, t]))
    y, last = rv.selective_scan(u, dt, A, B, C, D, z, h0)
    assert_close(y, torch.stack(want, 1))
    assert_close(last, h)
    shared, _ = rv.selective_scan(u, dt, A, B[:, :, 0], C)
    halves = [
        rv.selective_scan(u[..., i : i + 3], dt[..., i : i + 3], A[i : i + 3], B[:, :, 0], C[:, :, i // 3])[0]
        for i in (0, 3)
    ]
    assert_close(shared, torch.cat(halves, -1))
    with pytest.raises(ValueError, match="divides the 6 channels"):
        rv.selective_scan(u, dt, A, torch.randn(b, l, 4, n).double(), C)


def test_h3_takes_the_released_system() -> None:
    torch.manual_seed(0)
    config = c.ModelConfig(
        c.ChannelsConfig(2), c.H3Config(4, layer=S4DConfig(4, "lin", discretisation="bilinear")), d_model=4, layers=1
    )
    model = rv.build_model(config).double().eval()
    ssm = model.tower.body.blocks[0].layer.ssm
    assert (ssm.init, ssm.discretisation) == ("lin", "bilinear")
    lam = torch.complex(-ssm.log_decay.exp(), ssm.frequency)
    dt = ssm.log_dt.exp()[:, None]
    assert_close(ssm._bank().lam, (1 + dt / 2 * lam) / (1 - dt / 2 * lam))
