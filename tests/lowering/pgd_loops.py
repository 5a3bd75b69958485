"""A training step whose attack is one call, against the same step through the modules."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from helpers import assert_close
from resolvent.lowering import lowered
from resolvent.models.model import Model
from resolvent.runtime.dispatch import use
from resolvent.training.step.batch import Batch


def check_training(model: Model, batch: Batch, objective: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loss and every gradient; the attack was taken in one call."""
    taken: list[Tensor | None] = []
    plain = lowered.Lowered.run_loop

    def watched(*args: Any, **named: Any) -> Tensor | None:
        taken.append(plain(*args, **named))
        return taken[-1]

    monkeypatch.setattr(lowered.Lowered, "run_loop", watched)
    got = objective(model, batch)
    assert len(taken) == 1
    assert taken[0] is not None
    with use("torch"):
        want = objective(model, batch)
    assert len(taken) == 1 or taken[1] is None
    assert_close(got.value, want.value)
    found = [torch.autograd.grad(loss.value, list(model.parameters())) for loss in (got, want)]
    for a, b in zip(*found, strict=True):
        assert_close(a, b, gradient=True)
