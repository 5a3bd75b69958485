"""Claims are judged by the numbers of records, and the committed page says what the committed records give."""

from __future__ import annotations

import json
import re
import shlex
import statistics
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from resolvent.cli import main
from resolvent.experiments.recipe import cells_of
from resolvent.experiments.recipe import names as recipe_names
from resolvent.report.average import TASKS, average, with_rows
from resolvent.report.claim import PAPERS, VARIANTS, Claim, Criterion, claims
from resolvent.report.evidence import Evidence, evidence_of, read_evidence, save_evidence
from resolvent.report.runs import Runs
from resolvent.report.targets import targets
from resolvent.report.verdict import judge
from resolvent.report.verdict_page import counts, markdown

ROOT = Path(__file__).parent.parent.parent
COMMITTED = ROOT / "benchmarks" / "results" / "evidence"
NEAR = Criterion("clean", "r", ("a",), ("clean_best_by_test", "clean_best"), near=60.0, within=2.0)
ABOVE = Criterion("gain", "r", ("a",), ("clean_best",), above=0.0, minus=("b",))


def shown(tag: str, *numbers: float, name: str = "clean_best") -> list[Evidence]:
    return [Evidence("r", (tag,), seed, {name: number}, source=f"{tag}{seed}") for seed, number in enumerate(numbers)]


def outcome(evidence: list[Evidence], *tests: Criterion) -> str:
    claim = Claim("qi2024", "place", "says", "60", "command", "cost", tests)
    return judge([claim], evidence)[0].outcome


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [((61.9,), "reproduced"), ((62.1,), "not reproduced"), ((50.0, 70.0), "reproduced"), ((), "not run")],
)
def test_a_number_near_the_published_one(numbers: tuple[float, ...], expected: str) -> None:
    assert outcome(shown("a", *numbers), NEAR) == expected


def test_an_effect_must_be_sure_by_two_standard_errors_from_three_seeds_on() -> None:
    zero = shown("b", 0.0, 0.0, 0.0)
    sure, unsure = (1.0, 1.2, 0.8), (1.0, 3.0, -1.0)
    for numbers in (sure, unsure):  # the rule itself, written out
        error = statistics.stdev(numbers) / 3**0.5
        expected = "reproduced" if statistics.mean(numbers) > 2 * error else "not reproduced"
        assert outcome(shown("a", *numbers) + zero, ABOVE) == expected
    assert outcome(shown("a", *unsure[:2]) + zero, ABOVE) == "reproduced"  # two seeds: the mean alone


def test_an_effect_pairs_seeds_and_ignores_those_without_a_partner() -> None:
    found = judge([Claim("qi2024", "", "", "", "", "", (ABOVE,))], shown("a", 5.0, 7.0, 90.0) + shown("b", 4.0, 4.0))
    assert found[0].findings[0].values == (1.0, 3.0)
    assert outcome(shown("a", 5.0), ABOVE) == "not run"


def test_the_first_name_that_a_run_has_is_taken() -> None:
    both = [Evidence("r", ("a",), 0, {"clean_best": 10.0, "clean_best_by_test": 60.0})]
    assert outcome(both, NEAR) == "reproduced"


def test_some_tests_passed_or_missing_is_partly() -> None:
    other = replace(NEAR, tags=("c",))
    assert outcome(shown("a", 60.0), NEAR, other) == "partly"
    assert outcome(shown("a", 60.0) + shown("c", 10.0), NEAR, other) == "partly"
    assert outcome(shown("a", 10.0), NEAR, other) == "not reproduced"


def test_a_seed_that_diverged_keeps_a_claim_from_being_reproduced_whole() -> None:
    lost = [Evidence("r", ("a",), 7, {"diverged": 1.0})]
    assert outcome(shown("a", 60.0) + lost, NEAR) == "partly"
    assert outcome(lost, NEAR) == "not reproduced"


def test_a_run_of_another_length_does_not_count() -> None:
    short = [Evidence("r", ("a",), 0, {"clean_best": 60.0, "epochs": 10.0})]
    assert outcome(short, replace(NEAR, epochs=40)) == "not run"
    assert outcome(short, replace(NEAR, epochs=10)) == "reproduced"


def test_other_tags_and_recipes_do_not_count() -> None:
    assert outcome(shown("a2", 60.0), NEAR) == "not run"
    assert outcome([Evidence("s", ("a",), 0, {"clean_best": 60.0})], NEAR) == "not run"


def test_a_test_needs_one_criterion() -> None:
    with pytest.raises(ValueError, match="exactly one of near, above and below"):
        Criterion("x", "r", (), ("v",), near=1.0, above=0.0)


