"""S5 and LRU blocks in the walk by cohorts: values, gradients and attacks as through the modules, and as simulated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch
from pgd_loops import check_training
from torch import Tensor

from helpers import assert_close, stirred
from resolvent.attacks import Draws, Threat
from resolvent.layers import mimo
from resolvent.layers.lru import LRU
from resolvent.layers.s5 import S5
from resolvent.lowering import lowered
from resolvent.lowering.cpu import lanes
from resolvent.lowering.cpu.lanes import Path
from resolvent.lowering.recurrence import recurrence
from resolvent.models.config import AdSConfig, ChannelsConfig, ClassifierConfig, ModelConfig, ResidualConfig
from resolvent.models.layer_config import LRUConfig, S4DConfig, S5Config
from resolvent.models.model import Model
from resolvent.models.presets import robustness
from resolvent.runtime.dispatch import use
from resolvent.training import pgd_at, trades
from resolvent.training.step import adversarial
from resolvent.training.step.batch import Batch, criterion

pytest.importorskip("numba")
LAYERS: dict[str, Any] = {
    "s5": S5Config(8),
    "blocks-bilinear": S5Config(12, blocks=3, discretisation="bilinear"),
    "full": S5Config(9, blocks=3, conjugate=False, c_init="complex_normal"),
    "free": S5Config(4, clip=False, init="ptd"),
    "lru": LRUConfig(7),
}
every_layer = pytest.mark.parametrize("name", LAYERS)


def config(layer: Any = LAYERS["s5"], d: int = 6, **more: Any) -> ModelConfig:
    mixing = {
        "mixer": more.pop("mixer", "linear"),
        "activation": more.pop("act", "gelu"),
        "skip": more.pop("skip", True),
    }
    block = ResidualConfig(layer, final_activation=more.pop("final", "none"), **mixing)
    channels = ChannelsConfig(more.pop("channels", 2))
    return replace(robustness("s4"), d_model=d, layers=2, input=channels, block=block, **more)


def model_of(settings: ModelConfig, dtype: torch.dtype = torch.float64) -> Model:
    return stirred(settings, 0.05, dtype)


def modules(model: Model) -> Callable[[Tensor], Tensor]:
    return lambda x: model.from_embedding(model.embed(x))


def simulated(model: Model) -> Callable[[Tensor], Tensor]:
    """Every layer one step after the other, as the recurrence is written."""

    def run(layer: Any, u: Tensor) -> Tensor:
        assert isinstance(layer, S5 | LRU)
        scale = layer.scale if isinstance(layer, S5) else 1.0
        return mimo.simulate(*layer.discrete(), torch.view_as_complex(layer.C), layer.D, u, scale)

    def f(x: Tensor) -> Tensor:
        tower: Any = model.tower
        h = tower.input_norm(tower.entry(x))
        for block in tower.body.blocks:
            inside = block.mixer(block.ads(run(block.layer, block.norm(h) if block.prenorm else h)))
            h = h + inside if block.skip else inside
            h = h if block.prenorm else block.norm(h)
        return model.head(tower.final_norm(h))

    return f


def answers(f: Callable[[Tensor], Tensor], x: Tensor, *own: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Values, and their gradients in x and in `own`."""
    x = x.clone().requires_grad_()
    y = f(x)
    weight = torch.linspace(-1, 1, y.numel(), dtype=x.dtype).view_as(y)
    return y, list(torch.autograd.grad((y * weight).sum(), [x, *own]))


def walk(model: Model, x: Tensor, learnt: bool = False) -> Callable[[Tensor], Tensor]:
    form = lowered.Lowered(model)
    with torch.set_grad_enabled(learnt):
        tables = form.tables(x.shape[1], x.dtype)
    assert tables.plan is not None
    assert bool(tables.plan.sources) == learnt
    return lambda x: form(x, tables)


def compare(model: Model, x: Tensor, *truths: Callable[[Tensor], Tensor], learnt: bool = False) -> None:
    own = list(model.parameters()) if learnt else []
    got, slopes = answers(walk(model, x, learnt), x, *own)
    for truth in truths:
        want, true_slopes = answers(truth, x, *own)
        assert_close(got, want)
        for g, w in zip(slopes, true_slopes, strict=True):
            assert_close(g, w, gradient=True)


def rand(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)


@every_layer
@pytest.mark.parametrize("learnt", [False, True], ids=["still", "learnt"])
def test_layers(name: str, learnt: bool) -> None:
    model = model_of(config(LAYERS[name], ads=AdSConfig("tanh", False)))
    compare(model, rand(9, 27, 2), modules(model), simulated(model), learnt=learnt)


