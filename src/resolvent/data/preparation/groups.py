"""Samples that belong together (one patient, one machine, one day) stay in the same part of a split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from resolvent.data.order import shuffle

Parts = tuple[Tensor, Tensor, Tensor]


def grouped_indices(y: Tensor, groups: Sequence[str], fractions: Sequence[float], seed: int) -> Parts:
    """Sample ids of train, validation and test; a group is in one of them; shares and classes as close as possible.

    Groups are assigned from the largest down, ties in an order from the seed; each goes to the part that lacks its
    classes most. While groups remain, no part that should have samples stays empty.
    """
    shares = torch.tensor([1 - sum(fractions), *fractions], dtype=torch.float64)
    names = sorted(set(groups))
    wanted = [i for i in range(3) if shares[i] > 0]
    if len(names) < len(wanted):
        raise ValueError(
            f"data: expected at least {len(wanted)} groups, one for each part of the split, got {len(names)}; give the "
            "test part in a file of its own, or split without groups."
        )
    number = {name: i for i, name in enumerate(names)}
    member = torch.tensor([number[name] for name in groups])  # (n,)
    labels = torch.zeros(len(y), dtype=torch.long) if y.is_floating_point() or y.dim() > 1 else y
    counts = torch.zeros(len(names), int(labels.max()) + 1, dtype=torch.float64)  # (g, k)
    counts.index_put_((member, labels), torch.ones(len(y), dtype=torch.float64), accumulate=True)
    part = _assign(counts, shares, wanted, seed)
    order = torch.from_numpy(shuffle(len(y), seed))
    train, validation, test = (order[part[member[order]] == i] for i in range(3))
    return train, validation, test


def _assign(counts: Tensor, shares: Tensor, wanted: list[int], seed: int) -> Tensor:
    """The part (g,) of each group."""
    lacking = shares[:, None] * counts.sum(0)  # (3, k) samples of each class that a part still lacks
    drawn = shuffle(len(counts), seed).tolist()
    order = sorted(drawn, key=lambda g: -float(counts[g].sum()))
    part, empty = torch.zeros(len(counts), dtype=torch.long), set(wanted)
    for i, group in enumerate(order):
        open_ones = sorted(empty) if len(order) - i <= len(empty) else wanted
        gain = {p: float((counts[group] * lacking[p] / counts.sum(0).clamp(min=1)).sum()) for p in open_ones}
        best = max(open_ones, key=lambda p: gain[p])
        part[group] = best
        lacking[best] -= counts[group]
        empty.discard(best)
    return part


def require_apart(groups: Mapping[str, Sequence[str]]) -> None:
    """Parts given separately must not share a group."""
    seen: dict[str, str] = {}
    for part, names in groups.items():
        for name in sorted(set(names)):
            if name in seen:
                raise ValueError(
                    f"data: expected every group in one part, got {name!r} in {seen[name]} and in {part}; take it out "
                    "of one of them, or leave group out."
                )
            seen[name] = part
