"""Random ListOps trees, a whole batch level by level, each determined by its own index.

The rules of the Long Range Arena: the root stands at depth 1; a node is an operator with probability 1/4, else a digit
0 to 9, and at depth 10 always a digit; an operator is MIN, MAX, MED or SM with equal probability and has 2 to 10
arguments. MED is the median, truncated to an integer; SM the sum modulo 10. Length counts digits once, operators twice
(they open and close).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from resolvent.data.order import fold, mix_bits

DEPTH, ARGUMENTS = 10, 10
OPERATORS = ("MIN", "MAX", "MED", "SM")
PAD, DIGIT, OPEN, CLOSE = 0, 1, 11, 15  # tokens: padding, digits 1 to 10, operators 11 to 14, closing bracket
VOCABULARY = ("<pad>", *"0123456789", *(f"[{name}" for name in OPERATORS), "]")


@dataclass(frozen=True, eq=False)
class Level:
    """The nodes of one depth, siblings adjacent: arrays (nodes,)."""

    key: np.ndarray  # 64 random bits, from the parent's
    tree: np.ndarray  # which tree of the batch
    parent: np.ndarray  # index of the parent among the operators of the level above
    operator: np.ndarray  # bool

    @property
    def kind(self) -> np.ndarray:
        return (self.key >> np.uint64(2) & np.uint64(3)).astype(np.int64)

    @property
    def digit(self) -> np.ndarray:
        return _below(self.key, 4, 10)

    @property
    def arguments(self) -> np.ndarray:
        """The number of arguments, of the operators only."""
        return 2 + _below(self.key[self.operator], 24, ARGUMENTS - 1)

    def only(self, keep: np.ndarray) -> Level:
        """Without the trees where `keep` (trees,) is False."""
        mine = keep[self.tree]
        return Level(self.key[mine], self.tree[mine], self.parent[mine], self.operator[mine])


def roots(seed: int, first: int, count: int) -> np.ndarray:
    """Keys of the trees from index `first` on: (count,) uint64."""
    with np.errstate(over="ignore"):
        return mix_bits(mix_bits(np.arange(first, first + count, dtype=np.uint64)) + np.uint64(fold(seed)))


def tree_lengths(keys: np.ndarray, longest: int) -> np.ndarray:
    """The length of each tree (trees,); a tree is abandoned once it exceeds `longest`."""
    total = np.zeros(len(keys), dtype=np.int64)
    for level in _levels(keys, total, longest):
        total += np.bincount(level.tree, 1.0 + level.operator, len(keys)).astype(np.int64)
    return total


def write_trees(keys: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Tokens (trees, width) and answers (trees,), both uint8, of trees of at most `width` tokens."""
    levels = list(_levels(keys))
    sizes, values = _evaluate(levels)
    tokens = np.full((len(keys), width), PAD, dtype=np.uint8)
    place = np.zeros(len(keys), dtype=np.int64)
    for depth, level in enumerate(levels):
        if depth:
            place = _places(level, sizes[depth], place)
        tokens[level.tree, place] = np.where(level.operator, OPEN + level.kind, DIGIT + level.digit)
        place, size = place[level.operator], sizes[depth][level.operator]
        tokens[level.tree[level.operator], place + size - 1] = CLOSE
    return tokens, values.astype(np.uint8)


def _levels(keys: np.ndarray, total: np.ndarray | None = None, longest: int = 0) -> Iterator[Level]:
    """Depth by depth; `total`, which the caller adds to, stops trees that exceed `longest`."""
    tree = np.arange(len(keys))
    level = Level(keys, tree, tree, _operators(keys, 1))
    for depth in range(1, DEPTH + 1):
        yield level
        if total is not None:
            level = level.only(total <= longest)
        if not level.operator.any():
            return
        level = _below_level(level, depth + 1)


def _below_level(level: Level, depth: int) -> Level:
    count = level.arguments
    parent = np.repeat(np.arange(len(count)), count)
    rank = np.arange(len(parent)) - np.repeat(np.cumsum(count) - count, count)
    with np.errstate(over="ignore"):
        key = mix_bits(level.key[level.operator][parent] + rank.astype(np.uint64))
    return Level(key, level.tree[level.operator][parent], parent, _operators(key, depth))


def _operators(key: np.ndarray, depth: int) -> np.ndarray:
    return (key & np.uint64(3) == 0) & (depth < DEPTH)


def _below(key: np.ndarray, shift: int, top: int) -> np.ndarray:
    """An integer from 0 to top - 1 from twenty bits of the key."""
    return ((key >> np.uint64(shift) & np.uint64(0xFFFFF)) * np.uint64(top) >> np.uint64(20)).astype(np.int64)


def _evaluate(levels: list[Level]) -> tuple[list[np.ndarray], np.ndarray]:
    """Token counts of each subtree, level by level, and the values of the roots."""
    sizes: list[np.ndarray] = []
    below = values = np.zeros(0, dtype=np.int64)
    for level in reversed(levels):
        size, value = np.ones(len(level.key), dtype=np.int64), level.digit
        if level.operator.any():
            count = level.arguments
            start = np.cumsum(count) - count
            size[level.operator] = 2 + np.add.reduceat(below, start)
            value[level.operator] = _apply(level.kind[level.operator], values, start, count)
        below, values = size, value
        sizes.insert(0, size)
    return sizes, values


def _apply(kind: np.ndarray, values: np.ndarray, start: np.ndarray, count: np.ndarray) -> np.ndarray:
    """Each operator on its arguments, values[start : start + count]."""
    parent = np.repeat(np.arange(len(count)), count)
    ranked = values[np.lexsort((values, parent))]
    median = (ranked[start + (count - 1) // 2] + ranked[start + count // 2]) // 2
    return np.choose(kind, [ranked[start], ranked[start + count - 1], median, np.add.reduceat(values, start) % 10])


def _places(level: Level, size: np.ndarray, above: np.ndarray) -> np.ndarray:
    """The first token of each node: after its parent's bracket and its preceding siblings."""
    before = np.cumsum(size) - size
    first = np.searchsorted(level.parent, np.arange(len(above)))
    return above[level.parent] + 1 + before - before[first][level.parent]
