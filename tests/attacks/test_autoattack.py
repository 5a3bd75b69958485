"""AutoAttack as a whole: worst case per sample, any shape, one result for any batch size, errors before work."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from victims import BOX, Recurrent, labelled, sequences

from resolvent.attacks import APGD, PGD, AttackResult, Threat, targeted_dlr
from resolvent.attacks.autoattack import presets as home
from resolvent.attacks.autoattack.attack import AutoAttackResult, autoattack
from resolvent.attacks.square.attack import Square

QUICK = (APGD(steps=6), APGD(targeted_dlr, steps=6, targets=3), Square(n_queries=30))


def case(n: int = 24, wrong: int = 2) -> tuple[Recurrent, Tensor, Tensor]:
    model = Recurrent()
    x = sequences(n)
    return model, x, labelled(model, x, wrong)


def test_the_result_on_sequences_holds_together() -> None:
    model, x, y = case()
    result = autoattack(model, x, y, BOX, QUICK)
    assert result.stages == ("clean", "apgd-ce", "apgd-t", "square")
    assert result.clean_accuracy == pytest.approx(22 / 24)
    assert 0 < result.accuracy < result.clean_accuracy  # the case is neither trivial nor hopeless
    table = list(result.table.values())
    assert table == sorted(table, reverse=True)
    assert table[-1] == result.accuracy
    with torch.no_grad():
        logits = model.eval()(result.x_adv)
    assert torch.equal(logits.argmax(1) == y, result.robust)
    assert torch.equal(result.robust, result.broken_by == -1)
    assert (result.broken_by[:2] == 0).all()
    assert torch.equal(result.x_adv[:2], x[:2])
    assert BOX.check(x).contains(result.x_adv, x).all()
    assert torch.equal(result.margin > 0, ~result.robust)
    assert result.broken_by_name(0) == "clean"
    names = {result.broken_by_name(i) for i in range(len(result))}
    assert None in names


def test_each_attack_sees_only_what_still_stands() -> None:
    model, x, y = case()
    result = autoattack(model, x, y, BOX, QUICK)
    assert (result.queries[:2] == 1).all()  # the clean pass alone
    first = result.broken_by == 1
    assert first.any()
    assert (result.queries[first] <= 1 + 7).all()
    assert (result.queries[result.robust] > 30).all()


@pytest.mark.parametrize("batch_size", [1, 3, None])
def test_the_batch_size_changes_nothing(batch_size: int | None) -> None:
    """Random numbers are per sample; only rounding is left, which moves no verdict here."""
    model, x, y = case(10)
    brief = (APGD(steps=6), Square(n_queries=10))
    whole = autoattack(model.double(), x.double(), y, BOX, brief, batch_size=7)
    part = autoattack(model, x.double(), y, BOX, brief, batch_size=batch_size)
    assert torch.equal(part.broken_by, whole.broken_by)
    assert torch.equal(part.queries, whole.queries)
    assert torch.allclose(part.x_adv, whole.x_adv, atol=1e-10)


def test_the_order_of_samples_follows_their_ids_only() -> None:
    model, x, y = case()
    again = autoattack(model, x, y, BOX, QUICK)
    other = autoattack(model, x, y, BOX, QUICK, seed=1)
    assert torch.equal(autoattack(model, x, y, BOX, QUICK).x_adv, again.x_adv)
    assert not torch.equal(other.x_adv, again.x_adv)


@pytest.mark.parametrize("shape", [(9,), (5, 2), (2, 4, 4), (1, 3, 2, 2)])
def test_any_input_shape(shape: tuple[int, ...]) -> None:
    x = torch.rand(6, *shape)
    model = nn.Sequential(nn.Flatten(), nn.Linear(x[0].numel(), 3))
    y = labelled(model, x, wrong=1)
    result = autoattack(model, x, y, Threat("l2", 0.2, bounds=(0.0, 1.0)), QUICK)
    assert result.x_adv.shape == x.shape
    assert len(result) == 6


def test_modes_and_gradients_are_left_alone() -> None:
    model, x, y = case(8)
    model.train()
    model.noise.eval()
    autoattack(model, x, y, BOX, QUICK)
    assert model.training
    assert not model.noise.training
    assert all(p.grad is None and p.requires_grad for p in model.parameters())


def test_any_callable_will_do() -> None:
    model, x, y = case(8)
    model.eval()
    result = autoattack(lambda v: model(v), x, y, BOX, QUICK)
    assert torch.equal(result.x_adv, autoattack(model, x, y, BOX, QUICK).x_adv)


def test_the_summary_names_everything() -> None:
    model, x, y = case(8)
    text = str(autoattack(model, x, y, BOX, QUICK))
    for word in ("apgd-ce", "apgd-t", "square", "steps 6", "targets 3", "n_queries 30", "linf", "0.03", "8 samples"):
        assert word in text
    assert "no flags" in text


def test_the_same_attack_twice_draws_new_numbers() -> None:
    model, x, y = case(12)
    result = autoattack(model, x, y, BOX, (PGD(steps=1), PGD(steps=1)))
    assert result.stages == ("clean", "pgd-1", "pgd-1-2")


def test_everything_broken_is_no_error() -> None:
    model, x, y = case(8, wrong=0)
    result = autoattack(model, x, y, Threat("linf", 1.0), QUICK)
    assert result.accuracy == 0.0
    nothing = autoattack(model, x, (y + 1) % 4, BOX, QUICK)
    assert nothing.clean_accuracy == 0.0
    assert torch.equal(nothing.x_adv, x)


def test_eps_zero_leaves_the_clean_accuracy() -> None:
    model, x, y = case()
    result = autoattack(model, x, y, Threat("linf", 0.0), QUICK)
    assert result.accuracy == result.clean_accuracy
    assert torch.equal(result.x_adv, x)


def test_eps_and_masks_per_sample() -> None:
    model, x, y = case()
    eps = torch.linspace(0, 0.1, len(x))
    lengths = torch.arange(len(x)) % 6 + 1
    result = autoattack(model, x, y, Threat("linf", eps).with_lengths(lengths, 6), QUICK, batch_size=5)
    assert (result.norm <= eps + 1e-6).all()
    beyond = torch.arange(6) >= lengths[:, None]
    assert torch.equal(result.x_adv[beyond], x[beyond])


def test_joined_parts_equal_the_whole() -> None:
    from resolvent.attacks.autoattack.evaluate import Evaluation, EvaluationSettings, evaluate

    model, x, y = case()
    model, x = model.double(), x.double()
    whole = evaluate(model, (x, y), BOX, QUICK)
    parts = [evaluate(model, (x, y), BOX, QUICK, settings=EvaluationSettings(shard=(i, 3))) for i in (2, 0, 1)]
    joined = Evaluation.joined(parts)
    assert torch.equal(joined.result.broken_by, whole.result.broken_by)
    assert torch.allclose(joined.result.x_adv, whole.result.x_adv, atol=1e-10)
    assert [r.index for r in joined.records] == list(range(len(x)))
    assert joined.accuracy == whole.accuracy


class Liar:
    """An attack that claims success, or leaves the ball."""

    name = "liar"

    def __init__(self, step: float) -> None:
        self.step = step

    def __call__(self, f: Any, x: Tensor, y: Tensor, threat: Threat, **_: Any) -> AttackResult:
        b = x.shape[0]
        none, yes = torch.zeros(b, dtype=torch.int64), torch.ones(b, dtype=torch.bool)
        return AttackResult(x + self.step, yes, none + 1.0, none + 1.0, none + 1.0, none, none, ~yes, ~yes, "liar")


def test_a_false_claim_is_an_error() -> None:
    model, x, y = case(8)
    with pytest.raises(RuntimeError, match="verdict changes"):
        autoattack(model, x, y, Threat("linf", 0.01), (Liar(0.0),))  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="break the threat"):
        autoattack(model, x, y, Threat("linf", 0.01), (Liar(0.02),))  # type: ignore[arg-type]


class ByBatch(nn.Module):
    """An answer that depends on who else is in the batch."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        logits = self.inner(x)
        return logits - logits.mean(0) * (x.shape[0] < 20)


