"""ListOps: evaluate a nested list of operators on digits, by the rules that the Long Range Arena generates it.

There is no seed upstream, so the arena's own files cannot be made again: ours are seeded and say so. Where those
files lie in the data folder (lra_release/listops-1000/basic_train.tsv, ..), `official=True` reads them.
"""

from __future__ import annotations

import numpy as np

from resolvent.data.cache import Arrays, load_cached
from resolvent.data.folder import VARIABLE, data_folder
from resolvent.data.listops.trees import VOCABULARY, roots, tree_lengths, write_trees
from resolvent.data.readers.tokeniser import Tokeniser
from resolvent.data.task import Task
from resolvent.data.tasks.official import Counts, Part, counts, stored_splits

SHORTEST, LONGEST, LENGTH = 501, 1999, 2000
_CHUNK = 20_000  # trees tried at once; their content does not depend on it
_PATIENCE = 300  # chunks without a new tree before giving up
_PARTS = ("train", "validation", "test")


def listops(
    *,
    around: int | None = None,
    samples: Counts = (96_000, 2_000, 2_000),
    lengths: bool = True,
    official: bool = False,
    seed: int = 0,
    packed: bool | None = None,
) -> Task:
    """Trees of more than 500 and fewer than 2000 tokens, labelled by a digit; 96,000 / 2,000 / 2,000 distinct ones.

    16 tokens: padding 0, digits 1 to 10, [MIN [MAX [MED [SM 11 to 14, and the closing bracket 15; no parentheses.
    around    trees of around - 5 to around + 5 tokens, as the study of generalisation takes them
    lengths   False: the padding is read like everything else
    """
    shortest, longest, length = (SHORTEST, LONGEST, LENGTH) if around is None else (around - 5, around + 5, around + 5)
    made = counts("listops", samples)
    held = load_cached("listops-lra", _read_official) if official else _generate(shortest, longest, length, made, seed)
    train, validation, test = (
        Part(held[f"{p}_x"], held[f"{p}_y"], held[f"{p}_lengths"] if lengths else None, levels=0) for p in _PARTS
    )
    note = "the Long Range Arena's own files" if official else f"generated from seed {seed} by the arena's rules"
    return Task(
        "listops",
        *stored_splits(train, validation, test, packed),
        length=LENGTH if official else length,
        vocabulary=len(VOCABULARY),
        classes=10,
        class_names=tuple("0123456789"),
        licence="Apache-2.0" if official else "generated",
        source="N. Nangia, S. Bowman (2018), ListOps; rules of Y. Tay et al. (2021), Long Range Arena",
        notes=(note,),
        tokeniser=Tokeniser("words", VOCABULARY),
    )


def _generate(shortest: int, longest: int, length: int, samples: tuple[int, int, int], seed: int) -> Arrays:
    if shortest < 1:
        raise ValueError(f"listops: expected around from 6 on, got {shortest + 5}.")
    name = f"listops-{shortest}-{longest}-{'-'.join(map(str, samples))}-seed{seed}"

    def build() -> Arrays:
        tokens, answers = generate(sum(samples), shortest, longest, length, seed)
        edges = np.cumsum(samples)[:-1]
        halves = zip(_PARTS, np.split(tokens, edges), np.split(answers, edges), strict=True)
        return {key: value for part, x, y in halves for key, value in _name_arrays(part, x, y).items()}

    return load_cached(name, build)


def generate(count: int, shortest: int, longest: int, width: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """`count` distinct trees in the order of their numbers: tokens (count, width) and answers (count,), uint8."""
    tokens, answers = np.zeros((count, width), dtype=np.uint8), np.zeros(count, dtype=np.uint8)
    seen: set[bytes] = set()
    idle = first = 0
    while len(seen) < count:
        before = len(seen)
        for row, answer in _right_ones(first, shortest, longest, width, seed):
            text = row.tobytes().rstrip(b"\0")
            if text not in seen and len(seen) < count:
                tokens[len(seen)], answers[len(seen)] = row, answer
                seen.add(text)
        first, idle = first + _CHUNK, 0 if len(seen) > before else idle + 1
        if idle == _PATIENCE:
            raise ValueError(
                f"listops: found {len(seen)} distinct trees of {shortest} to {longest} tokens, expected {count}; ask "
                "for fewer or for longer ones."
            )
    return tokens, answers


def _right_ones(first: int, shortest: int, longest: int, width: int, seed: int) -> list[tuple[np.ndarray, int]]:
    """Of the next trees by number, those of the right length."""
    keys = roots(seed, first, _CHUNK)
    size = tree_lengths(keys, longest)
    right = keys[(shortest <= size) & (size <= longest)]
    return list(zip(*write_trees(right, width), strict=True)) if len(right) else []


def _name_arrays(part: str, x: np.ndarray, y: np.ndarray) -> Arrays:
    return {f"{part}_x": x, f"{part}_y": y, f"{part}_lengths": (x != 0).sum(1).astype(np.int16)}


def _read_official() -> Arrays:
    folder = data_folder() / "lra_release" / "listops-1000"
    held: Arrays = {}
    for part, name in zip(_PARTS, ("train", "val", "test"), strict=True):
        path = folder / f"basic_{name}.tsv"
        if not path.is_file():
            raise FileNotFoundError(
                f"listops: {str(path)!r} is not there; unpack https://storage.googleapis.com/long-range-arena/"
                f"lra_release.gz into {str(data_folder())!r} (or set {VARIABLE}), or leave official out."
            )
        held |= _name_arrays(part, *read_tsv(path.read_text(encoding="utf-8"), str(path)))
    return held


def read_tsv(text: str, where: str = "tsv") -> tuple[np.ndarray, np.ndarray]:
    """The arena's format: a header, then "tree TAB answer" a line; parentheses are dropped, trees cut at 2000."""
    number = {word: token for token, word in enumerate(VOCABULARY)}
    rows = [line.split("\t") for line in text.splitlines()[1:]]
    tokens, answers = np.zeros((len(rows), LENGTH), dtype=np.uint8), np.zeros(len(rows), dtype=np.uint8)
    for i, row in enumerate(rows):
        try:
            tree, answer = row
            words = [number[word] for word in tree.split() if word not in "()"][:LENGTH]
            tokens[i, : len(words)], answers[i] = words, int(answer)
        except (ValueError, KeyError) as wrong:
            raise ValueError(f"{where}, line {i + 2}: expected a tree, a tab and a digit ({wrong!r}).") from wrong
    return tokens, answers
