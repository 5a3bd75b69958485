"""README's first page runs and its numbers are worth seeing; what it says it prints is what it prints."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from test_docs import ROOT, blocks

README = ROOT / "README.md"


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    """What README's snippets leave behind, each in order."""
    held: dict[str, Any] = {"__name__": "readme"}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for number, code in enumerate(blocks(README), 1):
            exec(compile(code, f"README.md, block {number}", "exec"), held)
    finally:
        torch.set_num_threads(threads)
    return held


def test_training_under_attack_is_worth_seeing(names: dict[str, Any]) -> None:
    found = names["robust"]
    assert found.preset == "standard"
    assert len(found) >= 128
    assert found.clean_accuracy > 0.9
    assert found.accuracy > 0.4
    text = README.read_text(encoding="utf-8")
    clean, robust = map(float, re.findall(r"clean ([\d.]+) %, robust ([\d.]+) ±", text)[0])
    error = 100 * found.deviation  # other processors add in another order, and training carries that on
    assert clean == pytest.approx(100 * found.clean_accuracy, abs=error)
    assert robust == pytest.approx(100 * found.accuracy, abs=error)


def test_the_certificate_is_worth_seeing(names: dict[str, Any]) -> None:
    found = names["found"]
    right = float(found.correct.double().mean())
    assert right > 0.9
    assert found.accuracy(0.25) > 0.4
    text = README.read_text(encoding="utf-8")
    lines = [float(re.findall(words, text)[0]) for words in (r"right\s+([\d.]+) %, certified", r"0\.25: ([\d.]+) %:")]
    assert tuple(lines) == pytest.approx((100 * right, 100 * found.accuracy(0.25)), abs=2.0)  # of 447 samples


def test_the_first_page_is_short() -> None:
    assert len(README.read_text(encoding="utf-8").split()) <= 900
