"""What a new user meets first: names at the top, `dir()`, `repr`, help, and errors that say what to write."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import resolvent
import resolvent as rv
from helpers import assert_close
from resolvent.analysis import SmoothingSettings, certify, smooth
from resolvent.attacks import PGD
from resolvent.cli import main
from resolvent.data import from_arrays
from resolvent.layers import DSS, EMA, LRU, RGLRU, S4, S4D, S5, S6, Attention, ShortConv
from resolvent.models import Model
from resolvent.training import FitSettings

PARTS = [*resolvent._PARTS]
NAMES = ["PGD", "Mamba", "evaluate", "from_file", "load", "load_model", "pgd_at", "run", "save_model", "trades"]
NAMES += ["write_report"]


@pytest.mark.parametrize("name", NAMES)
def test_names_at_the_top(name: str) -> None:
    assert name in dir(rv)
    assert callable(getattr(rv, name))


@pytest.mark.parametrize("part", PARTS)
def test_dir_of_a_part_shows_public_names_alone(part: str) -> None:
    module = importlib.import_module(f"resolvent.{part}")
    assert dir(module) == sorted(module.__all__)
    assert all(hasattr(module, name) for name in dir(module))


@pytest.mark.parametrize(
    ("given", "norm"), [("Linf", "linf"), ("L_inf", "linf"), ("inf", "linf"), ("L2", "l2"), ("L1", "l1")]
)
def test_names_of_norms(given: str, norm: str) -> None:
    assert rv.Threat(given, 0.1).norm == norm  # type: ignore[arg-type]


@pytest.mark.parametrize("given", ["l3", "", None, 2, ["linf"]])
def test_other_norms_are_refused(given: object) -> None:
    with pytest.raises(ValueError, match="norm must be 'linf', 'l2' or 'l1'"):
        rv.Threat(given, 0.1)  # type: ignore[arg-type]


def test_a_layer_tells_what_it_is() -> None:
    assert repr(S4D(6, 4)) == "S4D(d_model=6, d_state=4)"
    assert "bidirectional=True" in repr(S5(6, 4, bidirectional=True))
    assert "d_model=6" in repr(rv.Mamba(6))


def test_a_task_tells_what_it_is() -> None:
    task = task_of(None)
    assert str(task) == repr(task) == task.describe()
    assert len(str(task)) < 2000


def test_help_of_forward() -> None:
    doc = inspect.getdoc(Model.forward)
    assert doc is not None
    assert "lengths" in doc
    assert "(b, l, c)" in doc


# -- training ----------------------------------------------------------------------------------------------------------


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.out(x.mean(1))
        return y


def task_of(lengths: Tensor | None) -> rv.data.Task:
    torch.manual_seed(0)
    x, y = torch.rand(24, 7, 2), torch.arange(24) % 3
    return from_arrays(x, y, lengths=lengths) if lengths is not None else from_arrays(x, y)


def test_fit_by_name() -> None:
    settings = FitSettings(epochs=1, batch_size=8, track_test=True)
    rv.fit(Net(), task_of(None), "standard", settings)
    for name, word in (("trades", "rv.trades"), ("pgd-at", "rv.pgd_at")):
        with pytest.raises(ValueError, match=word) as refused:
            rv.fit(Net(), task_of(None), name, settings)
        assert "Threat(" in str(refused.value)
    with pytest.raises(ValueError, match="expected an objective"):
        rv.fit(Net(), task_of(None), "tradse", settings)


def test_a_model_without_lengths_on_padded_data() -> None:
    lengths = torch.arange(24) % 6 + 2
    task = task_of(lengths)
    with pytest.raises(TypeError, match="lengths=None"):
        rv.fit(Net(), task, settings=FitSettings(epochs=1, batch_size=8, track_test=True))
    x, y = torch.rand(3, 7, 2), torch.tensor([0, 1, 2])
    with pytest.raises(TypeError, match="takes x alone"):
        PGD(steps=1)(Net(), x, y, rv.Threat("linf", 0.1), lengths=lengths[:3])
    with pytest.raises(ValueError, match=r"^autoattack: Net takes x alone") as refused:
        rv.evaluate(Net(), (x, y, lengths[:3]), rv.Threat("linf", 0.1), "fast")
    assert str(refused.value).count("cut") == 1


@pytest.mark.parametrize("wrap", [lambda net: net, torch.compile, nn.DataParallel, lambda net: net.forward])
def test_a_certificate_of_a_model_without_lengths(wrap: Any) -> None:
    x, y, lengths = torch.rand(3, 7, 2), torch.tensor([0, 1, 2]), torch.tensor([7, 3, 2])
    for call in (
        lambda f: certify(f, x, y, 2.0, lengths=lengths),
        lambda f: smooth(f, x, y, SmoothingSettings(0.1, n=10), lengths=lengths),
    ):
        with pytest.raises(TypeError, match=r"Net\S* takes x alone.*forward\(self, x, lengths=None\)"):
            call(wrap(Net()))


def test_the_command_says_how_a_foreign_model_is_certified(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "from torch import nn\nclass Foreign(nn.Linear):\n  def __init__(self):\n    super().__init__(1, 10)\n"
    (tmp_path / "net.py").write_text(text)
    assert main(["certify", f"{tmp_path / 'net.py'}:Foreign", "--data", "digits"]) == 2
    error = capsys.readouterr().err
    assert "got Foreign" in error
    assert "certify(model, x, y, constant)" in error
    assert "lengths=None" in error


def test_a_type_error_of_the_model_itself_is_its_own() -> None:
    class Wrong(Net):
        def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
            raise TypeError("inside")

    with pytest.raises(TypeError, match="inside"):
        PGD(steps=1)(Wrong(), torch.rand(3, 7, 2), torch.tensor([0, 1, 2]), rv.Threat("linf", 0.1),
                     lengths=torch.tensor([7, 3, 2]))  # fmt: skip


# -- states in between -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [S4, S4D, DSS, S5, LRU, EMA, S6, ShortConv])
def test_states_in_between_are_those_of_stepping(make: type) -> None:
    torch.manual_seed(0)
    layer = (make(3) if make is ShortConv else make(3, 4)).double()
    x = torch.randn(2, 6, 3).double()
    state, stepped = layer.initial_state(2), []
    for t in range(6):
        state = layer.step(x[:, t], state)[1]
        stepped.append(state)
    want = torch.stack(stepped, 1)
    assert_close(layer.states(x), want)
    assert_close(layer.states(x, at=[4, 1, -1]), want[:, [4, 1, 5]])
    assert_close(layer.states(x, at=2), want[:, 2])
    assert_close(layer.states(x[:, 3:], state=want[:, 2]), want[:, 3:])
    with pytest.raises(ValueError, match="steps must lie in"):
        layer.states(x, at=6)


@pytest.mark.parametrize("make", [RGLRU, rv.Mamba])
def test_states_of_several_tensors_come_as_several(make: type) -> None:
    torch.manual_seed(0)
    layer, x = make(3), torch.randn(2, 6, 3)
    state, stepped = None, []
    for t in range(6):
        state = layer.step(x[:, t], state)[1]
        stepped.append(state)
    for at in ([4, 1], torch.tensor([4, 1])):
        found = tree_leaves(layer.states(x, at=at))
        assert len(found) == len(tree_leaves(state)) > 1
        for got, *want in zip(found, tree_leaves(stepped[4]), tree_leaves(stepped[1]), strict=True):
            assert torch.allclose(got.double(), torch.stack(want, 1).double(), atol=1e-5)
    assert all(t.shape[1] == 0 for t in tree_leaves(layer.states(x, at=[])))


def test_states_that_are_none_are_refused() -> None:
    x = torch.randn(1, 4, 4)
    with pytest.raises(ValueError, match="bidirectional"):
        S4D(4, 4, bidirectional=True).states(x, at=0)
    with pytest.raises(TypeError, match="grows"):
        Attention(4).states(x)
    with pytest.raises(ValueError, match="steps must lie in"):
        S4D(4, 4).states(x, at=[0.5])


def test_states_between_uneven_steps() -> None:
    torch.manual_seed(0)
    layer, x, dt = S5(3, 4), torch.randn(2, 6, 3), torch.rand(2, 6) + 0.3
    assert_close(layer.states(x, at=4, dt=dt), layer(x[:, :5], dt=dt[:, :5])[1])


# -- views with a sign or a conjugation to come ------------------------------------------------------------------------


def negative(x: Tensor) -> Tensor:
    """x itself, as a view whose sign is still to be applied."""
    return torch._neg_view(-x)


@pytest.mark.parametrize("n", [1, 3])
def test_scans_read_views_with_a_pending_sign(n: int) -> None:
    torch.manual_seed(0)
    u, dt = torch.randn(2, 5, n), torch.rand(2, 5, n)
    A, B, C = -torch.rand(n, n), torch.randn(2, 5, n), torch.randn(2, 5, n)
    given = (u, dt, A, B, C, torch.rand(n), torch.randn(2, 5, n), torch.randn(2, n, n))
    want = rv.selective_scan(*given)[0]
    for i in range(len(given)):
        turned = [negative(t) if i == j else t for j, t in enumerate(given)]
        assert_close(rv.selective_scan(*turned)[0], want)
    rows = (torch.rand(n), torch.randn(2, 5, n), torch.randn(2, n))
    for i in range(3):
        assert_close(rv.linear_scan(*(negative(t) if i == j else t for j, t in enumerate(rows))), rv.linear_scan(*rows))
    gates = (torch.randn(2, 5, n), torch.randn(2, 5, n), torch.randn(2, 5, n), -torch.rand(n), torch.randn(2, n))
    for i in range(5):
        assert_close(rv.gated_scan(*(negative(t) if i == j else t for j, t in enumerate(gates))), rv.gated_scan(*gates))


@pytest.mark.parametrize("make", [S4D, S5, LRU, S6])
def test_layers_read_views_with_a_pending_sign(make: type) -> None:
    torch.manual_seed(0)
    layer = make(3, 4)
    x, state = torch.randn(2, 6, 3), layer.initial_state(2)
    state = torch.randn_like(state)
    want = layer(x, state)[0]
    assert_close(layer(negative(x), state)[0], want)
    conjugated = state.conj().resolve_conj().conj() if state.is_complex() else negative(state)
    assert_close(layer(x, conjugated)[0], want)
    with layer.frozen(), torch.no_grad():
        assert_close(layer.step(negative(x[:, 0]), conjugated)[0], layer.step(x[:, 0], state)[0])


# -- another dtype -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [6, 900])  # by the quick form, and by modules
def test_another_dtype_is_told_what_to_do(length: int) -> None:
    config = rv.ModelConfig(rv.models.ChannelsConfig(2), rv.models.ResidualConfig(rv.models.S4DConfig(4)),
                            rv.models.ClassifierConfig(3), 4, 1)  # fmt: skip
    model = rv.build_model(config).eval()
    x = torch.rand(2, length, 2)
    for given in (x.double(), x.half(), x.bfloat16()):
        for call in (model, model.embed, model.stream):
            with pytest.raises(TypeError, match=r"x\.to\(torch\.float32\)"):
                call(given)
    with pytest.raises(TypeError, match=r"x\.to\(torch\.float64\)"):
        model.double()(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model.float()(x.bfloat16())