def test_a_model_that_depends_on_the_batch_is_an_error() -> None:
    model, x, y = case(24, wrong=2)
    with pytest.raises(RuntimeError, match="depends on the batch"):
        autoattack(ByBatch(model), x, y, BOX, (PGD(steps=3, stop=True),))


# -- bad input ---------------------------------------------------------------------------------------------------------


class Never:
    """An attack that must not be reached."""

    name = "never"

    def __call__(self, *_: Any, **__: Any) -> AttackResult:
        raise AssertionError("work was begun")


def with_output(change: Any) -> Any:
    model, _, _ = case()
    return lambda x: change(model.eval()(x))


X, Y = sequences(8), torch.zeros(8, dtype=torch.int64)
GOOD = with_output(lambda z: z)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"y": Y + 4}, ValueError, r"labels must lie in 0 \.\. 3"),
        ({"y": Y - 1}, ValueError, "labels"),
        ({"y": Y.float()}, TypeError, "class numbers"),
        ({"y": Y[:3]}, ValueError, r"expected x \(b, ...\)"),
        ({"y": "labels"}, TypeError, "tensors"),
        ({"x": X[:0], "y": Y[:0]}, ValueError, "no sample"),
        ({"x": X.long()}, TypeError, "embedding"),
        ({"x": X.masked_fill(X > 0.9, torch.nan)}, ValueError, "NaN or infinity, first in sample"),
        ({"x": X + 1}, ValueError, "bounds"),
        ({"f": with_output(lambda z: z * torch.nan)}, ValueError, "NaN or infinity on 8 of 8"),
        ({"f": with_output(lambda z: z.softmax(1))}, ValueError, "probabilities"),
        ({"f": with_output(lambda z: z[:, :1])}, ValueError, "at least 2 classes"),
        ({"f": with_output(lambda z: z[:, None].expand(-1, 6, 4))}, ValueError, "logits"),
        ({"f": with_output(lambda z: z.argmax(1))}, ValueError, "real outputs"),
        ({"f": "model"}, TypeError, "callable"),
        ({"threat": 0.03}, TypeError, "Threat"),
        ({"preset": "standrad"}, ValueError, "did you mean 'standard'"),
        ({"preset": ()}, ValueError, "empty"),
        ({"preset": (3,)}, TypeError, "tuple of attacks"),
        ({"seed": "0"}, TypeError, "seed"),
        ({"seed": -1}, ValueError, "seed"),
        ({"batch_size": 0}, ValueError, "batch_size"),
        ({"batch_size": "8"}, TypeError, "batch_size"),
    ],
)
def test_bad_input_is_told_before_any_work(given: dict[str, Any], error: type[Exception], message: str) -> None:
    call: dict[str, Any] = {"f": GOOD, "x": X, "y": Y, "threat": BOX, "preset": (Never(),), **given}
    with pytest.raises(error, match=message):
        autoattack(**call)


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: Threat("linf", -0.1), ValueError),
        (lambda: Threat("linf", "8/255"), TypeError),  # type: ignore[arg-type]
        (lambda: Threat("linf", float("nan")), ValueError),
        (lambda: Threat("l3", 0.1), ValueError),  # type: ignore[arg-type]
        (lambda: Threat("linf", 0.1, bounds=(1.0, 0.0)), ValueError),
    ],
)
def test_a_bad_threat_cannot_be_made(make: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        make()


# -- presets -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "stages"),
    [
        ("standard", ["apgd-ce", "apgd-t", "fab-t", "square"]),
        ("qi2024", ["apgd-ce", "apgd-dlr", "fab", "square"]),
        ("plus", ["apgd-ce", "apgd-dlr", "fab", "square", "apgd-t", "fab-t"]),
        ("rand", ["apgd-ce", "apgd-dlr"]),
        ("fast", ["apgd-ce", "apgd-t", "square"]),
    ],
)
def test_presets_list_what_their_papers_list(name: str, stages: list[str]) -> None:
    for norm in ("linf", "l2", "l1"):
        assert [attack.name for attack in home.choose_attacks(name, Threat(norm, 0.1))] == stages


