"""ListOps: an evaluator that shares no code with the generator, the rules, and the arena's own file format."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import numpy as np
import pytest

from resolvent.data import load_task
from resolvent.data.listops.task import generate, read_tsv
from resolvent.data.listops.trees import OPERATORS, VOCABULARY, roots, tree_lengths, write_trees


def parse(words: list[str], place: int = 0) -> tuple[object, int]:
    """The expression that begins at `place` as nested lists, and where the next one begins."""
    if not words[place].startswith("["):
        return int(words[place]), place + 1
    found: list[object] = [words[place][1:]]
    place += 1
    while words[place] != "]":
        argument, place = parse(words, place)
        found.append(argument)
    return found, place + 1


def evaluate(tree: object, depth: int = 1) -> int:
    if isinstance(tree, int):
        assert 0 <= tree <= 9
        return tree
    assert isinstance(tree, list)
    assert depth < 10
    assert 2 <= len(tree) - 1 <= 10
    values = [evaluate(argument, depth + 1) for argument in tree[1:]]
    rules = {"MIN": min, "MAX": max, "SM": lambda v: sum(v) % 10, "MED": lambda v: int(statistics.median(v))}
    return int(rules[str(tree[0])](values))  # type: ignore[operator]


def check(tokens: np.ndarray, answers: np.ndarray) -> None:
    for row, answer in zip(tokens, answers, strict=True):
        words = [VOCABULARY[t] for t in row[: np.count_nonzero(row)]]
        tree, size = parse(words)
        assert size == len(words)
        assert evaluate(tree) == answer


def test_every_answer_is_right() -> None:
    tokens, answers = generate(250, 501, 1999, 2000)
    check(tokens, answers)
    lengths = np.count_nonzero(tokens, 1)
    assert lengths.min() > 500
    assert lengths.max() < 2000
    assert len({row.tobytes() for row in tokens}) == 250


@pytest.mark.slow
def test_ten_thousand_answers_are_right() -> None:
    check(*generate(10_000, 501, 1999, 2000, seed=1))


@pytest.mark.slow
def test_a_hundred_thousand_trees_in_under_five_minutes() -> None:
    """CPU time, which other processes do not move."""
    started = time.process_time()
    tokens, answers = generate(100_000, 501, 1999, 2000, seed=2)
    assert time.process_time() - started < 300
    assert tokens.shape == (100_000, 2000)
    assert set(np.unique(answers)) == set(range(10))


def test_short_trees_too() -> None:
    check(*generate(2000, 4, 40, 40))


def test_the_rates_are_the_rules() -> None:
    """Of 20,000 roots a quarter are operators; kinds and digits are uniform; arguments number 2 to 10."""
    keys = roots(0, 0, 20_000)
    lengths = tree_lengths(keys, 400)
    assert abs((lengths > 1).mean() - 0.25) < 4 * np.sqrt(0.25 * 0.75 / 20_000)
    tokens, _ = write_trees(keys[lengths == 1], 1)
    digits = np.bincount(tokens[:, 0], minlength=11)[1:]
    assert abs(digits / digits.sum() - 0.1).max() < 0.01
    small = keys[(lengths > 1) & (lengths < 400)]
    tokens, _ = write_trees(small, 400)
    kinds = np.bincount(tokens.ravel(), minlength=16)[11:15]
    assert abs(kinds / kinds.sum() - 0.25).max() < 0.01
    assert len(OPERATORS) == len(kinds)


def test_the_depth_is_ten() -> None:
    tokens, _ = generate(60, 501, 1999, 2000)
    depth = np.cumsum((tokens >= 11) & (tokens <= 14), 1) - np.cumsum(tokens == 15, 1)
    assert depth.max() == 9  # nine open brackets around a digit of depth ten


def test_a_tree_follows_from_its_number_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    import resolvent.data.listops.task as home

    tokens, answers = generate(40, 20, 60, 60, seed=3)
    monkeypatch.setattr(home, "_CHUNK", 777)
    again, same = generate(40, 20, 60, 60, seed=3)
    assert np.array_equal(tokens, again)
    assert np.array_equal(answers, same)
    assert not np.array_equal(tokens, generate(40, 20, 60, 60, seed=4)[0])


def test_as_a_task(own_folder: Path) -> None:
    task = load_task("listops", around=100, samples=(50, 10, 20))
    assert [len(split) for split in task.splits().values()] == [50, 10, 20]
    assert (task.length, task.vocabulary, task.classes) == (105, 16, 10)
    assert task.train.lengths is not None
    assert 95 <= int(task.train.lengths.min()) <= int(task.train.lengths.max()) <= 105
    assert "seed 0" in task.notes[0]
    assert load_task("listops", around=100, samples=(50, 10, 20), lengths=False).train.lengths is None
    packed = load_task("listops", around=100, samples=(50, 10, 20), packed=True)
    assert packed.train.x.element_size() == 1
    index = packed.train.lengths.argsort()  # type: ignore[union-attr]
    assert packed.train.select(index).x.equal(task.train.select(index).x.long())


def test_trees_that_do_not_exist_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import resolvent.data.listops.task as home

    monkeypatch.setattr(home, "_PATIENCE", 3)
    with pytest.raises(ValueError, match="found 10 distinct trees of 1 to 2 tokens, expected 11"):
        generate(11, 1, 2, 2)
    with pytest.raises(ValueError, match="from 6 on"):
        load_task("listops", around=5)


def test_the_arenas_format() -> None:
    text = "Source\tTarget\n( ( ( ( [MAX 2 ) 9 ) ( ( ( [MIN 4 ) 7 ) ] ) ) ] )\t9\n( ( ( [SM 5 ) 6 ) ] )\t1\n"
    tokens, answers = read_tsv(text)
    assert [VOCABULARY[t] for t in tokens[0, :8]] == ["[MAX", "2", "9", "[MIN", "4", "7", "]", "]"]
    assert tokens.shape == (2, 2000)
    check(tokens, answers)
    for wrong in ("Source\tTarget\n[MAX 1 2 ]\n", "Source\tTarget\n[MOX 1 ]\t1\n", "Source\tTarget\n1\tone\n"):
        with pytest.raises(ValueError, match="line 2"):
            read_tsv(wrong, "basic.tsv")


def test_the_official_files_are_asked_for(own_folder: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"basic_train\.tsv.*RESOLVENT_DATA"):
        load_task("listops", official=True)
    folder = own_folder / "lra_release" / "listops-1000"
    folder.mkdir(parents=True)
    for name in ("train", "val", "test"):
        (folder / f"basic_{name}.tsv").write_text("Source\tTarget\n( ( ( [SM 5 ) 6 ) ] )\t1\n")
    task = load_task("listops", official=True)
    assert task.train.y.tolist() == [1]
    assert task.length == 2000