def study(rows: list[list[Any]], columns: list[str]) -> dict[str, Any]:
    cell = {"recipe": "s", "tags": ["n=4"], "seed": 0}
    return {"cell": cell, "study": {"text": "", "table": {"columns": columns, "rows": rows}, "charts": []}}


def values(record: dict[str, Any]) -> dict[str, float]:
    return evidence_of(Runs({Path("x"): record}))[0].values


def test_rows_of_a_study_are_called_by_words_and_whole_numbers() -> None:
    found = values(study([["LRU", 4, 0.5, None], ["LRU", 8, 1.5, "2e40"]], ["layer", "length", "mean", "bound"]))
    assert found == {"LRU, 4.mean": 0.5, "LRU, 8.mean": 1.5, "LRU, 8.bound": 2e40}


def test_rows_with_one_name_are_told_apart_by_their_next_number() -> None:
    found = values(study([["random", 0.01, 9.0], ["random", 0.1, 8.0]], ["E", "size", "kappa"]))
    assert found["random, 0.01.kappa"] == 9.0
    assert found["random, 0.1.kappa"] == 8.0


def test_saved_evidence_is_read_back_as_it_was(tmp_path: Path) -> None:
    runs = Runs({tmp_path: study([[2, 1.5]], ["N", "kappa"])})
    (path,) = save_evidence(runs, tmp_path / "kept", "abc1234")
    (back,) = read_evidence([tmp_path / "kept"])
    assert back.values == {"2.kappa": 1.5}
    assert (back.commit, back.seed, back.command) == ("abc1234", 0, "resolvent run s --only n=4 --seeds 0")
    assert path.name == "s-n=4-seed0.json"


