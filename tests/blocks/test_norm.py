"""Norms against torch's own, and BatchNorm's statistics with padding left out."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from helpers import assert_close
from resolvent.blocks.norm import BatchNorm, LayerNorm, RMSNorm, ScaleNorm, make_norm

D, F64 = 5, torch.float64


def twin(ours: nn.Module, theirs: nn.Module) -> tuple[nn.Module, nn.Module]:
    ours, theirs = ours.double(), theirs.double()
    with torch.no_grad():
        for name in ("weight", "bias"):
            getattr(theirs, name).normal_()
            getattr(ours, name).copy_(getattr(theirs, name))
    return ours, theirs


def values_and_gradients(f: nn.Module, x: Tensor, pick: Tensor) -> list[Tensor]:
    x = x.clone().requires_grad_()
    y = f(x)
    return [y, *torch.autograd.grad((y * pick).sum(), [x, *f.parameters()])]


def test_layer_norm_is_torchs() -> None:
    ours, theirs = twin(LayerNorm(D), nn.LayerNorm(D))
    x, pick = torch.randn(2, 3, 7, D, dtype=F64)
    assert_close(values_and_gradients(ours, x, pick), values_and_gradients(theirs, x, pick))


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_is_torchs(training: bool) -> None:
    ours, theirs = twin(BatchNorm(D), nn.BatchNorm1d(D))
    ours.train(training), theirs.train(training)
    for _ in range(3):  # the running statistics must go along
        x, pick = 1 + 2 * torch.randn(2, 3, 7, D, dtype=F64)
        got = values_and_gradients(ours, x, pick)
        want = values_and_gradients(theirs, x.flatten(0, 1), pick.flatten(0, 1))
        assert_close([g.flatten(0, 1) if g.dim() == 3 else g for g in got], want)
        assert_close(ours.running_mean, theirs.running_mean)
        assert_close(ours.running_var, theirs.running_var)


def test_batch_norm_does_not_see_padding() -> None:
    ours, theirs = twin(BatchNorm(D), nn.BatchNorm1d(D))
    lengths = torch.tensor([7, 2, 1])
    x = torch.randn(3, 7, D, dtype=F64)
    valid = torch.arange(7) < lengths[:, None]
    got = ours(x.masked_fill(~valid[..., None], 1e6), lengths)
    assert_close(got[valid], theirs(x[valid]))
    assert_close(ours.running_var, theirs.running_var)


def test_batch_norm_refuses_a_step_in_training() -> None:
    norm = BatchNorm(D)
    with pytest.raises(ValueError, match=r"eval\(\)"):
        norm(torch.randn(4, D))
    assert torch.equal(norm.running_mean, torch.zeros(D))
    assert norm.eval()(torch.randn(4, D)).shape == (4, D)


def test_rms_norm_starts_as_identity_scale_and_has_unit_power() -> None:
    norm, x = RMSNorm(D).double(), 3 * torch.randn(4, 9, D, dtype=F64)
    want = x / (x.square().sum(-1, keepdim=True) / D + norm.eps).sqrt()
    assert_close(norm(x), want)
    with torch.no_grad():
        norm.scale.fill_(0.5)
    assert_close(norm(x), 1.5 * want)


def test_scale_norm_has_one_number() -> None:
    norm, x = ScaleNorm(D).double(), torch.randn(4, 9, D, dtype=F64)
    assert sum(p.numel() for p in norm.parameters()) == 1
    with torch.no_grad():
        norm.scale.fill_(2.0)
    assert_close(norm(x), 2 * x / (x.square().sum(-1, keepdim=True) / D + norm.eps).sqrt())


def test_unknown_norm_is_named() -> None:
    with pytest.raises(ValueError, match="'layer', 'batch'"):
        make_norm("group", D)  # type: ignore[arg-type]
