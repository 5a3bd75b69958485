"""The page of a check: numbers that agree with closed forms, a page, a clear word when a package is missing."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest
import torch

from helpers import assert_close
from resolvent import cli


def test_spectra_are_those_of_the_papers() -> None:
    from resolvent.commands.check.spectra import N, spectra

    found = {s.name: s for s in spectra()}
    assert_close(torch.tensor(found["S4D-Real"].re).sort().values, -torch.arange(N, 0, -1.0))
    lin = torch.tensor(found["S4D-Lin"].im, dtype=torch.float64)
    assert_close(lin.max(), torch.tensor(math.pi * (N // 2 - 1), dtype=torch.float64))
    assert max(found["S4D-LegS"].im) == pytest.approx(1303.27384, abs=5e-6)  # all the digits that the oracle has
    assert max(abs(v + 0.5) for v in found["S4D-LegS"].re) < 1e-12
    assert sorted(found["S6 (Mamba)"].re) == pytest.approx(list(range(-16, 0)), rel=1e-6)
    ring = found["LRU ring"]
    radii = [math.hypot(a, b) for a, b in zip(ring.re, ring.im, strict=True)]
    assert min(radii) >= 0.9 - 1e-6
    assert max(radii) <= 0.999 + 1e-6
    for s in found.values():
        assert len(s.re) == len(s.im) == len(s.group)
        if s.plane == "discrete":
            assert max(math.hypot(a, b) for a, b in zip(s.re, s.im, strict=True)) < 1


def test_responses_scale_with_the_time_step() -> None:
    """A tenth of the time step stretches a response tenfold."""
    from resolvent.commands.check.spectra import panels

    found = {p.name: p for p in panels()}
    assert {"S4", "S4D-LegS", "S5", "S6 (Mamba)", "LRU", "EMA"} <= set(found)
    for panel in found.values():
        for curve in panel.curves:
            assert max(abs(v) for v in curve.values) == 1.0
    slow, quick = (found["S4D-Real"].curves[k].values for k in (0, 1))
    for step in (1, 5, 20, 100):
        # one step of each is averaged over its own hold, half a step apart: a difference of O(dt N)
        assert slow[10 * step] == pytest.approx(quick[step], abs=0.06)


def test_the_check_writes_its_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is in the report extra")
    pytest.importorskip("jinja2", reason="jinja2 is in the report extra")
    from resolvent.conformance import cases, properties

    monkeypatch.setattr(cases, "CASES", tuple(c for c in cases.CASES if c.layer == "ShortConv"))
    monkeypatch.setattr(cases, "PROPERTIES", properties.PROPERTIES[:2])
    assert cli.main(["check", "--page", str(tmp_path)]) == 0
    assert str(tmp_path / "report.html") in capsys.readouterr().out.replace("\n", "")
    assert "The layer meets the contract" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert json.loads((tmp_path / "record.json").read_text())["check"]["ok"] is True


def test_a_missing_package_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    assert cli.main(["check", "--page", "never"]) == 2
    assert "pip install 'resolvent[report]'" in capsys.readouterr().err
