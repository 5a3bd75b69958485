"""The report of a folder of runs: one offline HTML page, with its tables as Markdown and CSV."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from resolvent.disk import write_text
from resolvent.report.claim import claims
from resolvent.report.escape import markdown_text
from resolvent.report.evidence import evidence_of
from resolvent.report.figures import run_figure as draw
from resolvent.report.figures.chart import chart_svg, wide
from resolvent.report.figures.contribution import attribution_bars, contribution_figures
from resolvent.report.figures.corruption import corruption_findings, robustness_figures
from resolvent.report.figures.figure import spectrum_svg
from resolvent.report.figures.fourier import fourier_findings
from resolvent.report.figures.generalisation import gap_findings
from resolvent.report.figures.process import WAYS, Named, process_findings, short_names, way_of
from resolvent.report.figures.sample import example_svg, image_svg
from resolvent.report.page import require_packages, template
from resolvent.report.record import Spectrum
from resolvent.report.runs import Record, Runs, read_runs, without_odd
from resolvent.report.tables.answers import answer_findings, class_names
from resolvent.report.tables.arena import arena_averages
from resolvent.report.tables.table import LEGEND, Table, count, tables
from resolvent.report.tables.tile import tiles
from resolvent.report.verdict import Verdict, judge
from resolvent.report.verdict_page import verdict_table

NAMES = {"html": "report.html", "markdown": "report.md", "csv": "report.csv"}
CURVES = 8  # runs in one robustness figure
SHOWN = 24  # most figures of a kind
NOTE = "replaced_loss"  # a flag in older records, and no problem: few classes leave some losses undefined


def write_report(
    folders: str | Path | Sequence[str | Path],
    out: str | Path | None = None,
    title: str | None = None,
    shown: dict[Path, str] | None = None,
    tell: Callable[[str], None] | None = None,
) -> Path:
    """Read every run below the folders, write report.html, report.md and report.csv, and return the page's path.

    folders  one folder of runs, or several
    out      where the files go; the first folder when left out
    title    of the page
    shown    origins of copies
    tell     called with a line for every omitted run, with the reason

    Examples:
        >>> records = rv.run("ptd-conditioning", "runs", size="small", tell=lambda line: None)
        >>> rv.write_report("runs").name
        'report.html'
    """
    require_packages()
    below = [Path(folders)] if isinstance(folders, str | Path) else [Path(folder) for folder in folders]
    out = below[0] if out is None else Path(out)
    runs = read_runs(below, shown)
    try:
        texts = _texts(runs, title)
    except Exception as wrong:  # a forged or odd record must not prevent the page of the others
        runs = without_odd(runs, _texts, wrong)
        texts = _texts(runs, title)
    for name, text in texts.items():
        write_text(out / name, text)
    if tell is not None:
        for line in runs.problems:
            tell(line)
    return out / NAMES["html"]


def _texts(runs: Runs, title: str | None = None) -> dict[str, str]:
    """The content of every file, by its name; the page last."""
    found = [t for recipe, cells in runs.recipes().items() for t in tables(recipe, cells)]
    found += arena_averages(found)
    lines = [(markdown_text(n), markdown_text(str(r["study"]["text"]))) for n, r in runs.studies()]
    judged = verdicts(runs)
    claimed = f"## What the papers claim\n\n{verdict_table(judged)}\n" if judged else ""
    return {
        NAMES["markdown"]: claimed + markdown(found, problems(runs)) + "".join(f"\n## {n}\n\n{t}\n" for n, t in lines),
        NAMES["csv"]: "".join(t.csv() if i == 0 else t.csv().partition("\n")[2] for i, t in enumerate(found)),
        NAMES["html"]: render(runs, found, title),
    }


def verdicts(runs: Runs) -> list[Verdict]:
    """The papers' claims addressed by these runs."""
    return [verdict for verdict in judge(claims(), evidence_of(runs)) if verdict.outcome != "not run"]


