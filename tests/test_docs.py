"""Every piece of Python and every command with its output in the documentation runs, in the order of its page."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent.parent
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md"]
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$", re.S | re.M)


def steps(page: Path) -> list[tuple[str, str]]:
    """Python and commands in the order of the page: (kind, text) each."""
    return BLOCK.findall(page.read_text(encoding="utf-8"))


def blocks(page: Path) -> list[str]:
    """Its Python alone."""
    return [text for kind, text in steps(page) if kind == "python"]


# README's own are run, and their numbers looked at, in test_readme.py
@pytest.mark.parametrize("page", [p for p in PAGES if steps(p) and p.name != "README.md"], ids=lambda p: p.name)
def test_the_code_of_a_page_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names: dict[str, object] = {"__name__": "docs"}
    for number, (kind, code) in enumerate(steps(page), 1):
        if kind == "python":
            exec(compile(code, f"{page.name}, block {number}", "exec"), names)
        else:
            run_command(code, capsys)


def run_command(block: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`$ resolvent ..` or `$ cp -r ..`; the lines that the page shows below come out, whatever the numbers in them."""
    from resolvent import cli

    command, *shown = block.splitlines()
    program, *words = shlex.split(command.removeprefix("$ "))
    capsys.readouterr()
    if program == "cp":
        shutil.copytree(words[1], words[2])
        return
    assert program == "resolvent"
    assert cli.main(words) == 0, command
    lines = {shape(line) for line in capsys.readouterr().out.splitlines()}
    for line in shown:
        assert shape(line) in lines or "/" in line, f"{command}: {line}"


def shape(line: str) -> str:
    """Without numbers and without the widths that hang on them; what is told apart by words stays."""
    return " ".join(re.sub(r"[-\d.,]+", "#", line).split())


def test_every_page_is_in_the_menu_and_every_entry_exists() -> None:
    menu = set(re.findall(r": ([\w/]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.M))
    pages = {p.relative_to(ROOT / "docs").as_posix() for p in (ROOT / "docs").rglob("*.md")}
    assert menu == pages


def test_links_between_pages_lead_somewhere() -> None:
    for page in PAGES:
        for link in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / link).exists(), f"{page.name}: {link}"
