"""Models as users call them: `model(x, lengths) -> logits`, and in pieces for attacks and streaming."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from resolvent.blocks.block import merged_groups
from resolvent.blocks.certified.head import LipschitzReadout
from resolvent.blocks.head import Match, Readout
from resolvent.blocks.pool import PoolKind, pool
from resolvent.blocks.tower import Tower
from resolvent.layers.contract import frozen
from resolvent.layers.untouched import is_touched
from resolvent.lowering import describe
from resolvent.lowering.describer import rule
from resolvent.lowering.lowered import serving
from resolvent.lowering.parts import parts_of
from resolvent.models.config import ModelConfig
from resolvent.ops.linear_scan import documents_of
from resolvent.ops.step import recorded
from resolvent.ssm.part import Part


class Model(nn.Module):
    """Tower and readout. x (b, l) tokens or (b, l, c) channels -> (b, outputs), or (b, l, outputs) without pooling.

    Examples:
        >>> model = rv.build_model(rv.ModelConfig(d_model=8, layers=1))
        >>> model(torch.rand(2, 20, 1)).shape
        torch.Size([2, 10])
    """

    def __init__(self, config: ModelConfig, tower: Tower, head: Readout | LipschitzReadout) -> None:
        super().__init__()
        self.config = config
        self.tower = tower
        self.head = head

    def forward(self, x: Tensor, lengths: Tensor | None = None, start: Tensor | None = None) -> Tensor:
        """Logits or values of whole sequences.

        x        (b, l, c) real channels, in the dtype of the model's parameters, or (b, l) integer tokens
        lengths  (b,) integers: the number of valid steps of each sequence; None: all. Later steps are padding and
                 do not affect the result
        start    bool, broadcasts to (b, l), instead of lengths: marks the first step of each document packed in a row
                 (`packed_starts`), each processed as if alone; padding is marked as one more document
        returns  (b, outputs), for packed rows (documents, outputs), row by row; (b, l, outputs) for a head without
                 pooling, 0 at the padding

        For chunks use `stream`, for single steps `step`. Call the model itself, `model(x, lengths)`, so that
        forward hooks run.
        """
        if start is not None:
            return self._packed(x, lengths, start)
        quick = serving(self, x, lengths)
        if quick is None:
            return self.from_embedding(self.embed(x), lengths)
        self.tower.check(x)
        lowered, dtype = quick
        with torch.autocast(x.device.type, enabled=False):
            return lowered(x, lowered.kept_tables(x.shape[1], dtype))

    def _packed(self, x: Tensor, lengths: Tensor | None, start: Tensor) -> Tensor:
        self.tower.check(x)
        if lengths is not None:
            raise ValueError("Model: packed documents (start) fill their rows; leave lengths out and mark the padding.")
        packed = documents_of("Model", x, start)
        y = self.forward(packed.x, packed.lengths)
        return packed.joined(y) if self.head.pooling == "none" else y

    lowered = serving  # model.lowered(x): the fast form of forward, a function of x and of tables, if any

    def embed(self, x: Tensor) -> Tensor:
        return self.tower.embed(x)

    def from_embedding(self, e: Tensor, lengths: Tensor | None = None) -> Tensor:
        """The rest of forward from e = embed(x), for attacks that differentiate with respect to embeddings."""
        return self.head(self.tower.features(e, None, lengths)[0], lengths)

    def stream(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """A chunk of a longer sequence: the output at each step (b, l, outputs), and the state to continue from.

        The output at step t equals `forward` on the sequence truncated after t.
        """
        e = self.embed(x)
        state = self._start(state, x.shape[0])
        if x.shape[1] == 0:
            return self.head.stream(nn.functional.pad(e, (0, 0, 0, 1)), state["head"])[0][:, :0], state
        features, body = self.tower.features(e, state["body"])
        y, head = self.head.stream(features, state["head"])
        return y, {"body": body, "head": head}

    def step(self, x_t: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """One step of a stream: tokens (b,) or channels (b, c) -> (b, outputs); in `frozen()` a CUDA graph on a GPU."""
        taken = None
        if state is not None and not self.training and self.tower.body.is_frozen and not is_touched(self):
            taken = recorded.replay(self.tower.body.frozen_tables, self._step, x_t, state)
        return self._step(x_t, state) if taken is None else taken

    def _step(self, x_t: Tensor, state: Any) -> tuple[Tensor, Any]:
        self.tower.check(x_t, "batch")
        state = self._start(state, x_t.shape[0])
        features, body = self.tower.step(x_t, state["body"])
        y, head = self.head.stream(features[:, None], state["head"])
        return y[:, 0], {"body": body, "head": head}

    def _start(self, state: Any, batch: int) -> Any:
        if state is None:
            return self.initial_state(batch)
        if not isinstance(state, dict) or state.keys() != {"body", "head"}:
            raise ValueError("Model: expected the state that stream or step returned last, or None for a new stream.")
        return state

    def initial_state(self, batch: int) -> Any:
        body = self.tower.body.initial_state(batch)
        return {"body": body, "head": self.head.initial_state(batch, like=next(self.parameters()))}

    def gain_parts(self, length: int | None = None) -> list[Part]:
        """The model as a chain of components with their Lipschitz constants, or the reason why they have none.

        Constants hold in evaluation mode. `length`, the shortest sequence in question, sharpens mean pooling.
        """
        return parts_of(self, "", length)

    @contextmanager
    def frozen(self) -> Iterator[Model]:
        """Computes tables once; gradients flow to inputs only: see `layers.frozen`."""
        with frozen(self):
            yield self


rule(Model)(describe.model)


class TwoTower(nn.Module):
    """Two documents through one tower: x (b, 2, l) or (b, 2, l, c), lengths (b, 2) -> logits (b, classes).

    Examples:
        >>> config = rv.ModelConfig(rv.models.TokensConfig(9), head=rv.models.RetrievalConfig(), d_model=8, layers=1)
        >>> isinstance(rv.build_model(config), rv.models.TwoTower)
        True
    """

    def __init__(self, config: ModelConfig, tower: Tower, pooling: PoolKind, head: Match) -> None:
        super().__init__()
        self.config = config
        self.tower = tower
        self.pooling = pooling
        self.head = head

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        return self.from_embedding(self.embed(x), lengths)

    def embed(self, x: Tensor) -> Tensor:
        """(b, 2, l) -> (b, 2, l, d)."""
        if not isinstance(x, Tensor) or x.dim() < 3 or x.shape[1] != 2:
            got = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
            raise ValueError(f"TwoTower: expected two documents per row, a tensor (batch, 2, length), got {got}.")
        return self.tower.embed(x.flatten(0, 1)).unflatten(0, (-1, 2))

    def from_embedding(self, e: Tensor, lengths: Tensor | None = None) -> Tensor:
        if lengths is not None and (not isinstance(lengths, Tensor) or lengths.shape != e.shape[:2]):
            got = tuple(lengths.shape) if isinstance(lengths, Tensor) else type(lengths).__name__
            raise ValueError(f"TwoTower: expected lengths, a tensor of shape {tuple(e.shape[:2])}, got {got}.")
        each = None if lengths is None else lengths.flatten()
        features, _ = self.tower.features(e.flatten(0, 1), None, each)
        e1, e2 = pool(features, each, self.pooling).unflatten(0, (-1, 2)).unbind(1)  # (b, d) each
        return self.head(e1, e2)

    def gain_parts(self, length: int | None = None) -> list[Part]:
        """As `Model.gain_parts`; matching two documents multiplies features, so the chain has no bound."""
        return parts_of(self, "", length)

    @contextmanager
    def frozen(self) -> Iterator[TwoTower]:
        with frozen(self):
            yield self


rule(TwoTower, reads=("pooling",))(describe.two_tower)


def optim_groups(model: nn.Module) -> list[dict[str, Any]]:
    """Parameter groups for torch.optim: the layers' own (separate lr, no weight decay), the rest by default.

    Examples:
        >>> model = rv.build_model(rv.ModelConfig(d_model=8, layers=1))
        >>> optimiser = torch.optim.AdamW(rv.models.optim_groups(model), lr=1e-3)
    """
    return merged_groups(model)


def count_parameters(model: nn.Module, trainable: bool = True) -> int:
    """The number of real parameters (a complex entry counts twice); buffers are excluded.

    Examples:
        >>> rv.models.count_parameters(torch.nn.Linear(3, 2))
        8
    """
    counted = [p for p in model.parameters() if p.requires_grad or not trainable]
    return sum(p.numel() * (2 if torch.is_complex(p) else 1) for p in counted)
