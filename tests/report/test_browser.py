"""Pages in a real browser: no sideways scrolling on a phone, no complaint, nothing cut in print."""

from __future__ import annotations

from pathlib import Path

import pytest
from browser import chromium, visit, widths
from test_side_by_side import COMPONENTS, record, write

from resolvent.report.page import write_page
from resolvent.report.record import Curve, Panel, Record, Spectrum
from resolvent.report.run_page import write_report

pytest.importorskip("matplotlib", reason="matplotlib is in the report extra")
pytest.importorskip("jinja2", reason="jinja2 is in the report extra")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(chromium() is None, reason="no chromium on this machine"),
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of two small trained, attacked, certified and analysed cells."""
    from dataclasses import replace

    from resolvent.experiments.recipe import cells_of
    from resolvent.experiments.sweep import sweep

    folder = tmp_path_factory.mktemp("runs")
    cells = []
    for cell in cells_of("quickstart", "small", "trades")[1:3]:
        certify = None if cell.certify is None else replace(cell.certify, samples=4)
        budget = replace(cell.budget, epochs=1, evaluate_every=1, track_seen=0)
        attack, task = replace(cell.attacks[0], samples=4), replace(cell.task, samples=64)
        cells.append(replace(cell, budget=budget, attacks=(attack,), certify=certify, task=task))
    sweep(cells, folder, tell=lambda line: None)
    return write_report([folder], folder / "out")


@pytest.fixture(scope="module")
def gallery(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of `resolvent check --page`, with names as long as they come."""
    results = [
        {"layer": layer, "case": "complex, bidirectional", "property": name, "status": "pass", "error": 1e-12,
         "tolerance": 1e-10, "note": "", "seconds": 0.1}
        for layer in ("S4", "S4D", "DSS", "S5", "LRU", "EMA", "ScalarS6", "RGLRU", "L2RU", "Attention", "ShortConv")
        for name in ("chunks", "steps", "second gradients", "torch.compile")
    ]  # fmt: skip
    values = ([-1.0, -2.0], [3.0, 40.0], [0, 0])
    spectra = [Spectrum(f"a spectrum {i}", "told " * 8, "continuous", *values) for i in (1, 2)]
    panels = [Panel("kernel", "told", [Curve("dt 0.1", [1.0, 0.5, 0.2])])]
    settings = {"dtype": "float64", "seed": 0, "torch": "2", "python": "3", "platform": "Linux"}
    check = {"settings": settings, "ok": True, "results": results}
    return write_page(Record("0.1.0", "today", check, spectra, panels), tmp_path_factory.mktemp("gallery"))


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five structures in common frames, with figures that take a row of their own."""
    folder = tmp_path_factory.mktemp("figures")
    for structure in ("s4", "dss", "s5", "mega", "mamba"):
        write(folder, record(structure, "trades", attribution={"components": COMPONENTS}))
    return write_report([folder], folder / "out")


@pytest.mark.parametrize("width", [390, 768, 1100])
@pytest.mark.parametrize("name", ["runs", "gallery", "figures"])
def test_no_sideways_scrolling_and_no_complaint(
    name: str, width: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    view, taken, messages = widths(request.getfixturevalue(name), tmp_path, width)
    assert width - 20 <= view <= width  # less the scroll bar
    assert taken <= view
    assert messages == []


@pytest.mark.parametrize("name", ["runs", "gallery", "figures"])
def test_it_prints(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    out = tmp_path / "page.pdf"
    visit(request.getfixturevalue(name).as_uri(), tmp_path, f"--print-to-pdf={out}", "--no-pdf-header-footer")
    assert out.read_bytes()[:5] == b"%PDF-"
    assert out.stat().st_size > 20_000  # an empty page has 1,000


def test_a_page_that_is_too_wide_or_complains_is_seen(tmp_path: Path) -> None:
    page = tmp_path / "wide.html"
    page.write_text(
        "<!doctype html><meta charset=utf-8><div style='width: 700px'>wide</div><script>console.error('no')</script>"
    )
    view, taken, messages = widths(page, tmp_path, 390)
    assert taken >= 700 > view
    assert any("no" in message for message in messages)
