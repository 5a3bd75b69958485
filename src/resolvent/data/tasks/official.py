"""Sets with an official training and test part; the validation samples are taken from the training part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from resolvent.data.cache import Arrays
from resolvent.data.preparation.prepare import PARTS, split_indices
from resolvent.data.task import Split

Splits = tuple[Split, Split, Split]
Counts = int | tuple[int, int, int]
LARGEST = 4 << 30  # unpacked bytes above which a set stays packed by default


@dataclass(frozen=True, eq=False)
class Part:
    """Samples as stored: x in small integers; `levels` 255 for pixels, 0 for tokens."""

    x: np.ndarray
    y: np.ndarray
    lengths: np.ndarray | None = None
    levels: int = 255
    centred: bool = False

    def split(self, packed: bool, index: Tensor | None = None) -> Split:
        """All samples or those at `index`; mapped in place if packed and complete."""
        lengths = None if self.lengths is None else torch.from_numpy(self.lengths).long()
        held = Split(torch.from_numpy(self.x), torch.from_numpy(self.y).long(), lengths, self.levels, self.centred)
        if index is not None:
            held = held.gather(index)
        if packed:
            return held
        if self.levels:
            return held.unpack()
        return Split(held.x.int(), held.y, held.lengths)  # tokens: int32 is the smallest type an embedding accepts

    def bytes(self) -> int:
        return 4 * self.x.size


def stays_packed(packed: bool | None, *parts: Part) -> bool:
    """The user's choice, by default whether the set is large."""
    return sum(part.bytes() for part in parts) > LARGEST if packed is None else packed


def counts(where: str, samples: Counts) -> tuple[int, int, int]:
    """(train, validation, test); one number is used for all three."""
    three = (samples,) * 3 if isinstance(samples, int) else tuple(samples)
    if len(three) != 3 or min(three) < 0 or three[0] < 1:
        raise ValueError(f"{where}: expected samples as a number or (train, validation, test), got {samples}.")
    return three[0], three[1], three[2]


def name_parts(samples: Sequence[int], **arrays: np.ndarray) -> Arrays:
    """{"train_x", .., "test_y"}: arrays of all samples, cut into the parts."""
    edges = np.cumsum(samples)[:-1]
    cut = {name: zip(PARTS, np.split(array, edges), strict=True) for name, array in arrays.items()}
    return {f"{part}_{name}": value for name, pairs in cut.items() for part, value in pairs}


def stored_splits(train: Part, validation: Part, test: Part, packed: bool | None) -> Splits:
    """Three given parts."""
    keep = stays_packed(packed, train, validation, test)
    return train.split(keep), validation.split(keep), test.split(keep)


def three_splits(train: Part, test: Part, validation: float, seed: int, packed: bool | None) -> Splits:
    """Validation is that share of every class of the training part, chosen by the seed. The test part is unchanged."""
    if not 0 <= validation < 1:
        raise ValueError(f"data: expected validation as a share from 0 up to 1 (not 1 itself), got {validation}.")
    keep = stays_packed(packed, train, test)
    kept, held_out, _ = split_indices(torch.from_numpy(train.y).long(), (validation, 0.0), seed)
    return train.split(keep, kept.sort().values), train.split(keep, held_out.sort().values), test.split(keep)
