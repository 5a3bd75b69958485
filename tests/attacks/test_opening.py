"""How an attack begins: the same in inference mode, no graph left behind, and radii that know no end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from resolvent.attacks import (
    APGD,
    FAB,
    PGD,
    HopSkipJump,
    RegressionSettings,
    Square,
    Threat,
    autoattack,
    dlr,
    evaluate,
    evaluate_regression,
    kl,
    targeted_dlr,
)
from resolvent.scan import use

ATTACKS = [PGD(steps=3), APGD(steps=4), APGD(targeted_dlr, steps=4, targets=2), FAB(steps=3), Square(n_queries=20)]
IDS = [attack.name for attack in ATTACKS]


def drawn() -> tuple[Any, Tensor, Tensor]:
    """A linear model, points, and the classes that it gives them."""
    g = torch.Generator().manual_seed(0)
    x, w = torch.rand(6, 5, generator=g), torch.randn(5, 4, generator=g)

    def f(x: Tensor) -> Tensor:
        return (x - 0.5) @ w

    return f, x, f(x).argmax(1)


@pytest.mark.parametrize("attack", ATTACKS, ids=IDS)
def test_inference_mode_hides_no_gradient(attack: Any) -> None:
    f, x, y = drawn()
    want = attack(f, x, y, Threat("l2", 0.3))
    with torch.inference_mode():
        got = attack(f, x, y, Threat("l2", 0.3))
        radii = torch.full((6,), 0.3, dtype=torch.float64)  # of float32 it would be another number
        own = attack(f, x.clone(), y.clone(), Threat("l2", radii))  # tensors made here are another kind
    assert bool(want.success.any())
    for found in (got, own):
        assert torch.equal(found.x_adv, want.x_adv)
        assert found.flags == ()
        assert not found.x_adv.is_inference()


@pytest.mark.parametrize("attack", [*ATTACKS, HopSkipJump(iterations=2, queries=10)], ids=[*IDS, "hop-skip-jump"])
def test_a_model_may_write_to_its_input(attack: Any) -> None:
    """Scaling in place, as of data that nobody else needs: x stays, and points are as for a model that copies."""
    f, x, y = drawn()
    held, threat = x.clone(), Threat("l2", 0.3)
    found = attack(lambda u: f(u.mul_(2.0).sub_(0.5)), x, y, threat)
    assert torch.equal(x, held)
    assert torch.equal(found.x_adv, attack(lambda u: f(2 * u - 0.5), x, y, threat).x_adv)


def test_references_from_inference_mode() -> None:
    """An objective without a closed form: autograd keeps what it is handed."""
    f, x, y = drawn()
    attack = PGD(objective=kl, steps=3)
    want = attack(f, x, y, Threat("linf", 0.1), labels=(f(x),))
    with torch.inference_mode():
        got = attack(f, x, y, Threat("linf", 0.1), labels=(f(x),))
    assert torch.equal(got.x_adv, want.x_adv)
    assert not torch.equal(got.x_adv, x)


def test_autoattack_in_inference_mode() -> None:
    f, x, y = drawn()
    attacks = (APGD(steps=4), FAB(steps=3, targets=2))
    want = autoattack(f, x, y, Threat("linf", 0.15), attacks)
    with torch.inference_mode():
        got = autoattack(f, x.clone(), y.clone(), Threat("linf", 0.15), attacks)
    assert torch.equal(got.x_adv, want.x_adv)
    assert got.accuracy == want.accuracy < 1


@pytest.mark.parametrize("attack", ATTACKS, ids=IDS)
def test_no_graph_is_left_behind(attack: Any) -> None:
    f, x, y = drawn()
    clean = f(x.clone().requires_grad_())
    eps = torch.full((6,), 0.3, requires_grad=True)
    found = attack(f, x, y, Threat("l2", eps, (torch.zeros(5, requires_grad=True), torch.ones(5))), clean_logits=clean)
    assert not any(v.requires_grad for v in (found.x_adv, found.loss, found.margin, found.norm))
    assert bool(found.success.any())


@pytest.mark.parametrize("attack", ATTACKS[1:], ids=IDS[1:])  # PGD looks for itself
def test_a_row_of_clean_logits_for_each_sample(attack: Any) -> None:
    f, x, y = drawn()
    with pytest.raises(ValueError, match=r"one row per sample \(6\), got \(4, 4\)"):
        attack(f, x, y, Threat("linf", 0.1), clean_logits=f(x)[:4])


@pytest.mark.parametrize("eps", [1e20, 3e38, 1e300])
@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
@pytest.mark.parametrize("attack", [*ATTACKS[1:], APGD(steps=20)], ids=[*IDS[1:], "long"])  # PGD is weak in L1
def test_a_radius_without_end(attack: Any, norm: Any, eps: float) -> None:
    """Its square is beyond float32; the bounds alone hold the attacker, and every sample of a linear model falls."""
    f, x, y = drawn()
    threat = Threat(norm, eps, (-3.0, 3.0))
    found = attack(f, x, y, threat)
    assert bool(found.success.all())
    assert found.flags == ()
    assert bool(threat.check(x).contains(found.x_adv, x).all())


def test_samples_without_values_are_refused() -> None:
    with pytest.raises(ValueError, match=r"one value in it, got shape \(3, 0\)"):
        Square(n_queries=5)(drawn()[0], torch.zeros(3, 0), torch.zeros(3, dtype=torch.int64), Threat("linf", 0.1))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
def test_a_threat_asked_by_itself_takes_half_precision(dtype: torch.dtype) -> None:
    x = torch.tensor([[0.0, 0.5]], dtype=dtype)
    assert Threat("linf", 0.25).project(x + 1, x).tolist() == [[0.25, 0.75]]
    assert Threat("linf", 1e20, (0.0, 2.0)).project(x + 5, x).tolist() == [[2.0, 2.0]]


@pytest.fixture
def doubles() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.mark.usefixtures("doubles")
@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
@pytest.mark.parametrize("attack", ATTACKS, ids=IDS)
def test_the_default_dtype_is_not_asked(attack: Any, norm: Any) -> None:
    """Samples in float32 stay so in torch's operations, whatever new tensors are made of."""
    w = torch.linspace(-1, 1, 20, dtype=torch.float32).sin().view(5, 4)
    x = torch.linspace(0, 1, 30, dtype=torch.float32).cos().view(6, 5)
    y, threat = (x @ w).argmax(1), Threat(norm, 0.2, (0.0, 1.0))
    with use("torch"):
        got = attack(lambda x: x @ w, x, y, threat)
        torch.set_default_dtype(torch.float32)
        want = attack(lambda x: x @ w, x, y, threat)
    assert got.x_adv.dtype == torch.float32
    assert torch.equal(got.x_adv, want.x_adv)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_samples_of_a_half_type_are_evaluated(dtype: torch.dtype) -> None:
    """The points lie between its numbers: kept in it they would leave the ball."""
    torch.manual_seed(0)
    x, threat = torch.rand(6, 12).to(dtype), Threat("linf", 0.01, (0.0, 1.0))
    model, line = nn.Linear(12, 4).to(dtype), nn.Linear(12, 1).to(dtype)
    y = model(x).argmax(1)
    found = autoattack(model, x, y, threat, "fast")
    assert found.x_adv.dtype == torch.float32
    assert ((found.x_adv - x.float()).abs() <= 0.01).all()
    assert torch.equal(found.prediction, model(found.x_adv.to(dtype)).argmax(1))
    curve = evaluate(model, (x, y), threat, "fast", eps=[0.005, 0.01])
    assert curve.evaluations[1].result.robust.tolist() == found.robust.tolist()
    real = evaluate_regression(line, (x, line(x).detach()), threat, settings=RegressionSettings(thorough=False))
    assert ((real.x_adv - x.float()).abs() <= 0.01).all()


