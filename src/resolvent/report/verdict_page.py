"""Verdicts as text: lines of a terminal's table, and the page docs/reproduction.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from resolvent.report.claim import PAPERS
from resolvent.report.verdict import OUTCOMES, Verdict

HEAD = """# What was reproduced

Every claim of four papers, with the verdict that our committed records give it. This page is written by a command, and
a test keeps it up to date:

    resolvent verdicts benchmarks/results/evidence --markdown docs/reproduction.md

A verdict is computed, not written. `report/claims.toml` says for each claim which number of which runs must lie where:
a published row of accuracies within 2 points (clean, PGD-10), 3 (AutoAttack) or 1 (Long Range Arena); the sign of an
effect by two standard errors from three seeds on. `benchmarks/results/evidence/` holds what each run has shown, with
its commit, command and seed. *Partly* means that some of a claim's tests pass, that some have not been run, or that
seeds diverged; *not reproduced* that none passes, which seeds that lie far apart may do as well. Where a row names a
checkpoint it is the authors' choice, best by test; ours, best by validation, stands in the same file. Errors in the
papers that we met on the way are on the [errata page](errata.md), the MNIST rows under PGD-AT on
[their own](notes/mnist.md).

Records name the commit that ran. The commits 43bcc86, a2e6fd6, c363416 and cea8f24 were working states that the history
does not keep: 630c40b is the first with their recipes and records. `benchmarks/masking.py`, run on top of 8613852, is
there, too, as `benchmarks/attacks/masking.py`. Studies that train nothing come out again to three digits. Training over
long sequences depends on rounding: Majority at T = 250 from s_A = -0.06, seed 0, run again with later code has the same
best accuracy (90.7 %) and a gap between the losses of 0.45 where the record has 1.08; one seed says little of a gap.
"""


def counts(found: Sequence[Verdict]) -> str:
    """`12 reproduced, 3 partly, ...; n with three seeds or more`."""
    held = Counter(verdict.outcome for verdict in found)
    message = ", ".join(f"{held[outcome]} {outcome}" for outcome in OUTCOMES if held[outcome])
    seeded = sum(verdict.seeds >= 3 for verdict in found)
    return f"{len(found)} claims: {message}; {seeded} judged with three seeds or more"


def markdown(found: Sequence[Verdict]) -> str:
    """The whole page: a section per paper, judged claims first, then those not run with command and cost."""
    parts = [HEAD, f"\n**{counts(found)}.**\n"]
    for paper, title in PAPERS.items():
        mine = [verdict for verdict in found if verdict.claim.paper == paper]
        judged = [verdict for verdict in mine if verdict.outcome != "not run"]
        parts.append(f"\n## {title}\n")
        if judged:
            parts.append("\n" + verdict_table(judged))
            parts.append("\n" + "".join(_sentence(verdict) for verdict in judged))
        idle = [verdict for verdict in mine if verdict.outcome == "not run"]
        if idle:
            parts.append("\nNot run:\n\n| where | claim | published | command | cost |\n|---|---|---|---|---|\n")
            parts += [_idle(verdict) for verdict in idle]
    return "".join(parts)


def verdict_table(judged: Sequence[Verdict]) -> str:
    head = "| where | claim | published | ours | seeds | verdict |\n|---|---|---|---|---|---|\n"
    return head + "".join(map(_row, judged))


def _row(verdict: Verdict) -> str:
    claim = verdict.claim
    cells = (claim.place, claim.says, claim.published, verdict.ours, str(verdict.seeds), f"**{verdict.outcome}**")
    return f"| {' | '.join(map(_cell, cells))} |\n"


def _sentence(verdict: Verdict) -> str:
    """The findings, and their files."""
    files = sorted({file for found in verdict.findings for held in found.sources for file in held.split()})
    named = ", ".join(f"`{name}`" for name in _join_seeds(files))
    missing = len(verdict.claim.tests) - len(verdict.findings)
    unrun = f" {missing} of {len(verdict.claim.tests)} tests not run." if missing else ""
    note = f" {verdict.claim.note}" if verdict.claim.note else ""
    seeds = f"{verdict.seeds} seed{'s' * (verdict.seeds != 1)}"
    message = f"{verdict.outcome}, {seeds}: {verdict.ours}, where the paper has {verdict.claim.published}."
    return f"- {verdict.claim.place}: {message}{unrun}{note} ({named}; `{verdict.claim.command}`)\n"


def _join_seeds(files: Sequence[str]) -> list[str]:
    """Files that differ only in their seed as one name, in shell notation: `a-seed{0,1}.json`."""
    ends: dict[str, list[str]] = {}
    for name in files:
        stem, mark, end = name.partition("-seed")
        ends.setdefault(stem + mark, []).append(end.removesuffix(".json") if mark else "")
    return [
        stem + (f"{{{','.join(of)}}}.json" if len(of) > 1 else f"{of[0]}.json" if of[0] else "")
        for stem, of in ends.items()
    ]


def _idle(verdict: Verdict) -> str:
    claim = verdict.claim
    return (
        f"| {' | '.join(map(_cell, (claim.place, claim.says, claim.published, f'`{claim.command}`', claim.cost)))} |\n"
    )


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
