"""Which tokens may replace which, where, and how often."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Swaps:
    """What is allowed for the samples of a batch."""

    places: Tensor  # (b, l) bool: may change
    pairs: Tensor  # (V, V) bool: the new token (column) may replace the old (row); never itself
    vocabulary: int

    @classmethod
    def of(
        cls, tokens: Tensor, vocabulary: int, allowed: Tensor | None, mask: Tensor | None, lengths: Tensor | None
    ) -> Swaps:
        device = tokens.device
        pairs = torch.ones(vocabulary, vocabulary, dtype=torch.bool, device=device)
        if allowed is not None:
            pairs = pairs & (allowed.to(device) if allowed.dim() == 2 else allowed.to(device)[None])
        pairs = pairs & ~torch.eye(vocabulary, dtype=torch.bool, device=device)
        places = torch.ones_like(tokens, dtype=torch.bool) if mask is None else mask.to(device)
        if lengths is not None:
            places = places & (torch.arange(tokens.shape[1], device=device) < lengths.to(device)[:, None])
        return cls(places, pairs, vocabulary)

    def select(self, rows: Tensor) -> Swaps:
        return Swaps(self.places[rows], self.pairs, self.vocabulary)

    def may(self, rows: Tensor, current: Tensor, home: Tensor, k: int) -> Tensor:
        """Which swaps leave at most k changed tokens, each an allowed change of the original token: (n, l, V) bool."""
        lawful = self.pairs[home] & self.places[rows][..., None]  # of the original token
        changed = current != home
        room = (changed.sum(1) < k)[:, None] | changed  # a position already changed costs nothing more
        other = torch.arange(self.vocabulary, device=current.device) != current[..., None]
        return lawful & room[..., None] & other


def check_tokens(k: int, tokens: Any, y: Any, vocabulary: int, allowed: Any, mask: Any, lengths: Any) -> None:
    if not isinstance(tokens, Tensor) or tokens.is_floating_point() or tokens.dtype == torch.bool or tokens.dim() != 2:
        got = f"{tokens.dtype} {tuple(tokens.shape)}" if isinstance(tokens, Tensor) else type(tokens).__name__
        raise TypeError(f"substitute: expected whole-number tokens (b, l), got {got}.")
    if not isinstance(y, Tensor) or y.is_floating_point() or y.shape != tokens.shape[:1] or not len(y):
        raise ValueError("substitute: expected class labels (b,), one for each of at least one sequence.")
    low, high = int(tokens.min()), int(tokens.max())
    if low < 0 or high >= vocabulary:
        raise ValueError(f"substitute: tokens must lie in 0 .. {vocabulary - 1}, got {low} .. {high}.")
    if lengths is not None and (not isinstance(lengths, Tensor) or lengths.shape != y.shape):
        raise ValueError(f"substitute: lengths must be ({len(y)},), got {getattr(lengths, 'shape', lengths)!r}.")
    longest = tokens.shape[1] if lengths is None else int(lengths.max())
    if k > longest:  # a shorter sample may change entirely
        raise ValueError(f"substitute: {k} substitutions, but no sequence has more than {longest} tokens.")
    if allowed is not None and (
        not isinstance(allowed, Tensor)
        or allowed.dtype != torch.bool
        or tuple(allowed.shape) not in ((vocabulary,), (vocabulary, vocabulary))
    ):
        raise ValueError(f"substitute: allowed must be bool ({vocabulary},) or ({vocabulary}, {vocabulary}).")
    if mask is not None and (not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.shape != tokens.shape):
        raise ValueError(f"substitute: mask must be bool {tuple(tokens.shape)}, True where a token may change.")
