"""The page is whole, needs nothing from outside, and tells what the record says."""

from __future__ import annotations

import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from resolvent.report.page import MissingPackage, cell, counts, render, require_packages, table, write_page
from resolvent.report.record import Curve, Panel, Record, Spectrum

pytest.importorskip("matplotlib", reason="matplotlib is in the report extra")
pytest.importorskip("jinja2", reason="jinja2 is in the report extra")

VOID = {"meta", "use", "path", "br", "stop", "circle", "rect", "image"}


def result(layer: str, prop: str, status: str = "pass", error: Any = 1e-15, **rest: Any) -> dict[str, Any]:
    row = {"layer": layer, "case": "first", "property": prop, "status": status, "error": error, "tolerance": 1e-10}
    return {**row, "note": "", "seconds": 0.5, **rest}


def record(*results: dict[str, Any]) -> Record:
    settings = {"dtype": "float64", "seed": 0, "torch": "2", "python": "3", "platform": "Linux"}
    ok = all(r["status"] != "fail" for r in results)
    spectra = [
        Spectrum("Ring", "a ring", "discrete", [0.5, -0.5], [0.1, -0.1], [0, 1], ["one", "two"]),
        Spectrum("Decay", "decays", "continuous", [-1.0, -2.0], [0.0, 0.0], [0, 0]),
        Spectrum("Tones", "tones", "continuous", [-0.5, -0.5], [300.0, -300.0], [0, 0]),
        Spectrum("Undamped", "on the axis", "continuous", [0.0, 0.0], [0.2, -0.2], [0, 0]),
    ]
    panels = [Panel("Kick", "an answer", [Curve("dt 0.1", [1.0, 0.5, -0.25]), Curve("dt 1", [1.0])])]
    return Record("1.2.3", "today", {"ok": ok, "settings": settings, "results": list(results)}, spectra, panels)


class Balance(HTMLParser):
    """Every tag that opens closes, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag


def test_the_page_stands_alone_and_closes_its_tags() -> None:
    page = render(record(result("S4", "chunks")))
    parser = Balance()
    parser.feed(page)
    assert parser.open == []
    assert not re.findall(r'(?:src|href)\s*=\s*"(?!#)', page)  # nothing is fetched
    assert "http" not in re.sub(r'"http://www\.w3\.org/[^"]*"', "", page)
    assert "@import" not in page


def test_figures_take_the_page_colours_and_share_no_id() -> None:
    page = render(record(result("S4", "chunks")))
    assert page.count("<svg") == 5
    assert "var(--s1)" in page
    assert "#010101" not in page
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'"#([^"]+)"|url\(#([^)]+)\)', page)) <= {(i, "") for i in ids} | {("", i) for i in ids}


def test_the_verdict_follows_the_results() -> None:
    assert "All 2 layers meet the contract" in render(record(result("S4", "chunks"), result("S5", "chunks")))
    page = render(record(result("S4", "chunks"), result("S5", "chunks", "fail", "inf", note="<b>boom</b>")))
    assert "1 property fails" in page
    assert "&lt;b&gt;boom&lt;/b&gt;" in page
    assert "<b>boom" not in page


def test_a_cell_shows_the_worst_case() -> None:
    rows = [result("S4", "chunks", error=1e-16), result("S4", "chunks", error=3e-12, case="second")]
    rows += [result("S4", "stability", "n/a", None)]
    shown = table(rows)
    assert shown["layers"] == ["S4"]
    assert [prop for prop, _ in shown["rows"]] == ["chunks"]  # a row without a measurement is left out
    assert shown["rows"][0][1][0]["text"] == "3e−12"
    assert "second" in shown["rows"][0][1][0]["title"]


def test_cells() -> None:
    assert cell(result("S4", "x", error=0.0))["text"] == "✓"
    assert cell(result("S4", "x", error=2e-5))["text"] == "2e−5"
    assert cell(result("S4", "x", "fail", "inf")) == {"text": "✗", "kind": "bad", "title": "first, allowed 1e-10"}
    assert cell(None)["kind"] == "none"


def test_counts() -> None:
    counted = counts([result("S4", "a", error=5e-11), result("S4", "b", "fail", 1.0), result("S5", "a", "n/a", None)])
    assert (counted["layers"], counted["cases"], counted["passed"], counted["failed"]) == (2, 2, 1, 1)
    assert counted["closest"] == "50 %"


def test_files_are_written_whole(tmp_path: Path) -> None:
    page = write_page(record(result("S4", "chunks")), tmp_path / "deep" / "down")
    assert sorted(p.name for p in page.parent.iterdir()) == ["record.json", "report.html"]
    kept = json.loads((page.parent / "record.json").read_text())
    assert kept["panels"][0]["curves"][0]["values"] == [1.0, 0.5, -0.25]


@pytest.mark.parametrize("name", ["matplotlib", "jinja2"])
def test_a_missing_package_says_what_to_install(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingPackage, match=rf"{name}.*pip install 'resolvent\[report\]'"):
        require_packages()
