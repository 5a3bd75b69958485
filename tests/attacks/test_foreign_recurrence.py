"""A foreign GRU or LSTM in evaluation mode on a GPU: cuDNN gives it no gradient, torch's own recurrence does.

On a CPU a stand-in says what cuDNN says.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from helpers import assert_close
from resolvent.attacks import Threat, fab, pgd
from resolvent.attacks.objective.objective import cross_entropy
from resolvent.attacks.victim import Victim


class _Cudnn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, training: bool) -> Tensor:
        ctx.usable = training or not torch.backends.cudnn.enabled
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *g: Tensor) -> tuple[Tensor, None]:
        if not ctx.usable:
            raise RuntimeError("cudnn RNN backward can only be called in training mode")
        return g[0], None


class Recurrent(nn.Module):
    """A GRU with a read-out, which refuses as cuDNN does."""

    def __init__(self) -> None:
        super().__init__()
        self.gru, self.out = nn.GRU(2, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(_Cudnn.apply(self.gru(x)[0][:, -1], self.training))


@pytest.fixture
def model() -> Recurrent:
    torch.manual_seed(0)
    return Recurrent().eval()


@pytest.mark.parametrize("hidden", [False, True], ids=["module", "hidden in a function"])
def test_gradients_are_found(model: Recurrent, hidden: bool) -> None:
    x, y = torch.randn(3, 5, 2), torch.tensor([0, 1, 2])
    victim = Victim((lambda x: model(x)) if hidden else model)
    _, got, _ = victim.value_and_grad(x, cross_entropy, y)
    model.train()
    at = x.clone().requires_grad_()
    want = torch.autograd.grad(nn.functional.cross_entropy(model(at), y, reduction="sum"), at)[0]
    assert_close(got, want)
    assert torch.backends.cudnn.enabled


@pytest.mark.parametrize("attack", [pgd, fab])
def test_attacks_run_through(model: Recurrent, attack: Any) -> None:
    x = torch.rand(2, 5, 2)
    y = model(x).argmax(-1)
    result = attack(lambda x: model(x), x, y, Threat("linf", 0.5, (0, 1)))
    assert result.x_adv.shape == x.shape


def test_other_errors_are_not_swallowed() -> None:
    def broken(x: Tensor) -> Tensor:
        raise RuntimeError("something else")

    with pytest.raises(RuntimeError, match="something else"):
        Victim(broken).value_and_grad(torch.randn(1, 2, 2), cross_entropy, torch.tensor([0]))