@pytest.mark.parametrize("text", ['{"recipe": "r", "tags": [], "seed": 0, "values": {"x": "one"}}', "{", "[" * 100000])
def test_a_damaged_file_is_named(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.json").write_text(text, encoding="utf-8")
    assert main(["verdicts", str(tmp_path)]) == 2
    assert "bad.json" in capsys.readouterr().err


def test_wrong_calls_end_with_status_two(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verdicts", str(tmp_path / "none")]) == 2
    assert "there is no folder" in capsys.readouterr().err
    assert main(["verdicts", str(tmp_path)]) == 2
    assert "no record of a finished run" in capsys.readouterr().err
    assert main(["verdicts", str(COMMITTED), "--save", str(tmp_path)]) == 2
    assert "--commit" in capsys.readouterr().err


def test_every_published_row_is_covered_and_every_claim_says_how_it_is_run() -> None:
    found = claims()
    assert {claim.paper for claim in found} == set(PAPERS)
    assert all(claim.command and claim.published and claim.tests for claim in found)
    said = {(test.recipe, test.tags) for claim in found for test in claim.tests}
    text = json.dumps([claim.place + claim.says for claim in found])
    for recipe, tags in targets():
        if recipe in ("qi2024-table1", "qi2024-table2", "lra"):
            assert (recipe, tags) in said or {"s4", "mnist"} <= set(tags), (recipe, tags)
    assert "MNIST, S4, PGD-AT" in text


def test_commands_of_claims_name_cells_that_there_are() -> None:
    """Every `resolvent run` of every claim, and every cell that its tests ask for."""
    known: dict[str, set[tuple[str, ...]]] = {}
    derived = ("average", "s4d")  # rows that follow from others
    for claim in claims():
        for command in claim.command.split(" && "):
            words = shlex.split(command)
            if words[:2] != ["resolvent", "run"]:
                assert words[:2] == ["python", "-m"], command
                assert (ROOT / f"{words[2].replace('.', '/')}.py").is_file(), command
                continue
            size = "small" if "small" in words else "full"
            only = words[words.index("--only") + 1] if "--only" in words else ""
            assert cells_of(words[2], size, only), command  # type: ignore[arg-type]
        for test in claim.tests:
            if test.recipe in recipe_names():
                tags = known.setdefault(
                    test.recipe,
                    {c.tags for s in ("full", "small") for c in cells_of(test.recipe, s)},  # type: ignore[arg-type]
                )
                for wanted in (test.tags, test.minus or test.tags):
                    assert wanted in tags or set(wanted) & set(derived), (claim.place, wanted)


def test_published_averages_are_those_of_the_rows() -> None:
    rows = {tags: row.values["clean_best"] for (recipe, tags), row in targets().items() if recipe == "lra"}
    names = {name for name, _ in rows}
    assert names >= {"transformer", "s4d", *VARIANTS, "mamba", "griffin"}
    for name in names:
        own = {task: value for (model, task), value in rows.items() if model == name and task != "average"}
        mean = average(name, own)
        assert mean is not None, name
        assert mean == pytest.approx(rows[name, "average"], abs=0.011), name
    for task in TASKS:  # the lecture's S4D is the best of three in every column
        assert rows["s4d", task] == max(rows.get((name, task), 0.0) for name in VARIANTS)


def test_averages_and_the_best_of_three_follow_from_records() -> None:
    def ran(name: str, task: str, value: float, seed: int = 0) -> Evidence:
        return Evidence("lra", (name, task), seed, {"clean_best": value, "diverged": 0.0}, source=f"{name}-{task}")

    own = [ran("s5", task, 60.0 + i) for i, task in enumerate(TASKS)]
    found = {held.tags: held for held in with_rows(own)}
    assert found["s5", "average"].values == {"clean_best": 62.5}
    assert found["s5", "average"].source.split() == [f"s5-{task}" for task in TASKS]
    assert ("s5", "average") not in {held.tags for held in with_rows(own[:-1])}
    plain = [ran("transformer", task, 50.0 + i) for i, task in enumerate(TASKS[:-1])]
    assert with_rows(plain)[-1].values["clean_best"] == pytest.approx((50 + 51 + 52 + 53 + 54 + 50) / 6)
    three = [ran(name, "text", value) for name, value in zip(VARIANTS, (80.0, 82.0, 81.0), strict=True)]
    assert {held.tags: held.values for held in with_rows(three)}["s4d", "text"] == {"clean_best": 82.0}
    assert len(with_rows(three[:2])) == 2
    assert len(with_rows([three[0], ran("s4d-inv", "text", 1.0, seed=1), three[2]])) == 3  # another seed is no partner


def test_committed_numbers_can_be_traced() -> None:
    for held in read_evidence([COMMITTED]):
        assert held.commit, held.source
        assert held.command, held.source
        assert held.values, held.source
        words = shlex.split(held.command)
        if words[:2] == ["resolvent", "run"]:  # the command names this very run
            size = "small" if "small" in words else "full"
            only = words[words.index("--only") + 1] if "--only" in words else ""
            assert held.tags in {cell.tags for cell in cells_of(words[2], size, only)}, held.source  # type: ignore[arg-type]


def test_every_run_behind_a_number_is_named() -> None:
    """The run that is taken off and the one that diverged as well, seeds in one name."""
    claim = Claim("qi2024", "place", "says", "60", "command", "cost", (ABOVE,))
    held = [Evidence("r", (tag,), seed, {"clean_best": 1.0}, source=f"{tag}-seed{seed}.json")
            for tag in "ab" for seed in (0, 5)]  # fmt: skip
    lost = Evidence("r", ("a",), 7, {"diverged": 1.0}, source="a-seed7.json")
    assert "(`a-seed{0,5,7}.json`, `b-seed{0,5}.json`; `command`)" in markdown(judge([claim], [*held, lost]))
    assert "(`a-seed7.json`; `command`)" in markdown(judge([claim], [lost]))
    judged = [v for v in judge(claims(), read_evidence([COMMITTED])) if v.outcome != "not run"]
    for verdict in judged:
        for found in verdict.findings:
            assert all((COMMITTED / name).is_file() for held in found.sources for name in held.split())
            assert found.sources, verdict.claim.place


def test_commits_of_records_are_in_the_history_or_explained() -> None:
    def git(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False)

    if git("rev-parse", "--is-shallow-repository").stdout.strip() != "false":
        pytest.skip("needs the whole history")
    page = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")
    named = {word for held in read_evidence([COMMITTED]) for word in re.findall(r"\b[0-9a-f]{7,40}\b", held.commit)}
    assert named
    for commit in named:
        assert git("merge-base", "--is-ancestor", commit, "HEAD").returncode == 0 or commit in page, commit


def test_what_was_not_run_is_told_with_command_and_cost(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verdicts", str(COMMITTED), "--paper", "massai2025"]) == 0
    message = " ".join(capsys.readouterr().out.split())
    idle = [v.claim for v in judge(claims(), read_evidence([COMMITTED])) if v.outcome == "not run"]
    assert all(claim.command and claim.cost for claim in idle)
    assert "transformer,listops" in message
    assert "estimate" in message


def test_the_committed_page_is_what_the_committed_records_give() -> None:
    page = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")
    assert page == markdown(judge(claims(), read_evidence([COMMITTED]))), (
        "run: resolvent verdicts benchmarks/results/evidence --markdown docs/reproduction.md"
    )


def test_the_command_prints_what_it_counts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verdicts", str(COMMITTED), "--paper", "yu2024", "--judged"]) == 0
    output = capsys.readouterr().out
    mine = [v for v in judge(claims(), read_evidence([COMMITTED])) if v.claim.paper == "yu2024"]
    assert counts(mine) in " ".join(output.split())
    assert "not run" not in output.splitlines()[1]