def render(runs: Runs, found: list[Table], title: str | None = None) -> str:
    """The page as text."""
    trained = [record for record in runs.records.values() if "study" not in record]
    good = [record for record in trained if "failed" not in record]
    first: dict[str, Record] = {}  # one seed of every cell, the lowest
    for record in good:
        first.setdefault(" ".join(record["cell"]["tags"]), record)
    named = list(first.items())
    return template("runs.html").render(
        title=title or _title(runs),
        counts={"runs": len(trained), "cells": len({(r["cell"]["recipe"], *r["cell"]["tags"]) for r in trained})},
        verdicts=verdicts(runs),
        studies=studies(runs, named),
        problems=problems(runs),
        tiles=tiles(good),
        tables=[t for t in found if not t.errors],
        errors=[t for t in found if t.errors],
        legend=LEGEND,
        count=count,
        missed=any(a.get("pgd10", {}).get("missed") for r in good for a in r.get("attacks", {}).values()),
        answers=answer_findings(named)[:SHOWN],
        published=any(t.published for t in found),
        tasks=list({r["task"]["name"]: r["task"] for r in trained}.values()),
        versions=sorted({_version(r) for r in runs.records.values()}),
        names=NAMES,
        side_by_side=robustness_figures(named),
        **beside(good),
        **figures(named),
    )


def beside(good: list[Record]) -> dict[str, Any]:
    """Runs of a recipe in common frames: training per epoch, and the attribution of components."""
    recipes: dict[str, dict[str, Record]] = {}
    for record in good:  # one seed of every cell, the lowest
        recipes.setdefault(record["cell"]["recipe"], {}).setdefault(" ".join(record["cell"]["tags"]), record)
    named = {recipe: list(cells.items()) for recipe, cells in recipes.items()}
    found = [held for recipe, cells in named.items() for held in process_findings(recipe, cells)]
    bars = [drawn for recipe, cells in named.items() for drawn in contribution_figures(recipe, cells)]
    return {"processes": [held | {"drawn": draw_charts(held["charts"])} for held in found], "contributions": bars}


def studies(runs: Runs, named: Named) -> list[dict[str, Any]]:
    """Analyses, scores under Fourier noise, generalisation over lengths: name, text, table, charts that are drawn."""
    noise = [("Fourier noise", held) for held in fourier_findings(named)]
    noise += [("Corrupted data", held) for held in corruption_findings(named)]
    found = [(name, record["study"]) for name, record in runs.studies()] + noise
    found += [(recipe, held) for recipe, cells in runs.recipes().items() for held in gap_findings(cells)]
    return [held | {"name": name, "drawn": draw_charts(held["charts"])} for name, held in found]


def draw_charts(charts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"title": c["title"], "caption": c["caption"], "wide": wide(c), "svg": chart_svg(c)} for c in charts]


def _title(runs: Runs) -> str:
    names = dict.fromkeys(record["cell"]["recipe"] for record in runs.records.values())
    return "Runs of " + ", ".join(names) if names else "Runs"


def figures(named: Named) -> dict[str, Any]:
    """All figures, as (name, svg) pairs."""
    curved = [(name, record) for name, record in named if len(draw.curve(record)) > 1]
    groups = robustness_groups(curved)
    inside = [(f"{name}, {each['name']}", each) for name, r in named for each in _layers(r)]
    return {
        "robustness": [(n, draw.robustness_svg(group), draw.curve_terms(group)) for n, group in groups],
        "training": [(name, draw.training_svg(r)) for name, r in named][:SHOWN],
        "certificates": [c for name, r in named if "certificate" in r and (c := certificate(name, r))["svg"]][:SHOWN],
        "unbounded": list_unbounded([(name, r["certificate"]) for name, r in named if "certificate" in r]),
        "attribution": [each for name, r in alone(named) for each in bars(name, r)][:SHOWN],
        "spectra": [(n, spectrum_svg(Spectrum(**e["spectrum"]))) for n, e in inside if "spectrum" in e][:SHOWN],
        "responses": [(n, draw.response_svg(n, e["response"])) for n, e in inside if "response" in e][:SHOWN],
        "examples": [example(name, e, r) for name, r in named for e in _examples(r)[:1]][:SHOWN],
    }


def robustness_groups(named: Named) -> list[tuple[str, Named]]:
    """Runs with the same data and objective, by short names, in groups for figures."""
    groups: dict[str, Named] = {}
    for name, record in named:
        way = way_of(record)
        groups.setdefault(f"{record['task']['name']}, {WAYS.get(way, way)}", []).append((name, record))
    short = {title: short_names(runs) if len(runs) > 1 else runs for title, runs in groups.items()}
    return [(title, runs[i : i + CURVES]) for title, runs in short.items() for i in range(0, len(runs), CURVES)]


