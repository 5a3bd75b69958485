"""The two forms of an exported model: whole sequences with their lengths, and one step with an explicit state."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from resolvent.blocks.pool import PoolKind, pool
from resolvent.deployment.flow import Flow, Series
from resolvent.deployment.keyed import Matched, state_shapes
from resolvent.deployment.lower import part, series
from resolvent.deployment.prepared import Prepared
from resolvent.deployment.recurrences import Stored
from resolvent.layers.checks import padding_mask
from resolvent.lowering import program as p
from resolvent.usage.error import UsageError


class Whole(nn.Module):
    """x (b, l, c) raw channels or (b, l) tokens, lengths (b,) -> (b, outputs), or (b, l, outputs) without pooling."""

    def __init__(self, network: p.Network, prepared: Prepared | None) -> None:
        super().__init__()
        self.prepared = prepared
        self.kind, self.tower, self.head = _parts(network)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        flow = Flow(lengths=lengths)
        x = x if self.prepared is None else self.prepared(x, flow)
        features = self.tower(x, flow)
        if self.kind != "none":
            return self.head(pool(features, lengths, self.kind), flow)
        y = self.head(features, flow)
        mask = padding_mask(features, lengths)
        assert mask is not None
        return y.masked_fill(mask, 0)


class Pairs(nn.Module):
    """Two documents: x (b, 2, l) tokens or (b, 2, l, c), lengths (b, 2) -> (b, outputs)."""

    def __init__(self, network: p.Network) -> None:
        super().__init__()
        assert isinstance(network.head, p.Match)
        assert network.pool.kind != "state"
        self.kind: PoolKind = network.pool.kind
        self.tower = series(network.tower)
        self.head = Matched(part(network.head.hidden), part(network.head.out))

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        each = lengths.flatten()
        flow = Flow(lengths=each)
        e1, e2 = pool(self.tower(x.flatten(0, 1), flow), each, self.kind).unflatten(0, (-1, 2)).unbind(1)
        y: Tensor = self.head(e1, e2, flow)
        return y


class Step(nn.Module):
    """x_t (b, c) or tokens (b,), then the tensors of the state -> (b, outputs), then those of the next state.

    The output equals that of `Whole` for the sequence so far.
    """

    def __init__(self, network: p.Network, prepared: Prepared | None, width: int) -> None:
        super().__init__()
        check_streams(network)
        self.prepared = prepared  # its state comes first
        self.kind, self.tower, self.head = _parts(network)
        self.pooled = {"mean": ((width,), (1,)), "max": ((width,), (1,))}.get(self.kind, ())

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """The shapes of the state's tensors in order, without the batch; all are initially zero."""
        return [shape for child in self.children() for shape in state_shapes(child)] + list(self.pooled)

    def forward(self, x: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        own = len(state) - len(self.pooled)
        flow = Flow(state=list(state[:own]))
        x = x if self.prepared is None else self.prepared(x, flow)
        features = self.tower(x, flow)
        features, pooled = self._pool(features, state[own:])
        return self.head(features, flow), *flow.end, *pooled

    def _pool(self, x: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        if self.kind == "mean":
            total, count = state[0] + x, state[1] + 1
            return total / count, (total, count)
        if self.kind == "max":
            best, begun = state
            best = torch.where(begun > 0, torch.maximum(best, x), x)
            return best, (best, torch.ones_like(begun))
        return x, ()


def _parts(network: p.Network) -> tuple[PoolKind, Series, Series]:
    """How it pools, what stands before and after: "state" is the last of all that a recurrence keeps."""
    assert isinstance(network.head, p.Head)
    kind, tower, head = network.pool.kind, series(network.tower), series((*network.head.hidden, *network.head.out))
    if kind != "state":
        return kind, tower, head
    A, b = network.pool.module.matrices()
    return "last", Series(tower, Stored(A, b[..., 0])), head


def check_streams(network: p.Network) -> None:
    """Raise if a stream has no output before its end."""
    if isinstance(network.head, p.Match):
        raise UsageError("export: two documents have no step form; export the sequence form only.")
    for node in p.walk(network.body):
        if getattr(node.module, "bidirectional", False):
            raise UsageError("export: a bidirectional model has no step form; export the sequence form only.")
        if isinstance(node, p.GatedAttention) or (isinstance(node, p.Attention) and node.module.reach.kind != "local"):
            raise UsageError("export: attention without a window has no step form; export the sequence form only.")
        if getattr(node.module, "kernel", "exp") == "softmax" and node.module.length is None:
            raise UsageError("export: a softmax DSS without a length has no step form; export the sequence form only.")
