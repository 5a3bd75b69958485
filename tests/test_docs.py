"""Every piece of Python in the documentation runs, in the order of its page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent.parent
PAGES = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md"]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.S | re.M)


def blocks(page: Path) -> list[str]:
    return BLOCK.findall(page.read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p)], ids=lambda p: p.name)
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names: dict[str, object] = {"__name__": "docs"}
    for number, code in enumerate(blocks(page), 1):
        exec(compile(code, f"{page.name}, block {number}", "exec"), names)


def test_every_page_is_in_the_menu_and_every_entry_exists() -> None:
    menu = set(re.findall(r": (\w+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.M))
    pages = {p.name for p in (ROOT / "docs").glob("*.md")}
    assert menu == pages


def test_links_between_pages_lead_somewhere() -> None:
    for page in PAGES:
        for link in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / link).exists(), f"{page.name}: {link}"
