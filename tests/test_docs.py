"""Every piece of Python and every command with its output in the documentation runs, in the order of its page."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest
import torch
from _pytest.mark.structures import ParameterSet

ROOT = Path(__file__).parent.parent
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md"]
BLOCK = re.compile(r"^```(python|console|text)\n(.*?)^```$", re.S | re.M)
SECTION = re.compile(r"^  - ([\w-]+):\n((?:    - .*\n)+)", re.M)
# pages that train or compile for more than a few seconds
SLOW = {"add_layer.md", "reproduce_table.md", "state_space.md", "stream.md", "time_limits.md", "tour.md"}


def steps(page: Path) -> list[tuple[str, str]]:
    """Python, commands and what they print, in the order of the page: (kind, text) each."""
    return BLOCK.findall(page.read_text(encoding="utf-8"))


def runs(page: Path) -> bool:
    """Whether there is anything to run on it."""
    return any(kind != "text" for kind, _ in steps(page))


def blocks(page: Path) -> list[str]:
    """Its Python alone."""
    return [text for kind, text in steps(page) if kind == "python"]


def cases() -> list[ParameterSet]:
    """Every page with something to run; README's own are run, and their numbers looked at, in test_readme.py."""
    pages = [page for page in PAGES if runs(page) and page.name != "README.md"]
    marks = [[pytest.mark.slow] if page.name in SLOW else [] for page in pages]
    names = [page.relative_to(ROOT / "docs").as_posix() for page in pages]
    return [pytest.param(page, id=name, marks=mark) for page, name, mark in zip(pages, names, marks, strict=True)]


@pytest.mark.parametrize("page", cases())
def test_the_code_of_a_page_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names: dict[str, object] = {"__name__": "docs"}
    for number, (kind, code) in enumerate(steps(page), 1):
        if kind == "python":
            capsys.readouterr()
            exec(compile(code, f"{page.name}, block {number}", "exec"), names)
        elif kind == "text":  # what the Python above it prints, whatever the numbers
            printed = [shape(line) for line in capsys.readouterr().out.splitlines()]
            assert [shape(line) for line in code.splitlines()] == printed, f"{page.name}, block {number}"
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
        for link, _, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(#([^)]+))?\)", page.read_text(encoding="utf-8")):
            target = page.parent / link if link else page
            assert target.exists(), f"{page.name}: {link}"
            if anchor and target.suffix == ".md":
                assert anchor in anchors(target), f"{page.name}: {link}#{anchor}"


def test_pictures_of_pages_exist() -> None:
    for page in PAGES:
        for name in re.findall(r'(?:src|srcset|href)="([^":]+)"', page.read_text(encoding="utf-8")):
            assert (page.parent / name).exists(), f"{page.name}: {name}"


def anchors(page: Path) -> set[str]:
    """The places that its headings make, as mkdocs names them."""
    slugify = pytest.importorskip("markdown.extensions.toc", reason="needs pip install '.[docs]'").slugify
    return {slugify(h, "-") for h in re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.M)}


def test_pictures_are_light_and_drawn_here() -> None:
    """Each SVG has a function of its name in docs/figures that draws it, and is small enough for a page."""
    folder = ROOT / "docs" / "figures"
    drawn = set(re.findall(r'save\(figure, "(\w+)"\)', "".join(p.read_text() for p in folder.glob("*.py"))))
    assert {p.stem for p in folder.glob("*.svg")} == drawn
    assert [p.name for p in folder.glob("*.svg") if p.stat().st_size > 200_000] == []
    shown = {Path(s).stem for p in PAGES for s in re.findall(r"\]\(([^)]+\.svg)\)", p.read_text(encoding="utf-8"))}
    assert shown == drawn


def test_pages_that_teach_outweigh_the_logs() -> None:
    menu = dict(SECTION.findall((ROOT / "mkdocs.yml").read_text(encoding="utf-8")))
    pages = {name: re.findall(r": (\S+\.md)$", rows, re.M) for name, rows in menu.items()}
    words = {
        name: sum(len((ROOT / "docs" / page).read_text(encoding="utf-8").split()) for page in held)
        for name, held in pages.items()
    }
    assert words["Tutorials"] + words["How-to"] + words["Concepts"] >= 3 * words["Notes"], words