def problems(runs: Runs) -> list[dict[str, str]]:
    """All problems, most serious first."""
    found: list[dict[str, str]] = [{"where": "", "what": line} for line in runs.problems]
    flags: list[dict[str, str]] = []
    for record in runs.records.values():
        where = f"{' '.join(record['cell']['tags'])}, seed {record['cell']['seed']}"
        if "failed" in record:
            found.append({"where": where, "what": record["failed"]})
        for name, attack in record.get("attacks", {}).items():
            raised = (flag for flag in attack["flags"] if flag.get("kind") != NOTE)
            lines = (f"{flag.get('kind', 'flag')}: {flag.get('explanation', '')}" for flag in raised)
            flags += [{"where": f"{where}, {name}", "what": text} for text in lines]
    return found + flags


def certificate(name: str, record: Record) -> dict[str, Any]:
    """A curve if there is a bound, or one of the smoothed model; otherwise the components without a bound."""
    held, smooth = record["certificate"], record["certificate"].get("smoothing")
    caption = f"gain {held['gain']:.4g}" if held.get("gain") is not None else held.get("reason", "no finite bound")
    points = held.get("curve") if held.get("gain") is not None else None
    if not points and smooth:
        points = smooth["curve"]
        caption = (
            f"smoothed by noise of deviation {smooth['sigma']:g}, {smooth['n']:,} copies: each sample holds with "
            f"probability {1 - smooth['alpha']:g}. The model itself has no bound: {caption}"
        )
    return {"name": name, "svg": draw.certificate_svg(record, points) if points else "", "caption": caption}


def list_unbounded(held: list[tuple[str, dict[str, Any]]]) -> list[tuple[str, list[str]]]:
    """Runs without a finite bound and their reasons, grouped by reason."""
    found: dict[tuple[str, ...], list[str]] = {}
    for name, certificate in held:
        if certificate.get("gain") is None:
            found.setdefault(tuple(reasons(certificate.get("reason", "no finite bound"))), []).append(name)
    return [(", ".join(names), list(why)) for why, names in found.items()]


def reasons(text: str) -> list[str]:
    """`PLACE (kind): why; PLACE (kind): why; ...` grouped by reason: its first place, and the number of others."""
    places: dict[str, list[str]] = {}
    for piece in text.split("; "):
        place, colon, why = piece.partition("): ")
        places.setdefault(why if colon else piece, []).append(f"{place})" if colon else "")
    return [_reason(why, at) for why, at in places.items()]


def _reason(why: str, places: list[str]) -> str:
    more = f" and {len(places) - 1} like it" if len(places) > 1 else ""
    return f"{places[0]}{more}: {why}" if places[0] else why


def bars(name: str, record: Record) -> list[tuple[str, Any]]:
    """One figure for each distance that attribution measured."""
    held = [(what.upper(), attribution_bars(record["attribution"], what)) for what in ("mse", "kl")]
    return [(f"{name}, {what}", draw.attribution_svg(rows, what)) for what, rows in held if rows]


def alone(named: Named) -> Named:
    """Attributed runs without a common frame with others."""
    held = [(name, r, (r["cell"]["recipe"], r["task"]["name"], way_of(r))) for name, r in named if "attribution" in r]
    shared = Counter(key for *_, key in held)
    return [(name, record) for name, record, key in held if shared[key] == 1]


def example(name: str, held: dict[str, Any], record: Record) -> dict[str, Any]:
    classes = class_names(record, record["task"].get("classes") or 0)
    return {
        "name": name,
        "index": held["index"],
        "clean": _class(classes, held["clean_prediction"]),
        "moved": _class(classes, held["prediction"]),
        "broken_by": held["broken_by"],
        "svg": example_svg(held),
        "before": image_svg(held, "clean"),
        "after": image_svg(held, "attacked"),
    }


def _class(names: list[str], number: int) -> str:
    return names[number] if 0 <= number < len(names) else str(number)


def markdown(made: list[Table], found: list[dict[str, str]]) -> str:
    """The tables, flags and failures first."""
    lines = ["# Report", ""]
    if found:
        messages = [f"{p['where']}: {p['what']}" if p["where"] else str(p["what"]) for p in found]
        lines += ["## Flags and failures", "", *(f"- {markdown_text(line)}" for line in messages), ""]
    for t in made:
        lines += [f"## {markdown_text(t.title)}", "", f"{t.unit}; {LEGEND}", "", t.markdown(), ""]
    return "\n".join(lines)


def _layers(record: Record) -> list[dict[str, Any]]:
    return list(record.get("analysis", {}).get("layers", []))


def _examples(record: Record) -> list[dict[str, Any]]:
    return [e for attack in record.get("attacks", {}).values() for e in attack.get("examples", [])]


def _version(record: Record) -> str:
    held = record["versions"]
    return f"Resolvent {held['resolvent']}, torch {held['torch']}, Python {held['python']}, {held['device']}"
