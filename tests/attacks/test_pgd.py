"""PGD and FGSM: equal to foolbox from the same start; obey the threat; leave the model as they found it."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from image_victim import images, trained
from torch import Tensor, nn

from helpers import assert_close
from resolvent.attacks import (
    APGD,
    FGSM,
    PGD,
    Draws,
    Threat,
    Victim,
    ascend,
    cross_entropy,
    dlr,
    fgsm,
    kl,
    pgd,
    squared_deviation,
    targeted_dlr,
)
from resolvent.attacks.rows import prepare

NORMS = ("linf", "l2", "l1")
RADIUS = {"linf": 0.1, "l2": 0.8, "l1": 4.0}


def small(shape: tuple[int, ...] = (7, 3), classes: int = 4) -> nn.Module:
    n = int(torch.tensor(shape).prod())
    return nn.Sequential(nn.Flatten(), nn.Linear(n, 16), nn.Tanh(), nn.Dropout(0.3), nn.Linear(16, classes)).eval()


def labelled(model: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        return model(x).argmax(1)


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("start", [False, True])
def test_equals_foolbox(norm: Any, start: bool) -> None:
    foolbox = pytest.importorskip("foolbox", reason="foolbox comes with the parity extra")
    (x, y), eps = images(40, 3), {"linf": 0.05, "l2": 0.5}[norm]
    net, x = deepcopy(trained()).double(), x.double()  # in float32 directions of small gradients differ by more
    # foolbox scales into the ball and then clips; ours is the nearest point of both: the same where the L2 box is wide.
    bounds = (0.0, 1.0) if norm == "linf" else (-50.0, 50.0)
    threat = Threat(norm, eps, bounds)
    first = threat.random_start(x, Draws.of(x).fold("pgd").fold(0)) if start else x
    make = foolbox.attacks.LinfPGD if norm == "linf" else foolbox.attacks.L2PGD
    theirs = make(abs_stepsize=eps / 4, steps=12, random_start=start)
    theirs.get_random_start = lambda x0, epsilon: _eager(first)
    want = theirs.run(foolbox.PyTorchModel(net, bounds=bounds, device="cpu"), x, y, epsilon=eps)
    got = pgd(net, x, y, threat, steps=12, step_size=eps / 4, random_start=start, keep="last")
    assert_close(got.x_adv, want)
    assert got.success.any()


def _eager(x: Tensor) -> Any:
    import eagerpy

    return eagerpy.astensor(x)


@given(
    st.sampled_from(NORMS),
    st.sampled_from([(5,), (6, 3), (2, 5, 4)]),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["pgd", "last", "fgsm", "apgd", "dlr", "targeted", "loss"]),
    st.integers(0, 10**6),
)
@settings(max_examples=40, deadline=None)
def test_every_result_obeys_the_threat_and_says_the_truth(
    norm: Any, shape: tuple[int, ...], boxed: bool, masked: bool, kind: str, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(5, *shape, generator=generator)
    model = small(shape, 5)
    y = labelled(model, x)
    eps = RADIUS[norm] * torch.rand(5, generator=generator)
    mask = torch.rand(5, shape[0], generator=generator) < 0.7 if masked else None
    threat = Threat(norm, eps, (0.0, torch.ones(shape[-1])) if boxed else None, mask)
    attack: Any = {
        "pgd": PGD(5, restarts=2, stop=bool(seed % 2)),
        "last": PGD(5, keep="last"),
        "fgsm": FGSM(),
        "apgd": APGD(steps=12),
        "dlr": APGD(dlr, steps=6, restarts=2),
        "targeted": APGD(targeted_dlr, steps=6, targets=9, at_once=2),
        "loss": APGD(steps=7, stop=False),
    }[kind]
    found = attack(model, x, y, threat, draws=Draws.of(x, seed))
    assert threat.check(x).contains(found.x_adv, x, 1e-6).all()
    with torch.no_grad():
        logits = model(found.x_adv)
    assert torch.equal(found.success, logits.argmax(1) != y)
    assert_close(found.margin, logits.masked_fill(nn.functional.one_hot(y, 5).bool(), -torch.inf).amax(1)
                 - logits.gather(1, y[:, None])[:, 0])  # fmt: skip
    assert_close(found.norm, threat.norm_of(found.x_adv - x))
    assert (found.queries >= 1).all()
    assert (found.loss >= -1e30).all()


@pytest.mark.parametrize("random_start", [False, True])
def test_no_steps_is_the_identity(random_start: bool) -> None:
    x, model = torch.rand(3, 7, 3), small()
    found = pgd(model, x, labelled(model, x), Threat("l2", 1.0), steps=0, random_start=random_start, restarts=3)
    assert torch.equal(found.x_adv, x)
    assert not found.success.any()
    assert found.queries.tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    "attack", [PGD(4), FGSM(), APGD(steps=4), APGD(dlr, steps=4), APGD(targeted_dlr, steps=4, targets=3)]
)
@pytest.mark.parametrize("norm", NORMS)
def test_a_constant_model_gives_the_zero_gradient_flag(attack: Any, norm: Any) -> None:
    x, y = torch.rand(4, 6), torch.zeros(4, dtype=torch.int64)
    for constant in (
        lambda x: torch.zeros(x.shape[0], 5),
        lambda x: torch.arange(5.0).flip(0).expand(x.shape[0], 5) + 0 * x.sum(1, keepdim=True),
    ):
        found = attack(constant, x, y, Threat(norm, 0.1, (0.0, 1.0)))
        assert found.zero_gradient.all()
        assert found.flags == ("zero_gradient",)
        for value in (found.x_adv, found.loss, found.margin, found.norm):
            assert torch.isfinite(value).all()


@pytest.mark.parametrize("attack", [PGD(4), PGD(4, keep="last"), FGSM(), APGD(steps=4)])
def test_nan_is_flagged_and_never_returned(attack: Any) -> None:
    x, y = torch.rand(4, 6) * 0.5, torch.zeros(4, dtype=torch.int64)

    def breaks(x: Tensor) -> Tensor:  # NaN as soon as an entry passes 0.55
        z = torch.stack([10 - x.sum(1), x.sum(1)], 1)
        return torch.where(x.amax(1, keepdim=True) > 0.55, torch.nan, z)

    x[0] = 0.5
    found = attack(breaks, x, y, Threat("linf", 0.2, (0.0, torch.tensor(1.0))), draws=Draws.of(x))
    assert found.non_finite[0]
    assert not found.success.any()
    assert not torch.isnan(found.loss).any()
    assert torch.isfinite(breaks(found.x_adv)).all()  # x itself where nothing else was sound


def test_the_model_is_left_as_it_was() -> None:
    model, x = small().train(), torch.rand(4, 7, 3)
    model[3].eval()  # a mode of its own
    model[1].bias.requires_grad_(False)
    modes, needs = [m.training for m in model.modules()], [p.requires_grad for p in model.parameters()]
    seen = []
    model.register_forward_hook(lambda m, *_: seen.append(m.training))
    pgd(model, x, torch.zeros(4, dtype=torch.int64), Threat("linf", 0.1))
    with pytest.raises(ValueError, match=r"labels must lie in 0 \.\. 3"):
        pgd(model, x, torch.full((4,), 4), Threat("linf", 0.1))
    assert seen
    assert not any(seen)
    assert [m.training for m in model.modules()] == modes
    assert [p.requires_grad for p in model.parameters()] == needs
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("wrapped", [False, True], ids=["itself", "inside"])
def test_frozen_is_entered_where_it_is_offered(wrapped: bool) -> None:
    class Offers(nn.Linear):
        depth = 0

        def frozen(self) -> Any:
            from contextlib import contextmanager

            @contextmanager
            def context() -> Any:
                self.depth += 1
                yield
                self.depth -= 1

            return context()

        def forward(self, x: Tensor) -> Tensor:
            assert self.depth == 1
            return super().forward(x)

    model = Offers(6, 3)
    f = nn.Sequential(nn.Identity(), nn.Sequential(model)) if wrapped else model
    pgd(f, torch.rand(2, 6), torch.zeros(2, dtype=torch.int64), Threat("linf", 0.1))
    assert model.depth == 0


def test_the_method_of_a_module_is_attacked_in_evaluation_mode() -> None:
    class Embedded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop, self.out = nn.Dropout(0.5), nn.Linear(6, 3)

        def rest(self, e: Tensor) -> Tensor:
            assert not self.training
            assert not self.out.weight.requires_grad
            return self.out(self.drop(e))

    model, e = Embedded(), torch.rand(2, 6)
    first, again = (pgd(model.rest, e, torch.zeros(2, dtype=torch.int64), Threat("linf", 0.1)).x_adv for _ in range(2))
    assert torch.equal(first, again)
    assert model.training
    assert model.out.weight.requires_grad


def test_a_module_whose_frozen_means_something_else_is_attacked_as_it_is() -> None:
    class Other(nn.Linear):
        def frozen(self) -> bool:
            return False

    x, y = torch.rand(2, 6), torch.zeros(2, dtype=torch.int64)
    assert pgd(nn.Sequential(Other(6, 3)), x, y, Threat("linf", 0.1)).x_adv.shape == x.shape


@pytest.mark.parametrize("attack", [PGD(4, restarts=2), APGD(steps=8), APGD(targeted_dlr, steps=5, targets=3)])
def test_batches_do_not_change_the_result(attack: Any) -> None:
    x = torch.rand(9, 7, 3, dtype=torch.float64)
    model = small().double()
    y, threat = labelled(model, x), Threat("linf", 0.05, (0.0, 1.0))
    whole = attack(model, x, y, threat, draws=Draws.of(x, 3))
    pieces = attack(Victim(model, batch_size=2), x, y, threat, draws=Draws.of(x, 3))
    assert_close(pieces.x_adv, whole.x_adv)
    assert torch.equal(pieces.queries, whole.queries)
    draws = Draws.of(x, 3)
    for part in (torch.tensor([8, 2]), torch.tensor([0])):
        alone = attack(model, x[part], y[part], threat, draws=draws.select(part))
        assert_close(alone.x_adv, whole.x_adv[part])
        assert torch.equal(alone.success, whole.success[part])


def test_the_victim_counts_and_bounds_its_batches() -> None:
    sizes: list[int] = []
    model = small()
    model.register_forward_hook(lambda m, args, out: sizes.append(args[0].shape[0]))
    victim, x = Victim(model, batch_size=4), torch.rand(10, 7, 3)
    found = pgd(victim, x, labelled(model, x), Threat("linf", 0.1), steps=3)
    assert max(sizes[1:]) <= 4
    assert victim.forwards == int(found.queries.sum()) == 40
    assert victim.backwards == int(found.gradients.sum()) == 30


def test_random_models_are_averaged() -> None:
    torch.manual_seed(1)
    x = torch.rand(64, 6)

    def noisy(x: Tensor) -> Tensor:
        return torch.stack([x.sum(1), -x.sum(1)], 1) + torch.randn(x.shape[0], 2)

    victim = Victim(noisy)
    y = torch.zeros(64, dtype=torch.int64)
    _, _, one = victim.value_and_grad(x, cross_entropy, y)
    _, _, many = victim.value_and_grad(x, cross_entropy, y, passes=64)
    clean = torch.stack([x.sum(1), -x.sum(1)], 1)
    assert (many - clean).std() < (one - clean).std() / 4  # a factor of 8 on average
    assert PGD(3, passes=5)(noisy, x, y, Threat("linf", 0.1)).gradients.unique().tolist() == [15]


def test_the_bare_iteration_is_the_same() -> None:
    x, model = torch.rand(5, 7, 3), small()
    y, threat = labelled(model, x), Threat("l2", 0.5, (0.0, 1.0))
    victim, rows = prepare(model, x, y, threat, None)
    with victim.attacked():
        bare = ascend(victim, rows, rows.x, 4, 0.2)
    assert torch.equal(bare, pgd(model, x, y, threat, steps=4, step_size=0.2, random_start=False, keep="last").x_adv)


def test_fgsm_on_a_linear_model_is_exact() -> None:
    """Linf: the margin of z = W x grows by eps * ||w_1 - w_0||_1, the most that is possible."""
    model = nn.Linear(6, 2).double()
    x, y = torch.randn(4, 6, dtype=torch.float64), torch.zeros(4, dtype=torch.int64)
    w = model.weight[1] - model.weight[0]
    clean = (model(x)[:, 1] - model(x)[:, 0]).detach()
    assert_close(fgsm(model, x, y, Threat("linf", 0.1)).margin, clean + 0.1 * w.abs().sum().detach())
    assert_close(fgsm(model, x, y, Threat("l2", 0.1)).margin, clean + 0.1 * w.norm().detach())


def test_other_objectives() -> None:
    x, model = torch.rand(5, 7, 3), small()
    with torch.no_grad():
        clean = model(x)
    threat = Threat("linf", 0.1)
    spread = pgd(model, x, clean.argmax(1), threat, objective=kl, labels=(clean,))
    assert (spread.loss > 1e-4).all()
    moved = pgd(model, x, clean, threat, objective=squared_deviation)
    assert not moved.success.any()
    assert (moved.loss > 1e-4).all()
    two = small(classes=2)
    assert "margin" in APGD(dlr, steps=3)(two, x, labelled(two, x), threat).notes[0]


def test_half_precision_models_are_stepped_in_float32() -> None:
    model, x = small().bfloat16(), torch.rand(5, 7, 3).bfloat16()
    threat = Threat("linf", 0.01, (0.0, 1.0))
    found = pgd(model, x, torch.zeros(5, dtype=torch.int64), threat)
    assert found.x_adv.dtype == torch.float32
    assert threat.contains(found.x_adv, x.float()).all()
    assert (found.x_adv != x).any()


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda m, x, y, t: pgd(m, x, y, t, steps=-1), ValueError, "steps must be at least 0"),
        (lambda m, x, y, t: pgd(m, x, y, t, steps="10"), TypeError, "steps must be a whole number"),
        (lambda m, x, y, t: pgd(m, x, y, t, step_size="0.1"), TypeError, "step_size must be a number"),
        (lambda m, x, y, t: pgd(m, x, y, t, step_size=0.0), ValueError, "positive"),
        (lambda m, x, y, t: pgd(m, x, y, t, keep="first"), ValueError, "'first'"),
        (lambda m, x, y, t: pgd(m, x, y[:2], t), ValueError, "one entry per sample"),
        (lambda m, x, y, t: pgd(m, x, y - 1, t), ValueError, "labels must lie in"),
        (lambda m, x, y, t: pgd(m, x, y, t, draws=Draws.of(x[:1])), ValueError, "draws must number 3"),
        (lambda m, x, y, t: pgd(lambda x: x.sum(), x, y, t), ValueError, "real outputs"),
        (lambda m, x, y, t: pgd(lambda x: x.sum((1, 2))[:, None], x, y, t), ValueError, "at least 2 classes"),
        (lambda m, x, y, t: pgd("model", x, y, t), TypeError, "callable"),
        (lambda m, x, y, t: Victim(m, batch_size=0), ValueError, "at least 1"),
        (lambda m, x, y, t: Victim(m, batch_size=2.0), TypeError, "whole number"),
        (lambda m, x, y, t: APGD(targeted_dlr), ValueError, "targets=9"),
        (lambda m, x, y, t: APGD(dlr, targets=2), ValueError, "targets"),
        (lambda m, x, y, t: APGD(rho=2.0), ValueError, "between 0 and 1"),
        (lambda m, x, y, t: APGD(targeted_dlr, targets=2)(m, x, y.float(), t), TypeError, "class labels"),
    ],
)
def test_bad_input(call: Any, error: type[Exception], says: str) -> None:
    model, x = small(), torch.rand(3, 7, 3)
    with pytest.raises(error, match=says):
        call(model, x, torch.zeros(3, dtype=torch.int64), Threat("linf", 0.1))


@pytest.mark.parametrize("attack", [FGSM(squared_deviation), PGD(objective=squared_deviation), APGD(squared_deviation)])
def test_one_number_per_sample_may_come_without_an_axis(attack: Any) -> None:
    torch.manual_seed(0)
    model, x = small(classes=1), torch.rand(5, 7, 3)
    y, threat = model(x).detach() + 0.1, Threat("linf", 0.1, (0, 1))
    want = attack(model, x, y, threat)
    got = attack(lambda x: model(x)[:, 0], x, y[:, 0], threat)
    assert_close(got.x_adv, want.x_adv)
    assert_close(got.loss, want.loss)
    assert (got.loss > 0.01).all()


def test_a_target_alone_is_success() -> None:
    from victims import Recurrent, labelled, sequences

    from resolvent.attacks import Square

    model, x = Recurrent(), sequences(n=24)
    y = labelled(model, x, wrong=0)
    target, threat = (y + 1) % 4, Threat("linf", 0.25, bounds=(0.0, 1.0))
    aimed = PGD(steps=20)(model, x, y, threat, target=target)
    any_class = PGD(steps=20)(model, x, y, threat)
    model.eval()
    answers = model(aimed.x_adv).argmax(1)
    assert torch.equal(aimed.success, answers == target)
    assert bool(aimed.success.any())
    assert int(aimed.success.sum()) >= int((model(any_class.x_adv).argmax(1) == target).sum())
    assert bool(threat.check(x).contains(aimed.x_adv, x).all())
    one = pgd(model, x[y != 2], y[y != 2], threat, steps=20, target=2)
    assert torch.equal(one.success, model(one.x_adv).argmax(1) == 2)
    for wrong, message in ((y, "another class"), (9, "0 .. 3"), (torch.zeros(3), "class number")):
        with pytest.raises(ValueError, match=message):
            PGD(steps=2)(model, x, y, threat, target=wrong)
    with pytest.raises(ValueError, match="takes no target"):
        Square(n_queries=3)(model, x, y, threat, target=target)
