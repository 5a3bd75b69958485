"""Attacks recorded on a GPU find what they find without recordings, on models that are not ours."""

from __future__ import annotations

import gc
import logging
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[1] / "attacks"))
sys.path.insert(0, str(Path(__file__).parents[2]))
from test_recorded_attacks import ATTACKS, case, radii
from test_recorded_foreign import SILENT, TOUCHED, TRIED, Foreign, attack
from walks import BOUNDS, PACE, SIZES, slopes, walk_of

from benchmarks.attacks.models import images, network
from helpers import assert_close
from resolvent.attacks import Threat, Victim
from resolvent.attacks.autoattack.attack import autoattack
from resolvent.attacks.fab.walk import torch_stride
from resolvent.attacks.recorded import recorder
from resolvent.runtime.graph.watched import without_recording

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def on_gpu(f: nn.Module, *tensors: Tensor) -> Any:
    return f.cuda(), *(t.cuda() for t in tensors)


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Those that are recorded."""
    made, own = [], recorder.record

    def record(*args: Any) -> Any:
        made.append(own(*args))
        return made[-1]

    monkeypatch.setattr(recorder, "record", record)
    return made


@pytest.mark.parametrize("batch_size", [None, 64, 5])
@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("name", ATTACKS)
def test_a_recorded_attack_finds_the_same(name: str, norm: str, batch_size: int | None, graphs: list[Any]) -> None:
    """Rows of a batch of another size may be added up in another order, by which few searches go another way."""
    f, x, y = on_gpu(*case())
    threat = radii(norm, len(x))
    threat = replace(threat, eps=threat.eps.cuda())
    with without_recording():
        want = ATTACKS[name](Victim(f, batch_size), x, y, threat)
    assert not graphs
    found = ATTACKS[name](Victim(f, batch_size), x, y, threat)
    assert graphs
    assert torch.equal(found.success, want.success)
    same = (found.x_adv == want.x_adv).flatten(1).all(1)
    assert float(same.double().mean()) > 0.7
    assert torch.equal(found.queries[same], want.queries[same])
    assert bool(threat.contains(found.x_adv, x).all())


@pytest.mark.parametrize("name", ["apgd-ce", "square"])
@pytest.mark.parametrize("kind", [*SILENT, *TOUCHED, *TRIED])
def test_models_that_must_not_be_recorded(
    kind: str, name: str, graphs: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    make = (SILENT | TOUCHED | TRIED)[kind]
    with without_recording():
        want = attack(lambda: make().cuda(), name, device="cuda")
    with caplog.at_level(logging.WARNING):
        found = attack(lambda: make().cuda(), name, device="cuda")
    assert not graphs
    assert torch.equal(found[0].success, want[0].success)
    assert found[1:] == want[1:]
    assert caplog.text.count("cannot be recorded") == (kind not in SILENT)


def test_random_numbers_and_memory_are_given_back(graphs: list[Any]) -> None:
    f, x, y = on_gpu(*case())
    threat = replace(radii("linf", len(x)), eps=radii("linf", len(x)).eps.cuda())
    victim = Victim(f)
    ATTACKS["square"](victim, x, y, threat)
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.manual_seed(4)
    ATTACKS["square"](victim, x, y, threat)
    drawn = torch.rand(3, device="cuda")
    torch.manual_seed(4)
    assert torch.equal(drawn, torch.rand(3, device="cuda"))
    assert len(graphs) > 1
    graphs.clear()
    gc.collect()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_allocated() <= before + (1 << 20)


def test_work_goes_on_after_a_recording_that_failed(graphs: list[Any]) -> None:
    with without_recording():
        want = attack(lambda: Foreign().cuda(), "square", device="cuda")
    attack(lambda: TRIED["items"]().cuda(), "square", device="cuda")
    assert not graphs
    found = attack(lambda: Foreign().cuda(), "square", device="cuda")
    assert graphs
    assert torch.equal(found[0].success, want[0].success)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_a_whole_evaluation_of_a_convolutional_network(norm: Any, graphs: list[Any]) -> None:
    torch.manual_seed(0)
    f, x, y = on_gpu(network().eval(), *images(96, 5))
    y = f(x).argmax(1)
    threat = Threat(norm, {"linf": 0.02, "l2": 0.15}[norm], (0.0, 1.0))
    with without_recording():
        want = autoattack(f, x, y, threat, "fast", batch_size=64)
    found = autoattack(f, x, y, threat, "fast", batch_size=64)
    assert graphs
    assert int((found.robust != want.robust).sum()) <= 2  # of samples on the edge
    assert bool(threat.check(x).contains(found.x_adv, x).all())


@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_a_step_of_fab_as_one_kernel(norm: str, bounds: str) -> None:
    from resolvent.ops.ascent import fab_triton

    for size in (*SIZES, (3, 2, 3000)):
        walk = walk_of(norm, size, bounds, torch.float32)
        gap, slope = slopes(walk)
        parts = {name: getattr(walk, name) for name in ("x", "eps", "at", "low", "high", "best", "distance", "odd")}
        wide = replace(walk, **{name: t.double() if t.is_floating_point() else t for name, t in parts.items()})
        want = torch_stride(wide, gap.double(), slope.double(), PACE)
        found: Any = fab_triton._stride(
            replace(walk, **{name: t.cuda() for name, t in parts.items()}), gap.cuda(), slope.cuda(), PACE
        )
        assert_close(found.cpu(), want.float(), dtype=torch.float32)
