"""Mega's gated attention against the equations written out, one position at a time."""

from __future__ import annotations

import math

import pytest
import torch
from drive import F64, ready
from torch import Tensor

from helpers import assert_close
from resolvent.blocks import GatedAttention

D, Z, H, N = 5, 3, 4, 2


def silu(x: Tensor) -> Tensor:
    return x / (1 + torch.exp(-x))


def moving_average(block: GatedAttention, x: Tensor) -> Tensor:
    """Mega's recurrence, direction by direction."""
    ema, y = block.ema, block.ema.omega * x
    for direction in range(ema.alpha.shape[0]):
        p, d = torch.sigmoid(ema.alpha[direction]), torch.sigmoid(ema.damping[direction])
        h, steps = torch.zeros(D, N, dtype=F64), range(len(x))
        for t in steps if direction == 0 else reversed(steps):
            h = p * ema.beta[direction] * x[t][:, None] + (1 - p * d) * h
            y = y + torch.eye(len(x), dtype=F64)[t][:, None] * (ema.eta[direction] * h).sum(-1) / math.sqrt(N)
    return y


def written_out(block: GatedAttention, x: Tensor, chunk: int | None) -> Tensor:
    """y (l, d) for one sequence x (l, d), post-norm left out."""
    base = silu(moving_average(block, x)) @ block.base.weight.T + block.base.bias
    u, z, r, hx = base.split([D, Z, H, D], -1)
    z, v = silu(z), silu(x @ block.value.weight.T + block.value.bias)
    q, k = z * block.gamma[0] + block.beta[0], z * block.gamma[1] + block.beta[1]
    rows = []
    for i in range(len(x)):
        seen = [j for j in range(len(x)) if chunk is None or i // chunk == j // chunk]
        seen = seen if block.bidirectional else [j for j in seen if j <= i]
        score = torch.stack([q[i] @ k[j] for j in seen])
        far = block.bias.size - 1
        shift = far if block.bidirectional else 0
        bias = torch.stack([block.bias.table[0, max(-far, min(far, i - j)) + shift] for j in seen])
        if block.attention == "softmax":
            e = torch.exp(score / math.sqrt(Z) + bias)
            weights = e / e.sum()
        else:
            scaled = (score / len(seen) + bias - math.sqrt(0.5)) / math.sqrt(0.25 / math.pi)
            weights = 0.5 * (1 + torch.erf(scaled / math.sqrt(2)))
        rows.append(weights @ v[seen])
    h = silu(hx + (silu(r) * torch.stack(rows)) @ block.leave.weight.T + block.leave.bias)
    gate = torch.sigmoid(u)
    return gate * h + (1 - gate) * x


@pytest.mark.parametrize("attention", ["softmax", "laplace"])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("chunk", [None, 3])
def test_equals_the_equations(attention: str, bidirectional: bool, chunk: int | None) -> None:
    kinds = {"attention": attention, "bidirectional": bidirectional, "chunk": chunk}
    block = ready(GatedAttention(D, z=Z, hidden=H, d_state=N, max_length=4, norm="none", **kinds), scale=0.5)
    x = torch.randn(2, 7, D, dtype=F64)
    assert_close(block(x)[0], torch.stack([written_out(block, s, chunk) for s in x]))


@pytest.mark.parametrize("bidirectional", [False, True])
def test_a_chunk_of_the_whole_length_changes_nothing(bidirectional: bool) -> None:
    chunked = ready(GatedAttention(D, z=Z, hidden=H, d_state=N, chunk=9, bidirectional=bidirectional))
    whole = GatedAttention(D, z=Z, hidden=H, d_state=N, max_length=9, bidirectional=bidirectional).double().eval()
    whole.load_state_dict(chunked.state_dict())
    x = torch.randn(2, 9, D, dtype=F64)
    assert_close(chunked(x)[0], whole(x)[0])


def test_a_closed_update_gate_is_the_identity() -> None:
    block = ready(GatedAttention(D, z=Z, hidden=H, d_state=N, norm="none"))
    with torch.no_grad():
        block.base.weight[:D] = 0
        block.base.bias[:D] = -1e4  # u = sigmoid(-10000) = 0
    x = torch.randn(2, 6, D, dtype=F64)
    assert torch.equal(block(x)[0], x)


def test_bad_settings_are_named() -> None:
    with pytest.raises(ValueError, match="'laplace'"):
        GatedAttention(D, attention="relu2")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="size"):
        GatedAttention(D, chunk=0)
