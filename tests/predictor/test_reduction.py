"""Fewer states: the certified error against simulation and the worst input, at every size; saving; the command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from resolvent import cli
from resolvent.layers import S4D, S5
from resolvent.models import (
    ChannelsConfig,
    ClassifierConfig,
    ModelConfig,
    ResidualConfig,
    S4DConfig,
    S5Config,
    S6Config,
    build_model,
    load_model,
    save_model,
)
from resolvent.predictor import reduce_model
from resolvent.predictor.reduction import CannotReduce

LAYERS: dict[str, Any] = {
    "s4d": S4DConfig(32),
    "s4d-lin-bilinear": S4DConfig(32, init="lin", discretisation="bilinear"),
    "s4d-real": S4DConfig(16, init="real"),
    "s5": S5Config(32),
    "s5-blocks": S5Config(32, blocks=2),
}


def model_of(layer: Any, layers: int = 1) -> Any:
    torch.manual_seed(0)
    head = ClassifierConfig(10)
    config = ModelConfig(ChannelsConfig(1), ResidualConfig(layer), head, d_model=4, layers=layers)
    return build_model(config).double().eval()


def first_layer(model: Any) -> Any:
    return next(m for m in model.modules() if isinstance(m, S4D | S5))


def worst_difference(first: Any, second: Any) -> float:
    """The largest singular value of G_1 - G_2 over a net that is fine around the angle of each pole."""
    poles = np.concatenate([np.abs(np.angle(s.A.lam.detach().numpy()).ravel()) for s in (first, second)])
    near = (poles[:, None] + 10.0 ** np.linspace(-7, 0, 15) * np.array([[1], [-1]]).reshape(2, 1, 1)).ravel()
    w = np.unique(np.clip(np.concatenate([near, poles, np.linspace(0, np.pi, 2001)]), 0, np.pi))
    gap = response(first, w) - response(second, w)  # (..., f, p, m)
    return float(np.linalg.norm(gap, 2, axis=(-2, -1)).max())


def response(system: Any, w: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    lam, B, C, D = (t.detach().numpy() for t in (system.A.lam, system.B, system.C, system.D))
    step = 1 / (1 - lam[..., None, :] * np.exp(-1j * w)[:, None])  # (..., f, n)
    return np.einsum("...pn,...fn,...nm->...fpm", C, step, B) + D[..., None, :, :]


@pytest.mark.parametrize("name", LAYERS)
def test_the_measured_error_is_below_the_certified_one_at_every_size(name: str) -> None:
    model, sizes = model_of(LAYERS[name]), []
    layer = first_layer(model)
    u = torch.randn(6, 300, 4, dtype=torch.float64)
    for error in (0.9, 0.5, 0.3, 0.1, 0.01, 1e-3):
        try:
            small, found = reduce_model(model, error)
        except CannotReduce:
            continue
        new = first_layer(small)
        assert new.d_state == found.after < layer.d_state
        sizes.append(found.after)
        (cuts,) = found.layers
        assert cuts.error <= error * cuts.gain
        apart = (new(u)[0] - layer(u)[0]).detach()
        measured = (apart.flatten(1).norm(dim=1) / u.flatten(1).norm(dim=1)).max()
        assert float(measured) <= cuts.error
        # the worst of many frequencies, close to every pole as well, by numpy
        assert worst_difference(layer.system(), new.system()) <= cuts.error
        assert cuts.measured <= cuts.error <= 1.05 * cuts.measured
        assert cuts.error <= cuts.truncation * (1 + 1e-6)
    assert sizes == sorted(sizes)
    assert sizes


def test_a_worst_input_does_not_pass_it() -> None:
    """Gradient ascent on |y - y_small| / |u|."""
    model = model_of(LAYERS["s4d"])
    small, found = reduce_model(model, 0.3)
    layer, new = first_layer(model), first_layer(small)
    u = torch.randn(8, 200, 4, dtype=torch.float64, requires_grad=True)
    optimiser, best = torch.optim.Adam([u], lr=0.1), 0.0
    for _ in range(30):
        ratio = (layer(u)[0] - new(u)[0]).flatten(1).norm(dim=1) / u.flatten(1).norm(dim=1)
        best = max(best, float(ratio.detach().max()))
        optimiser.zero_grad()
        (-ratio.sum()).backward()
        optimiser.step()
    assert 0.01 * found.layers[0].error < best <= found.layers[0].error


def test_a_small_model_is_saved_and_read_again(tmp_path: Path) -> None:
    model = model_of(LAYERS["s4d-real"], layers=2).float()
    small, found = reduce_model(model, 0.01)
    save_model(small, tmp_path / "small")
    x = torch.randn(3, 64, 1)
    assert torch.allclose(load_model(tmp_path / "small").eval()(x), small.eval()(x))
    assert len(found.layers) == 2
    assert all(each.error <= 0.01 * each.gain for each in found.layers)
    assert float((small(x) - model(x)).abs().max()) < 0.1
    small.train()
    assert small(x).requires_grad  # it can be trained on


def test_what_cannot_be_reduced_is_refused() -> None:
    with pytest.raises(ValueError, match="stay the same over time, got S6"):
        reduce_model(model_of(S6Config(4)), 0.1)
    with pytest.raises(ValueError, match="both directions"):
        reduce_model(model_of(S4DConfig(8, bidirectional=True)), 0.1)
    for wrong in (0.0, -1.0, float("nan"), True):
        with pytest.raises((ValueError, TypeError), match="error must be"):
            reduce_model(model_of(S4DConfig(8)), wrong)


def test_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_model(model_of(LAYERS["s4d-real"]).float(), tmp_path / "run")
    words = ["reduce", str(tmp_path / "run"), "--samples", "20"]
    assert cli.main([*words, "--error", "0.1"]) == 0
    output = capsys.readouterr().out
    assert "d_state 16 ->" in output
    assert "accuracy" in output
    assert (tmp_path / "run" / "reduced" / "reduction.json").is_file()
    assert cli.main([*words, "--error", "1e-9"]) == 1
    assert cli.main([*words, "--error", "-1"]) == 2
