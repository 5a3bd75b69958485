"""Names of the library that tests and benchmarks ask for are there, in what needs a GPU or Triton to run too."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import resolvent

SOURCE = Path(resolvent.__file__).parent
ROOT = SOURCE.parents[1]
USERS = sorted([*(ROOT / "tests").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")])
DYNAMIC = {"__doc__", "__file__", "__name__", "__path__"}


def module_file(name: str) -> Path | None:
    place = SOURCE.joinpath(*name.split(".")[1:])
    return next((p for p in (place / "__init__.py", place.with_suffix(".py")) if p.is_file()), None)


@cache
def names_in(module: str) -> frozenset[str] | None:
    """What stands at the top of a module; None where it makes its names by a function (`__getattr__`, `import *`)."""
    path = module_file(module)
    assert path is not None, module
    tree, found = ast.parse(path.read_text(encoding="utf-8")), set(DYNAMIC)
    if any(isinstance(node, ast.FunctionDef) and node.name == "__getattr__" for node in tree.body):
        return None  # a class may have one of its own
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name.split(".")[0] for alias in node.names}
    if path.name == "__init__.py":
        found |= {p.stem for p in path.parent.iterdir() if p.suffix == ".py" or p.is_dir()}
    return None if "*" in found else frozenset(found)


def missing(path: Path) -> Iterator[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    modules: dict[str, str] = {}  # as a file calls them
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "resolvent" and not node.level:
            home = node.module or ""
            if module_file(home) is None:
                yield f"{node.lineno}: there is no module {home}"
                continue
            known = names_in(home)
            for alias in node.names:
                if module_file(f"{home}.{alias.name}") is not None:
                    modules[alias.asname or alias.name] = f"{home}.{alias.name}"
                elif known is not None and alias.name not in known:
                    yield f"{node.lineno}: {home} has no {alias.name}"
    for line, base, name in asked(tree):
        known = names_in(modules[base]) if base in modules else None
        if known is not None and name not in known:
            yield f"{line}: {modules[base]} has no {name}"


def asked(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """(line, module, name): `module.name`, and `setattr(module, "name", ...)` as tests put in others."""
    bound = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    bound |= {n.arg for n in ast.walk(tree) if isinstance(n, ast.arg)}  # names that mean something else somewhere
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            found = node.value.id, node.attr
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "setattr" and len(node.args) >= 2:
            first, second = node.args[:2]
            if not (isinstance(first, ast.Name) and isinstance(second, ast.Constant)):
                continue
            found = first.id, str(second.value)
        else:
            continue
        if found[0] not in bound:
            yield node.lineno, *found


def test_names_are_there() -> None:
    assert [f"{path.relative_to(ROOT)}:{text}" for path in USERS for text in missing(path)] == []


def test_what_is_missing_is_seen(tmp_path: Path) -> None:
    file = tmp_path / "asking.py"
    lines = (
        "from resolvent.runtime import launch",
        "from resolvent.layers.s4d import S4D, S5D",
        "from resolvent.nowhere import x",
        "launch.tried(1)",
        "monkeypatch.setattr(launch, 'refused', 1)",
        "launch.attempt",
    )
    file.write_text("\n".join(lines), encoding="utf-8")
    assert sorted(text.split(":")[0] for text in missing(file)) == ["2", "3", "4", "5"]
