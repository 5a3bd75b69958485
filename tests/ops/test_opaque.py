"""Tables of S4 as one operation: the numbers of its formula, by recordings too (a stand-in for CUDA graphs)."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from graph_stand_in import StandIn
from helpers import assert_close
from resolvent.layers import S4
from resolvent.layers.s4 import TABLES
from resolvent.ops.step import recorded


@pytest.mark.parametrize("kind", [{}, {"discretisation": "zoh"}, {"n_ssm": 2}], ids=str)
def test_recorded_tables_and_gradients(kind: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded, "GRAPHS", {"cpu": StandIn})
    monkeypatch.setattr(TABLES, "known", {})
    for turn in range(3):  # run, recorded, replayed; other numbers each time
        torch.manual_seed(turn)
        layer = S4(4, 6, **kind).double()  # type: ignore[arg-type]
        source = layer._source(layer.C, layer.D)
        own = [p.detach().requires_grad_() for p in source.parameters]
        found = []
        for make in (TABLES.tables, TABLES.make):
            made = make(own, source.option, 12, False)
            assert [tuple(t.shape) for t in made] == TABLES.shapes(own, source.option, 12, False)
            loss = sum((t * t.detach().cos()).sum() for t in (*made[:4], made[-1]))
            found.append([*made, *torch.autograd.grad(loss, own)])
        assert_close(found[0], found[1], dtype=torch.float64)
    assert sum(isinstance(r, recorded.Recording) for r in TABLES.known.values()) == 2  # there and back


@pytest.mark.parametrize("is_large", [False, True])
def test_inside_of_a_recorded_pass_the_function_runs_once(is_large: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """There its gradients come by its own graph: the same numbers, of every order, without a second run; unless that
    graph would be large."""
    monkeypatch.setattr(TABLES, "is_large", is_large)
    layer = S4(4, 6).double()
    source = layer._source(layer.C, layer.D)
    own = [p.detach().requires_grad_() for p in source.parameters]
    want = TABLES.tables(own, source.option, 12, False)
    slopes = torch.autograd.grad(sum((t * t.detach().cos()).sum() for t in want[:4]), own)
    runs, make = [0], TABLES.make

    def count(*given: Any) -> Any:
        runs[0] += 1
        return make(*given)

    monkeypatch.setattr(TABLES, "make", count)
    monkeypatch.setattr(recorded, "_recording", [True])
    found = TABLES.tables(own, source.option, 12, False)
    assert all(t.is_contiguous() for t in found)
    got = torch.autograd.grad(sum((t * t.detach().cos()).sum() for t in found[:4]), own)
    assert runs == [1 + is_large]
    assert_close([*found, *got], [*want, *slopes], dtype=torch.float64)


def test_compiled_values_and_gradients_under_a_watching_mode() -> None:
    """aot_eager checks what operators return, in a mode under which a noted conj() is lost."""
    layer = S4(3, 4).double()
    x = torch.randn(2, 70, 3, dtype=torch.float64, requires_grad=True)
    found = []
    for run in (layer, torch.compile(layer, backend="aot_eager", fullgraph=True)):
        y = run(x)[0]
        found.append([y, *torch.autograd.grad(y.sin().sum(), [x, *layer.parameters()])])
    assert_close(found[1], found[0], dtype=torch.float64)
