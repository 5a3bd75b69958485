"""Imports point downward only, cost little, and need no optional package."""

from __future__ import annotations

import ast
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

import resolvent

SOURCE = Path(resolvent.__file__).parent

# Each part may import itself and what stands before it. `conformance` checks layers, so it stands above them.
# Below all is disk, which knows files alone, then what kernels stand on, then operations on tensors.
ORDER = ("disk", "usage", "runtime", "ops", "scan", "ssm", "init", "layers", "blocks", "lowering", "models", "data",
         "attacks", "training", "analysis", "conformance", "experiments", "predictor", "deployment", "timing", "report",
         "commands")  # fmt: skip
FORBIDDEN = {
    "analysis": {"layers", "blocks", "models"},  # it is handed a System
    "attacks": {"models", "blocks", "layers"},  # it is handed a callable
    "training": {"models"},
    "models": {"data"},
    "report": set(ORDER) - {"report", "disk"},  # it is handed records, or reads them
}
TOP = {"cli", "__main__", "__init__"}


def imports(path: Path) -> set[str]:
    """Absolute names of everything that a file imports, wherever in the file (type checking apart)."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    hidden = {id(n) for block in ast.walk(tree) if _type_checking(block) for n in ast.walk(block)}
    found: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in hidden:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import; write the whole name"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def _type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)


def parts(path: Path) -> set[str]:
    """Which parts of the library a file imports."""
    names = [name.split(".") for name in imports(path) if name.split(".")[0] == "resolvent"]
    return {name[1] for name in names if len(name) > 1} - {"__version__"}


FILES = sorted(p for p in SOURCE.rglob("*.py") if p.parent != SOURCE)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_point_downward(path: Path) -> None:
    part = path.relative_to(SOURCE).parts[0]
    assert part in ORDER, f"{part} has no place in the order of parts; give it one here"
    allowed = set(ORDER[: ORDER.index(part) + 1]) - FORBIDDEN.get(part, set())
    assert parts(path) <= allowed, f"{part} may not import {sorted(parts(path) - allowed)}"


def test_files_at_the_top_are_known() -> None:
    loose = sorted({p.stem for p in SOURCE.glob("*.py")} - TOP)
    assert not loose, f"{loose} stand loose at the top: give each a part"


def test_report_imports_no_torch() -> None:
    for path in (SOURCE / "report").rglob("*.py"):
        assert not {n for n in imports(path) if n.split(".")[0] == "torch"}, path


def test_the_direction_test_can_fail(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text("def f():\n    from resolvent.models import build_model\n")
    assert parts(wrong) == {"models"}


def test_an_operation_is_imported_from_its_folder() -> None:
    """Whoever stands above the operations names the folder, not the file; kernels and records of calls apart."""
    inside = re.compile(r"resolvent\.ops\.\w+\.(?!\w*(?:numba|triton|recorded))(\w+)\.\w+$")
    for path in FILES:
        if path.relative_to(SOURCE).parts[0] != "ops":
            found = sorted(name for name in imports(path) if inside.match(name))
            assert not found, f"{path.relative_to(SOURCE)} reaches into {found}: import it from the operation's folder"


def test_operations_bring_no_kernels() -> None:
    """The folder is the operation as layers call it: what compiles is imported when it is first chosen."""
    folders = [f"resolvent.ops.{path.name}" for path in (SOURCE / "ops").iterdir() if (path / "__init__.py").is_file()]
    code = f"import sys, {', '.join(folders)}; print([m for m in ('numba', 'triton', 'scipy') if m in sys.modules])"
    assert run(code).strip() == "[]"


def run(code: str, env: dict[str, str] | None = None) -> str:
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_import_is_quick(tmp_path: Path) -> None:
    """`import resolvent` beyond `import torch`, and then every layer: CPU time, with compiled files as an installed
    package has them from its second import on."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    env["PYTHONPYCACHEPREFIX"] = str(tmp_path)
    code = (
        "import time, torch; t = time.process_time(); import resolvent; a = time.process_time(); "
        "resolvent.S4D; resolvent.S6; print(a - t, time.process_time() - t)"
    )
    run(code, env)
    spent = [[float(v) for v in run(code, env).split()] for _ in range(3)]
    assert statistics.median(s[0] for s in spent) < 0.3
    assert statistics.median(s[1] for s in spent) < 0.3


def test_optional_packages_may_be_absent() -> None:
    """With numba, matplotlib, jinja2 and triton blocked: import, a pass with gradients, and the check of one layer."""
    code = (
        "import sys\n"
        "for name in ('numba', 'matplotlib', 'jinja2', 'triton', 'control', 'transformers'): sys.modules[name] = None\n"
        "import torch, resolvent as rv\n"
        "for make in (rv.S4D, rv.S5, rv.S6):\n"
        "    y, _ = make(4)(torch.randn(2, 9, 4)); y.sum().backward()\n"
        "print(rv.conformance.check_layers('ShortConv').ok)\n"
    )
    assert run(code).strip() == "True"


def test_nothing_heavy_comes_with_the_import() -> None:
    code = "import sys, resolvent; print([m for m in ('torch', 'numba', 'scipy', 'matplotlib') if m in sys.modules])"
    assert run(code).strip() == "[]"


def test_layers_bring_no_numba_or_scipy() -> None:
    code = (
        "import sys, resolvent as rv; rv.S4D; print([m for m in ('numba', 'scipy') if m in sys.modules])\n"
        "rv.S4D(2).system().bank; print('sympy' in sys.modules)"
    )
    assert run(code).split("\n")[:2] == ["[]", "False"]
