"""The floor plan of the source, measured by `benchmarks/house.py`: each row keeps its limit."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest

import resolvent

SOURCE = Path(resolvent.__file__).parent
ROOT = SOURCE.parents[1]
sys.path.insert(0, str(ROOT))
from benchmarks import house  # noqa: E402

FILES = sorted(SOURCE.rglob("*.py"))


@pytest.fixture(autouse=True)
def _this_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(house, "SOURCE", SOURCE)


@pytest.mark.parametrize("row", house.rows(), ids=lambda row: row.what)
def test_the_plan_is_kept(row: house.Row) -> None:
    assert row.ok, f"{row.value} {row.what}, at most {row.most}: {row.where}"


@pytest.mark.slow
def test_what_work_passes_through() -> None:
    assert [row for row in house.traced_rows() if not row.ok] == []


def test_the_rows_can_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A source with one fault of each kind that a single file can have."""
    wrong = tmp_path / "attacks" / "wrong.py"
    wrong.parent.mkdir()
    wrong.write_text("import numba\n\n\ndef _checked(x, g):\n    told = x + g.sign()\n", encoding="utf-8")
    monkeypatch.setattr(house, "SOURCE", tmp_path)
    monkeypatch.setattr(house, "files", lambda: (wrong,))
    assert house.imports_compiler(wrong)
    assert house.participles() == ["attacks/wrong.py:_checked"]
    assert house.retired() == ["attacks/wrong.py:told"]
    assert house.found(house.SIGN_STEP, 0) == (1, 0, "attacks/wrong.py:5")


@pytest.mark.parametrize("question", ["isinstance(x, int | Mamba)", "type(x) is Mamba", "f(x)"])
def test_questions_about_blocks_are_seen(tmp_path: Path, question: str) -> None:
    path = tmp_path / f"{len(question)}.py"
    path.write_text(f"from resolvent.blocks.mamba import Mamba\nfound = {question}\n", encoding="utf-8")
    assert house.asks_for_block(path) == ("Mamba" in question)


def test_copies_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other names and numbers do not hide them; other functions are other work."""
    wrong = tmp_path / "wrong.py"
    one = "def one(x):\n    a = f(x, 1)\n    b = a.sum()\n    if b > 1:\n        c = g(b)\n    return c + 1\n"
    two = one.replace("one", "two").replace("a", "y").replace("1", "2")
    monkeypatch.setattr(house, "SOURCE", tmp_path)
    monkeypatch.setattr(house, "files", lambda: (wrong,))
    for text, found in ((one + two, ["wrong.py:one ~ wrong.py:two"]), (one + two.replace("g(", "h("), [])):
        wrong.write_text(text, encoding="utf-8")
        house.tree_of.cache_clear()
        assert house.copies() == found
    house.tree_of.cache_clear()


NOT_ASKED = {
    "Layer",
    "Module",
    "Parameter",
    "DataParallel",
    "DistributedDataParallel",
    "parallel",
    "RNNBase",
}  # contracts, wrappers; torch's own recurrences, of which cuDNN asks something


def asks(path: Path) -> set[str]:
    """The classes of layers, blocks and torch's modules that a file asks modules for."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    parts = ("resolvent.layers", "resolvent.blocks")
    ours = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(parts)
        for alias in node.names
        if alias.name[:1].isupper()
    }
    found: set[str] = set()
    for node in ast.walk(tree):
        call = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else None
        asked = call in ("isinstance", "issubclass", "is_untouched", "check_untouched")
        if asked or _compares_type(node) or isinstance(node, ast.MatchClass):
            for inner in ast.walk(node):
                if isinstance(inner, ast.Name) and inner.id in ours:
                    found.add(inner.id)
                elif isinstance(inner, ast.Attribute) and ast.unparse(inner.value) in ("nn", "layers", "blocks"):
                    found.add(inner.attr)
    return found - NOT_ASKED


def _compares_type(node: ast.AST) -> bool:
    left = node.left if isinstance(node, ast.Compare) else None
    return isinstance(left, ast.Call) and isinstance(left.func, ast.Name) and left.func.id == "type"


def test_one_file_asks_what_a_block_is() -> None:
    """Layers and blocks know their own parts; whoever else wants to know reads a description."""
    rest = [p for p in FILES if p.relative_to(SOURCE).parts[0] not in ("layers", "blocks", "conformance")]
    asking = {p.relative_to(SOURCE).as_posix(): asks(p) for p in rest if asks(p)}
    others = {place: names for place, names in asking.items() if place != "lowering/describe.py"}
    assert not others, f"{others}: read `describe(module)` instead"
    assert asking


def test_asking_is_seen(tmp_path: Path) -> None:
    file = tmp_path / "asking.py"
    for text in (
        "isinstance(m, S4D)", "type(m) is nn.Linear", "is_untouched(m, S4D)", "type(m) in (nn.GELU, S4D)",
        "isinstance(m, layers.S4D)", "match m:\n    case S4D():\n        pass",
    ):  # fmt: skip
        file.write_text(f"from resolvent.layers.s4d import S4D\n{text}\n", encoding="utf-8")
        assert asks(file), text
    file.write_text("isinstance(m, nn.Module)\ntype(x) is Tensor\n", encoding="utf-8")
    assert not asks(file)


WRITTEN = [*FILES, *sorted((ROOT / "tests").rglob("*.py")), *sorted((ROOT / "benchmarks").rglob("*.py"))]


@pytest.mark.parametrize("path", WRITTEN, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_a_file_holds_one_noun(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").count("\n")
    assert lines <= 400, f"{lines} lines: split it by noun"


def test_the_tree_in_contributing_is_the_tree() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    drawn = set(re.findall(r"^ {4}  (\w+)/", text, re.M))
    there = {path.name for path in SOURCE.iterdir() if path.is_dir() and (path / "__init__.py").is_file()}
    assert drawn == there, f"CONTRIBUTING.md draws {sorted(drawn - there)} and leaves out {sorted(there - drawn)}"