def test_published_budgets() -> None:
    ce, targeted, fab, square = (vars(a) for a in home.standard("linf"))
    assert (ce["steps"], ce["restarts"]) == (100, 1)
    assert (targeted["steps"], targeted["restarts"], targeted["targets"]) == (100, 1, 9)
    assert (fab["steps"], fab["restarts"], fab["targets"]) == (100, 1, 9)
    assert (square["n_queries"], square["restarts"], square["p_init"], square["stretch"]) == (5000, 1, 0.8, False)
    ce, targeted, _, _ = (vars(a) for a in home.standard("l1"))
    assert (ce["restarts"], targeted["targets"]) == (5, 5)
    assert all(vars(a)["passes"] == 20 for a in home.rand())


def test_every_preset_runs_on_sequences() -> None:
    x = sequences(3, l=3, d=2)
    model = Recurrent(d=2, n=3)
    y = labelled(model, x, wrong=0)
    for name in ("qi2024", "rand", "fast"):
        result = autoattack(model, x, y, Threat("linf", 0.3, bounds=(0.0, 1.0)), name)
        assert isinstance(result, AutoAttackResult)
        assert result.preset == name
        assert len(result.attacks) == len(result.stages) - 1


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
@pytest.mark.parametrize("preset", ["standard", "qi2024", "plus", "rand"])
def test_every_preset_runs_as_it_is(preset: str, norm: Any) -> None:
    """With its full budgets, on a few sequences: each norm's list, and no attack leaves the threat."""
    model, x, y = case(6, wrong=1)
    threat = Threat(norm, {"linf": 0.02, "l2": 0.05, "l1": 0.15}[norm], bounds=(0.0, 1.0))
    result = autoattack(model, x, y, threat, preset)
    assert result.stages[1:] == tuple(attack.name for attack in home.choose_attacks(preset, threat))
    assert threat.check(x).contains(result.x_adv, x).all()
    assert 0 < result.accuracy <= autoattack(model, x, y, threat, QUICK).accuracy
    assert {flag.kind for flag in result.flags} <= {"borderline"}
    stands = int(result.queries[result.robust].min())
    assert stands > {"standard": 5500, "qi2024": 5300, "plus": 7000, "rand": 4000}[preset]  # 3 targets
