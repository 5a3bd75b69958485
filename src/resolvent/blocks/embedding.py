"""Token input and output: a scaled embedding, and next-token logits, optionally from the embedding's own table."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class ScaledEmbedding(nn.Embedding):
    """`scale` times the row of each token; Griffin's language models use sqrt(d_model)."""

    def __init__(self, vocab: int, d_model: int, scale: float) -> None:
        super().__init__(vocab, d_model)
        self.scale = scale

    def forward(self, tokens: Tensor) -> Tensor:
        return super().forward(tokens) * self.scale


class TokenLogits(nn.Module):
    """(..., d) -> (..., vocab): W x, with W the table of `entry`, or a separate one where that is None.

    A tied table is a parameter of the embedding alone, and saved, moved and trained once.
    soft_cap   None, or c: logits become c tanh(logits / c), so that none is larger than c
    """

    def __init__(self, d_model: int, vocab: int, entry: nn.Embedding | None, soft_cap: float | None = None) -> None:
        super().__init__()
        if soft_cap is not None and not 0 < soft_cap < float("inf"):
            raise ValueError(f"TokenLogits: soft_cap must be None, or positive and finite; got {soft_cap}.")
        self.soft_cap = soft_cap
        self._entry = None if entry is None else (entry,)  # in a tuple, so that it is not registered as a child
        self.weight = nn.Parameter(torch.randn(vocab, d_model) * d_model**-0.5) if entry is None else None

    @property
    def table(self) -> Tensor:
        """W (vocab, d)."""
        table = self._entry[0].weight if self._entry is not None else self.weight
        assert table is not None
        return table

    def forward(self, x: Tensor) -> Tensor:
        logits = F.linear(x, self.table)
        return logits if self.soft_cap is None else self.soft_cap * torch.tanh(logits / self.soft_cap)
