"""Substitutions: against all of them on small inputs, against chance on ListOps, and every rule obeyed."""

from __future__ import annotations

from itertools import combinations, product
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from resolvent import cli
from resolvent.attacks import Substitution, margin, substitute
from resolvent.data.listops.task import generate
from resolvent.models import (
    ClassifierConfig,
    ModelConfig,
    ResidualConfig,
    S4DConfig,
    TokensConfig,
    build_model,
    save_model,
)


class Reader(nn.Module):
    """A tanh recurrence over embedded tokens."""

    def __init__(self, vocabulary: int, d: int = 6, classes: int = 3, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.table, self.mix, self.out = nn.Embedding(vocabulary, d), nn.Linear(d, d), nn.Linear(d, classes)

    def embed(self, tokens: Tensor) -> Tensor:
        found: Tensor = self.table(tokens)
        return found

    def from_embedding(self, e: Tensor, lengths: Tensor | None = None) -> Tensor:
        h, states = e.new_zeros(len(e), e.shape[2]), []
        for u in e.unbind(1):
            h = torch.tanh(1.4 * self.mix(h) + u)
            states.append(h)
        last = torch.full((len(e),), e.shape[1]) if lengths is None else lengths
        found: Tensor = self.out(torch.stack(states, 1)[torch.arange(len(e)), last - 1])
        return found

    def forward(self, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
        return self.from_embedding(self.embed(tokens), lengths)


def best_of_all(model: nn.Module, row: Tensor, y: int, k: int, vocabulary: int) -> float:
    """The highest margin over all sequences that differ in at most k places."""
    found = []
    for places in combinations(range(len(row)), k):
        for values in product(range(vocabulary), repeat=k):
            other = row.clone()
            other[list(places)] = torch.tensor(values)
            found.append(other)
    with torch.no_grad():
        logits = model(torch.stack(found))
    return float(margin(logits, torch.full((len(found),), y)).max())


@pytest.mark.parametrize("seed", range(3))
def test_against_all_substitutions(seed: int) -> None:
    V, l, k = 5, 6, 2
    model = Reader(V, seed=seed).eval()
    tokens = torch.randint(V, (8, l), generator=torch.Generator().manual_seed(seed))
    y = model(tokens).argmax(1)
    exact = torch.tensor([best_of_all(model, row, int(label), k, V) for row, label in zip(tokens, y, strict=True)])
    whole = substitute(model, tokens, y, k, beam=l * (V - 1), tries=l * (V - 1), vocabulary=V)
    assert torch.equal(whole.success, exact > 0)
    stands = exact <= 0  # a sample that breaks stops early
    assert torch.allclose(whole.margin[stands].double(), exact[stands].double(), atol=1e-5)
    greedy = substitute(model, tokens, y, k, tries=8, vocabulary=V)
    beam = substitute(model, tokens, y, k, beam=4, tries=8, vocabulary=V)
    assert bool((greedy.margin <= exact + 1e-5).all())
    assert int(greedy.success.sum()) <= int(beam.success.sum()) <= int(whole.success.sum())
    assert int(beam.success.sum()) >= 0.75 * int(whole.success.sum())


def test_rules_are_kept_and_truth_is_told() -> None:
    V = 7
    model = Reader(V).eval()
    tokens = torch.randint(V, (12, 9), generator=torch.Generator().manual_seed(3))
    lengths = torch.randint(4, 10, (12,), generator=torch.Generator().manual_seed(4))
    y = model(tokens, lengths).argmax(1)
    allowed = torch.zeros(V, V, dtype=torch.bool)
    allowed[:4, :4] = True  # digits for digits
    mask = torch.arange(9).expand(12, 9) != 1
    found = substitute(model, tokens, y, 3, beam=2, vocabulary=V, allowed=allowed, mask=mask, lengths=lengths)
    changed = found.tokens != tokens
    assert int(changed.sum(1).max()) <= 3
    assert torch.equal(found.changed, changed.sum(1))
    assert bool((tokens[changed] < 4).all() & (found.tokens[changed] < 4).all())
    assert not bool((changed & ~mask).any())
    assert not bool((changed & (torch.arange(9) >= lengths[:, None])).any())
    assert torch.equal(model(found.tokens, lengths).argmax(1) != y, found.success)
    part = substitute(model, tokens[5:7], y[5:7], 3, beam=2, vocabulary=V, allowed=allowed, mask=mask[5:7],
                      lengths=lengths[5:7])  # fmt: skip
    assert torch.equal(part.tokens, found.tokens[5:7])
    short = substitute(model, tokens[:2].int(), y[:2], 1, vocabulary=V)  # as small types come from a disk
    assert torch.equal(short.tokens, substitute(model, tokens[:2], y[:2], 1, vocabulary=V).tokens)


@pytest.mark.parametrize("rule", ["mask", "allowed", "lengths"])
def test_a_beam_wider_than_what_may_be_swapped_keeps_to_the_rules(rule: str) -> None:
    V, given = 5, {}
    for seed in range(6):
        model = Reader(V, seed=seed).eval()
        tokens = torch.randint(V, (6, 8), generator=torch.Generator().manual_seed(seed))
        free, lawful = torch.ones(6, 8, dtype=torch.bool), torch.ones(V, dtype=torch.bool)
        if rule == "mask":
            given = {"mask": torch.arange(8).expand(6, 8) == 6}
            free = given["mask"]
        elif rule == "allowed":
            given = {"allowed": torch.arange(V) == 2}
            lawful = given["allowed"]
        else:
            given = {"lengths": torch.tensor([1, 2, 8, 1, 2, 3])}
            free = torch.arange(8) < given["lengths"][:, None]
        lengths = given.get("lengths")
        y = (model(tokens) if lengths is None else model(tokens, lengths)).argmax(1)
        found = substitute(model, tokens, y, 3, beam=8, tries=8, vocabulary=V, **given)  # type: ignore[arg-type]
        changed = found.tokens != tokens
        assert not bool((changed & ~free).any())
        assert bool(lawful[found.tokens[changed]].all())


def test_large_sets_are_searched_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same answers, and never more at a time than was set."""
    from resolvent.attacks.substitution import attack

    V, model = 7, Reader(7).eval()
    tokens = torch.randint(V, (20, 9), generator=torch.Generator().manual_seed(3))
    y = model(tokens).argmax(1)
    whole = substitute(model, tokens, y, 2, beam=3, vocabulary=V)
    seen, once = [], attack._Search.run
    monkeypatch.setattr(attack, "_AT_ONCE", 9 * 3 * 32 * 4)
    monkeypatch.setattr(attack._Search, "run", lambda self, x, name: (seen.append(len(x)), once(self, x, name))[1])
    parts = substitute(model, tokens, y, 2, beam=3, vocabulary=V)
    assert max(seen) == 4
    assert torch.equal(parts.tokens, whole.tokens)
    assert torch.allclose(parts.margin, whole.margin, atol=1e-6)


def test_it_beats_chance_on_listops() -> None:
    x, y = (torch.from_numpy(v).long() for v in generate(40, 20, 40, 48))
    V = int(x.max()) + 1
    model = Reader(V, d=12, classes=10, seed=1).eval()
    answers = model(x).argmax(1)
    found = Substitution(2)(model, x, answers, vocabulary=V)
    generator = torch.Generator().manual_seed(0)
    chance = x.clone()
    for row in chance:
        row[torch.randperm(x.shape[1], generator=generator)[:2]] = torch.randint(V, (2,), generator=generator)
    assert float(found.success.double().mean()) > 2 * float((model(chance).argmax(1) != answers).double().mean())
    assert len(y) == 40


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"k": 7}, "7 substitutions"),
        ({"k": 5, "lengths": torch.tensor([1, 4])}, "more than 4 tokens"),
        ({"vocabulary": 3}, "0 .. 2"),
        ({"allowed": torch.ones(4, dtype=torch.bool)}, "allowed"),
        ({"mask": torch.ones(2, 5, dtype=torch.bool)}, "mask"),
    ],
)
def test_what_does_not_fit_is_refused(given: dict[str, object], message: str) -> None:
    tokens = torch.tensor([[0, 1, 2, 3, 4, 1], [4, 3, 2, 1, 0, 2]])
    with pytest.raises(ValueError, match=message):
        substitute(Reader(5), tokens, torch.tensor([0, 1]), **{"vocabulary": 5} | given)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="no embed"):
        substitute(nn.Linear(2, 2), tokens, torch.tensor([0, 1]))


def test_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    block = ResidualConfig(S4DConfig(4))
    config = ModelConfig(input=TokensConfig(vocab=9), block=block, head=ClassifierConfig(3), d_model=4, layers=1)
    model = build_model(config).eval()
    save_model(model, tmp_path / "run")
    x = torch.randint(9, (10, 12))
    save_file({"x": x, "y": model(x).argmax(1)}, tmp_path / "data.safetensors")
    words = ["attack", str(tmp_path / "run"), "--data", str(tmp_path / "data.safetensors")]
    assert cli.main([*words, "--substitutions", "2", "--out", str(tmp_path / "out")]) == 0
    assert "clean accuracy 100.00%" in capsys.readouterr().out
    assert (tmp_path / "out" / "record.json").is_file()
    assert cli.main([*words, "--embedding", "--norm", "l2", "--eps", "0.5", "--preset", "fast"]) == 0
    assert "robust accuracy" in capsys.readouterr().out
    assert cli.main([*words, "--substitutions", "20"]) == 2
    assert cli.main([*words, "--substitutions", "2", "--embedding"]) == 2
    for wrong in (["--eps", "0.1"], ["--band", "0", "0.1"], ["--time-steps", "1"], ["--preset", "fast"]):
        assert cli.main([*words, "--substitutions", "2", *wrong]) == 2
    assert cli.main([*words, "--beam", "4"]) == 2
    assert "--beam goes with --substitutions" in capsys.readouterr().err