def test_a_loss_of_labels_is_aimed_and_an_aimed_loss_needs_a_target() -> None:
    torch.manual_seed(0)
    model, x = nn.Linear(6, 5), torch.rand(4, 6)
    y, threat = model(x).argmax(1), Threat("linf", 1.0)
    target = (y + 1) % 5
    aimed = PGD(objective=dlr)(model, x, y, threat, target=target)
    same = PGD(objective=targeted_dlr)(model, x, y, threat, target=target)
    assert torch.equal(aimed.x_adv, same.x_adv)
    assert torch.equal(aimed.success, model(aimed.x_adv).argmax(1) == target)
    with pytest.raises(ValueError, match="targeted_dlr needs a target"):
        PGD(objective=targeted_dlr)(model, x, y, threat)
    with pytest.raises(ValueError, match=r"got torch\.complex64"):
        PGD()(model, x, y + 0j, threat)


def test_infinity_is_no_answer() -> None:
    """HopSkipJump took the first class of infinite outputs for the model's choice."""
    x, y = torch.full((4, 6), 0.5), torch.ones(4, dtype=torch.int64)

    def cracked(x: Tensor) -> Tensor:
        z = torch.stack([x[:, 1] - 2.0, 0 * x[:, 1]], 1)
        return torch.where(x[:, :1] > 0.55, torch.inf, z)

    found = HopSkipJump(iterations=1, queries=5, starts=8)(cracked, x, y, Threat("linf", 0.2, (0.0, 1.0)))
    assert found.non_finite.all()
    assert torch.equal(found.x_adv, x)