@pytest.mark.parametrize("prenorm", [True, False])
@pytest.mark.parametrize("pooling", ["mean", "last"])
@pytest.mark.parametrize("norm", ["layer", "none"])
@pytest.mark.parametrize("skip", [True, False])
def test_scaffolds(prenorm: bool, pooling: Any, norm: Any, skip: bool) -> None:
    mixer = "none" if pooling == "last" else "linear"
    head = ClassifierConfig(3, pooling)
    model = model_of(
        config(prenorm=prenorm, norm=norm, final_norm=True, head=head, skip=skip, mixer=mixer, final="silu")
    )
    compare(model, rand(3, 19, 2), modules(model), learnt=True)


@pytest.mark.parametrize(
    ("batch", "length", "d", "channels", "states"),
    [(1, 1, 3, 1, 2), (9, 7, 4, 2, 16), (8, 8, 13, 1, 4), (17, 9, 5, 9, 22), (2, 225, 24, 1, 16)],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_odd_shapes(batch: int, length: int, d: int, channels: int, states: int, dtype: torch.dtype) -> None:
    model = model_of(config(S5Config(states), d, channels=channels), dtype)
    compare(model, rand(batch, length, channels, dtype=dtype), modules(model), simulated(model), learnt=True)


def test_a_long_memory_over_thousands_of_steps() -> None:
    """The slowest states of LRU forget by 1 / e in five hundred steps."""
    model = model_of(config(LRUConfig(5, r_min=0.99, r_max=0.998), 4))
    compare(model, rand(2, 3001, 2), modules(model), learnt=True)


@pytest.mark.parametrize("first", [0, 1])
def test_convolutions_and_recurrences_in_one_stack(first: int) -> None:
    model, other = model_of(config()), model_of(config(S4DConfig(4)))
    model.tower.body.blocks[first] = other.tower.body.blocks[first]
    x = rand(9, 30, 2)
    assert model.lowered(x) is not None
    compare(model, x, modules(model), learnt=True)


def test_recurrence_in_torch_operations() -> None:
    """The way of gradients of gradients, against the simulation."""
    layer, x = LRU(5, 3).double(), rand(2, 11, 5)
    f = recurrence(layer.tables(), torch.float64)
    own = list(layer.parameters())
    got, slopes = answers(lambda x: f(x.permute(2, 0, 1)).permute(1, 2, 0), x, *own)
    truth = lambda x: mimo.simulate(*layer.discrete(), torch.view_as_complex(layer.C), layer.D, x, 1.0)  # noqa: E731
    want, true_slopes = answers(truth, x, *own)
    assert_close(got, want)
    for g, w in zip(slopes, true_slopes, strict=True):
        assert_close(g, w, gradient=True)
    assert not any(t.requires_grad for t in vars(f.detached()).values())


def test_gradients_of_gradients() -> None:
    model, x = model_of(config()), rand(2, 6, 2).requires_grad_()
    found = []
    for f in (walk(model, x, learnt=True), modules(model)):
        (g,) = torch.autograd.grad(f(x).square().sum(), x, create_graph=True)
        found.append(torch.autograd.grad(g.square().sum(), [x, *model.tower.parameters()], allow_unused=True))
    for got, want in zip(*found, strict=True):
        if want is not None and want.abs().max() > 0:
            assert_close(got, want, gradient=True)


@pytest.mark.parametrize("name", ["s5", "lru"])
def test_a_sample_does_not_depend_on_its_cohort_or_on_the_threads(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Features and gradients, bit by bit; of logits alone torch makes those of one sample by another routine."""
    from resolvent.lowering.cpu import lanes_numba

    model, x = model_of(config(LAYERS[name]), torch.float32), rand(21, 50, 2, dtype=torch.float32)
    threads, slope = torch.get_num_threads(), torch.linspace(-1, 1, 21 * 6).view(21, 6)
    with torch.no_grad():
        plan = lowered.Lowered(model).tables(50, torch.float32).plan
    assert plan is not None

    def passed(lo: int, hi: int) -> tuple[Tensor, Tensor]:
        at = x[lo:hi].clone().requires_grad_()
        y = lanes.run_lanes(at, plan, modules(model))
        return y.detach(), torch.autograd.grad(y, at, slope[lo:hi])[0]

    try:
        torch.set_num_threads(1 if threads > 1 else 2)
        whole = passed(0, 21)
        torch.set_num_threads(threads)
        for lo, hi in ((0, 21), (0, 1), (5, 6), (19, 21), (3, 12)):
            assert all(torch.equal(a, b[lo:hi]) for a, b in zip(passed(lo, hi), whole, strict=True))
        monkeypatch.setattr(lanes_numba, "ROOM", 1)  # piece by piece
        with torch.no_grad():
            assert torch.equal(lanes.run_lanes(x, plan, modules(model)), whole[0])
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_sample_that_is_not_finite_spoils_no_other(bad: float) -> None:
    model, x = model_of(config()), rand(9, 20, 2)
    spoilt = x.clone()
    spoilt[1, 4] = bad
    with model.frozen():
        want, (slope,) = answers(model, x)
        got, (spoilt_slope,) = answers(model, spoilt)
    rest = [i for i in range(9) if i != 1]
    assert got[1].isnan().all()
    assert torch.equal(got[rest], want[rest])
    assert torch.equal(spoilt_slope[rest], slope[rest])


# -- steps of an attack, and training ----------------------------------------------------------------------------------


def batch_of(b: int, l: int, classes: int = 5) -> Batch:
    return Batch(rand(b, l, 2), torch.arange(b) % classes, None, Draws(0, torch.arange(b)))


@every_layer
def test_all_steps_of_an_attack_at_once(name: str) -> None:
    model = stirred(config(LAYERS[name], head=ClassifierConfig(5, "mean")), 0.2)
    batch, objective = batch_of(19, 21), pgd_at(Threat("linf", 0.2, (0, 1)), steps=3, step_size=0.1)
    form = lowered.Lowered(model)
    with torch.no_grad():
        tables = form.tables(21, torch.float64)
    size = torch.full((19, 1, 1), 0.1, dtype=torch.float64)
    box = (batch.x - 0.2).clamp(min=0.0), (batch.x + 0.2).clamp(max=1.0)
    got = form.run_loop(batch.x, Path(batch.y, *box, size, 3), tables)
    ascent = objective.inner.ascent(batch.fitted(objective.inner.threat), batch.x)
    want = adversarial.rise(modules(model), ascent, batch.x, (criterion, batch.y))
    assert got is not None
    assert (got != batch.x).any()
    assert_close(got, want)


@pytest.mark.parametrize("make", [pgd_at, trades])
def test_training_takes_it(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = stirred(config(head=ClassifierConfig(5, "mean")), 0.2)
    batch, objective = batch_of(10, 16), make(Threat("linf", 0.2, (0, 1)), steps=3)
    check_training(model, batch, objective, monkeypatch)
    with use("torch"):
        assert model.lowered(batch.x) is None


# -- where it runs -----------------------------------------------------------------------------------------------------


def test_what_has_no_walk_runs_through_the_modules() -> None:
    x = rand(8, 30, 2)
    assert model_of(config()).lowered(x) is not None
    none = {
        "both ways": config(S5Config(8, bidirectional=True)),
        "glu": config(mixer="glu"),
        "rms": config(norm="rms"),
        "shift": config(ads=AdSConfig("relu", True)),
        "largest": config(head=ClassifierConfig(3, "max")),
    }
    for name, settings in none.items():
        model = model_of(settings)
        assert model.lowered(x) is None, name
        assert_close(model(x), modules(model)(x))
    with use("torch"):
        assert model_of(config()).lowered(x) is None


def served(model: Model, batch: int, length: int) -> bool:
    return model.lowered(torch.zeros(batch, length, 2, dtype=torch.float64)) is not None


def test_which_lengths_and_batches_walk() -> None:
    model, mixed = model_of(config()), model_of(config())
    mixed.tower.body.blocks[0] = model_of(config(S4DConfig(4))).tower.body.blocks[0]
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        cases = [(8, 15), (8, 16), (7, 300), (8, lowered.RECURRED), (8, lowered.RECURRED + 1)]
        assert [served(model, *case) for case in cases] == [False, True, False, True, False]
        assert [served(mixed, 8, l) for l in (lowered.WALKED, lowered.WALKED + 1)] == [True, False]
        with model.frozen():
            assert [served(model, *case) for case in cases] == [True, True, True, True, False]
        torch.set_num_threads(8)
        assert [served(model, b, 100) for b in (31, 32)] == [False, True]
    finally:
        torch.set_num_threads(threads)


def test_kernels_are_compiled_anew_when_their_pieces_change(tmp_path: Any) -> None:
    from resolvent.lowering.cpu.ops_numba import stamp

    one, other = ModuleType("one"), ModuleType("other")
    for module in (one, other):
        module.__file__ = str(tmp_path / module.__name__)
        (tmp_path / module.__name__).write_text("a = 1", encoding="utf-8")
    before = stamp(one, other)
    assert stamp(one, other) == before
    (tmp_path / "other").write_text("a = 2", encoding="utf-8")
    assert stamp(one, other) != before
    (tmp_path / "other").unlink()
    assert stamp(one, other) == 0


def test_plan_says_what_is_kept() -> None:
    form = lowered.Lowered(model_of(config()))
    tables = form.tables(6, torch.float64)
    assert tables.plan is not None
    still = tables.detached().plan
    assert still is not None
    assert (tables.plan.traces, still.traces) == (2, 0)
    assert still.saved < tables.plan.saved
    assert lanes.plan(tables.parts, torch.float64) is not None
