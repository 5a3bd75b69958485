"""The reference holds every command with its options, every public part, and builds."""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

import reference
import resolvent

DOCS = Path(__file__).parent.parent / "docs"
PARTS = sorted(path.stem for path in (DOCS / "reference").glob("*.md") if path.stem not in ("commands", "index"))


def test_the_commands_are_those_of_help() -> None:
    written = reference.PAGE.read_text(encoding="utf-8")
    assert written == reference.page(), "python tests/reference.py writes it again"


def test_every_public_part_has_a_page() -> None:
    assert {*resolvent._PARTS, *resolvent._HOME.values()} == set(PARTS)


@pytest.mark.slow
def test_the_site_builds_and_shows_every_public_name(tmp_path: Path) -> None:
    if importlib.util.find_spec("mkdocstrings") is None:
        pytest.skip("needs pip install '.[docs]'")
    call = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(
        call, cwd=DOCS.parent, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    for part in PARTS:
        shown = (tmp_path / "reference" / part / "index.html").read_text(encoding="utf-8")
        places = public(part)
        assert [name for name in places if not any(f'id="{place}"' in shown for place in places[name])] == [], part
        assert "ClassVar" not in shown, f"{part}: a value of the class stands among the arguments"


def public(part: str) -> dict[str, set[str]]:
    """The names of a part, each with the places that it may be shown at: its own module where that bears its name."""
    module = importlib.import_module(f"resolvent.{part}")
    found: dict[str, set[str]] = {}
    for name in module.__all__:
        thing = getattr(module, name)
        home = getattr(thing, "__module__", None)
        found[name] = {f"resolvent.{part}.{name}", f"{home}.{name}" if home else getattr(thing, "__name__", name)}
    return found
