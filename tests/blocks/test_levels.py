"""Shares of the time above levels: against counting in numpy, padded, streamed, with gradients, in whole models."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import resolvent as rv
from resolvent.blocks import LevelReadout, Levels
from resolvent.lowering.describe import describe
from resolvent.lowering.eager import run


def readout(d: int = 3, k: int = 5, slope: float = 2.0) -> LevelReadout:
    torch.manual_seed(0)
    made = LevelReadout(d, 4, k).double()
    with torch.no_grad():
        made.levels.levels.normal_()
        made.levels.slope.fill_(slope)
    return made


def counted(made: LevelReadout, y: Tensor, l: int) -> np.ndarray:
    """The sum of the module's docstring, term by term."""
    levels, slope = (p.detach().numpy() for p in (made.levels.levels, made.levels.slope))
    d, k = levels.shape
    found = np.zeros((d, k))
    for t in range(l):
        for i in range(d):
            for j in range(k):
                found[i, j] += min(max((y[t, i].item() - levels[i, j]) * slope[i] + 0.5, 0), 1) / l
    return found.reshape(-1)


def test_shares_are_counted_without_padding() -> None:
    made, y, lengths = readout(), torch.randn(3, 7, 3, dtype=torch.float64), torch.tensor([7, 1, 4])
    y[1, 1:], y[2, 4:] = torch.nan, torch.inf
    found = made.levels.shares(y, lengths).detach().numpy()
    for row, l in enumerate(lengths.tolist()):
        np.testing.assert_allclose(found[row], counted(made, y[row], l), rtol=1e-12)


def test_a_steep_slope_counts_steps_above() -> None:
    made, y = readout(slope=1e12), torch.randn(2, 50, 3, dtype=torch.float64)
    above = (y[:, :, :, None] > made.levels.levels).double().mean(1).flatten(1)
    torch.testing.assert_close(made.levels.shares(y), above)


def test_stream_is_the_answer_of_each_prefix() -> None:
    made, y = readout(), torch.randn(2, 9, 3, dtype=torch.float64)
    state, found = made.initial_state(2, y), []
    for part in y.split([4, 1, 4], 1):
        answer, state = made.stream(part, state)
        found.append(answer)
    prefixes = torch.stack([made(y[:, : t + 1]) for t in range(9)], 1)
    torch.testing.assert_close(torch.cat(found, 1), prefixes, rtol=1e-12, atol=1e-12)


def test_gradients() -> None:
    made, y = readout(), torch.randn(2, 6, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(made, (y, torch.tensor([6, 3])))


def test_levels_stand_at_quantiles() -> None:
    made = Levels(3, 4).double()
    y = torch.stack([torch.randn(4000), torch.rand(4000) * 10, torch.full((4000,), 3.0)], 1).double()
    made.set(y, 0.1, torch.Generator().manual_seed(0))
    share = (y[:, :, None] > made.levels).double().mean(0)[:2]  # (2, k)
    parts = torch.tensor([[1.0, 0.75], [0.75, 0.5], [0.5, 0.25], [0.25, 0.0]], dtype=torch.float64)
    assert bool(((share <= parts[:, 0] + 1e-3) & (share >= parts[:, 1] - 1e-3)).all())
    assert made.slope.isfinite().all()  # a constant channel too
    np.testing.assert_allclose(made.slope[1].item(), 10 / (10 / 12**0.5), rtol=0.05)


def test_an_empty_sequence_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one step"):
        readout()(torch.zeros(2, 0, 3, dtype=torch.float64))


def test_a_model_of_levels_trains_streams_and_comes_back(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = rv.ModelConfig(rv.models.ChannelsConfig(2), head=rv.models.LevelsConfig(3, 4), d_model=8, layers=1)
    model = rv.build_model(config).double().eval()
    x, lengths = torch.randn(4, 11, 2, dtype=torch.float64), torch.tensor([11, 3, 7, 1])
    whole = model(x, lengths)
    for row, l in enumerate(lengths.tolist()):
        torch.testing.assert_close(model(x[row : row + 1, :l])[0], whole[row])
    streamed, _ = model.stream(x)
    torch.testing.assert_close(streamed[:, -1], model(x))
    whole.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    rv.save_model(model, tmp_path / "model")
    again = rv.load_model(tmp_path / "model").double().eval()
    torch.testing.assert_close(again(x, lengths), whole, rtol=1e-5, atol=1e-6)
    eager = run(describe(model), x, lengths)
    torch.testing.assert_close(eager, model(x, lengths))


def test_its_bound_holds_and_it_is_exported(tmp_path: Path) -> None:
    torch.manual_seed(0)
    block = rv.models.ResidualConfig(rv.models.L2RUConfig(4), mixer="none", activation="none")
    config = rv.ModelConfig(rv.models.ChannelsConfig(2), block, rv.models.LevelsConfig(3, 4), 8, 1, norm="none")
    model = rv.build_model(config).double().eval()
    gain = rv.analysis.certified_gain(model.gain_parts(11))
    x, step = torch.randn(50, 11, 2, dtype=torch.float64), 1e-3 * torch.randn(50, 11, 2, dtype=torch.float64)
    ratio = (model(x + step) - model(x)).norm(dim=1) / step.flatten(1).norm(dim=1)
    assert 0.01 < float(ratio.max()) / gain.value <= 1
    rv.export(model.float(), tmp_path / "file", "pt2")  # compared with the model before it is kept


def test_certified_models_refuse_levels() -> None:
    head = rv.models.LevelsConfig(3)
    certified = rv.models.CertifiedConfig()
    config = rv.ModelConfig(block=rv.models.LipschitzConfig(), head=head, norm="none", certified=certified)
    with pytest.raises(ValueError, match="levels in the head"):
        rv.build_model(config)
