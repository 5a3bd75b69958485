"""The floor plan of the source, measured: one row for each rule of CONTRIBUTING.md, beside what it may be at most.

    python -m benchmarks.house             what can be read from the source: a second
    python -m benchmarks.house --trace     also what three pieces of work pass through: half a minute

Exit status: 0 every row keeps its limit, 1 one does not. `tests/test_house.py` asks for the same.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations, pairwise
from pathlib import Path
from types import FrameType
from typing import Any

SOURCE = Path(__file__).resolve().parents[1] / "src" / "resolvent"
TOP = {"__init__.py", "__main__.py", "cli.py"}
KERNELS = ("runtime/", "ops/", "lowering/")  # the parts that may import a compiler
READERS = ("lowering/describe.py", "conformance/")  # that know one block from another
SETTINGS = (  # all that a run is told on its way from the command to the loop
    "commands/run/options.py", "commands/run/train_options.py", "experiments/cell.py", "experiments/overrides.py",
    "experiments/objective_settings.py", "training/settings.py",
)  # fmt: skip
WIDE = {"layers", "blocks"}  # folders that hold one file for each kind
# Words that end as participles do and are none, and participles that do not end in -ed.
NO_PARTICIPLE = {"seed", "need", "feed", "embed", "speed", "exceed", "proceed"}
PARTICIPLES = re.compile(
    "begun|bent|broken|built|chosen|dealt|done|drawn|driven|fallen|foreseen|frozen|given|gone|grown|held|hidden|kept|known"
    "|laid|learnt|lost|made|met|proven|risen|said|seen|sent|shown|shrunk|slid|spent|spoken|stood|sunk|swept|taken|taught"
    "|thrown|told|torn|understood|withstood|won|worn|written"
)
# Public names of the first release, or nouns of a table: they stay.
KEPT = {"chained", "disturbed", "frozen", "pretrained", "toned", "weighted"}
EXAMPLES = re.compile(r"\n\n +Examples:\n(?: {8,}.*\n)+")
# Words for things that have another name now: no function, argument, attribute or variable is called by one.
RETIRED = re.compile(
    "told|crew|gang|cohort|cohorts|perform|assess|examine|guarantee|catalogue|gallery|twins|captured|border|climb|pace|meet"
)
NOT_RETIRED = {"attacks/fab", "ops/ascent/fab_"}  # the pace of FAB's walk is the paper's
SIGN_STEP = re.compile(r"\+ .*\.sign\(\)|(return|else) \w+\.sign\(\)( if .*)?$")
LAYER_NORM = re.compile(r"- mean\) \* torch\.rsqrt|rsqrt\(\w+\.square\(\)\.mean\(0\)")
COPIED = 5  # statements of one shape in a row, some six lines or more, that make two functions a pair
RESIDUAL = re.compile(r"= [xh] \+ [hy] if |z = h \+ ")


@dataclass(frozen=True)
class Row:
    what: str
    value: int
    most: int
    where: str = ""

    @property
    def ok(self) -> bool:
        return self.value <= self.most


@cache
def files() -> tuple[Path, ...]:
    return tuple(sorted(SOURCE.rglob("*.py")))


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def place_of(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def rows() -> list[Row]:
    """All that can be read from the source."""
    counts = Counter(path.parent.relative_to(SOURCE).as_posix() for path in files())
    narrow = max((n, name) for name, n in counts.items() if name not in WIDE)
    wide = max((counts[name], name) for name in WIDE)
    loose = sorted({path.name for path in SOURCE.glob("*.py")} - TOP)
    others = [place for place in map(place_of, filter(imports_compiler, files())) if not place.startswith(KERNELS)]
    asking = [place for place in map(place_of, filter(asks_for_block, files())) if not place.startswith(READERS)]
    option, where = most_declared()
    bare, old, same = participles(), retired(), copies()
    return [
        Row("python files in one folder", *narrow_limit(narrow, 16)),
        Row("python files in layers or blocks", *narrow_limit(wide, 22)),
        Row("loose modules at the top", len(loose), 0, ", ".join(loose)),
        Row("files beside runtime, ops and lowering that import a compiler", len(others), 0, ", ".join(others)),
        Row("files beside describe and conformance that ask what a block is", len(asking), 2, ", ".join(asking)),
        Row("declarations of one option of `run train`", len(where), 2, f"{option}: {', '.join(where)}"),
        Row("sign steps in torch's operations", *found(SIGN_STEP, 2)),
        Row("layer norms in torch's operations", *found(LAYER_NORM, 4)),
        Row("residual blocks in torch's operations", *found(RESIDUAL, 3)),
        Row("module functions named by a bare participle", len(bare), 0, ", ".join(bare[:4])),
        Row("names that were retired", len(old), 0, ", ".join(old[:4])),
        Row("pairs of functions that share a run of statements of one shape", len(same), 11, ", ".join(same[:2])),
        Row("source lines, examples in docstrings apart", sum(lines_of(path) for path in files()), 78_166),
    ]


def narrow_limit(most: tuple[int, str], limit: int) -> tuple[int, int, str]:
    return most[0], limit, most[1]


def imports_compiler(path: Path) -> bool:
    """numba, llvmlite or Triton, wherever in the file."""
    names: set[str] = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.split(".")[0])
    return bool(names & {"numba", "llvmlite", "triton"})


def asks_for_block(path: Path) -> bool:
    """`isinstance`, `type(x) is` or a `match` on a concrete layer or block; what is asserted is known already."""
    tree = tree_of(path)
    imported = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
    homes = ("resolvent.layers", "resolvent.blocks")
    names = [alias for node in imported if (node.module or "").startswith(homes) for alias in node.names]
    ours = {alias.asname or alias.name for alias in names} - {"Layer", "Block", "Spec"}
    asserted = {id(part) for node in ast.walk(tree) if isinstance(node, ast.Assert) for part in ast.walk(node)}
    asked = (names_asked(node) for node in ast.walk(tree) if id(node) not in asserted)
    return any(ours & names for names in asked)


def names_asked(node: ast.AST) -> set[str]:
    """The classes that a question names."""
    match node:
        case ast.Call(func=ast.Name("isinstance" | "issubclass"), args=[_, kind]):
            return {part.id for part in ast.walk(kind) if isinstance(part, ast.Name)}
        case ast.Compare(left=ast.Call(func=ast.Name("type")), comparators=[ast.Name(kind)]):
            return {kind}
        case ast.MatchClass(cls=ast.Name(kind)):
            return {kind}
    return set()


def lines_of(path: Path) -> int:
    """Its lines without the examples of public names, which are documentation."""
    return EXAMPLES.sub("\n", path.read_text(encoding="utf-8")).count("\n")


def most_declared() -> tuple[str, list[str]]:
    """The option of `run train` that most classes on its way declare: its command, the settings that it fills."""
    declared: dict[str, list[str]] = {}
    for place in SETTINGS:
        for name, field in fields_of(tree_of(SOURCE / place)):
            if not name.endswith("Plan"):  # what follows training has sizes of its own
                declared.setdefault(field, []).append(name)
    options = {field for field, names in declared.items() if "TrainingOptions" in names}
    return max(((name, declared[name]) for name in sorted(options)), key=lambda pair: len(pair[1]))


def fields_of(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """(class, field) of every dataclass."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and any("dataclass" in ast.unparse(d) for d in node.decorator_list):
            for entry in node.body:
                named = isinstance(entry, ast.AnnAssign) and isinstance(entry.target, ast.Name)
                if named and not ast.unparse(entry.annotation).startswith("ClassVar"):
                    yield node.name, entry.target.id


def found(pattern: re.Pattern[str], most: int) -> tuple[int, int, str]:
    """Lines of code, kernels apart, that match."""
    places = [
        f"{place_of(path)}:{number}"
        for path in files()
        if not re.search(r"_numba|triton|numba\.py", path.name)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if pattern.search(line) and line.lstrip()[:1] not in ('"', "#", "`")
    ]
    return len(places), most, ", ".join(places)


def participles() -> list[str]:
    """Module functions whose name is one participle: `risen`, `_checked`."""
    return [
        f"{place_of(path)}:{node.name}"
        for path in files()
        for node in tree_of(path).body
        if isinstance(node, ast.FunctionDef) and is_participle(node.name.strip("_")) and node.name not in KEPT
    ]


def retired() -> list[str]:
    """Where a retired word is the name of something."""
    return sorted(
        {
            f"{place_of(path)}:{name}"
            for path in files()
            if not place_of(path).startswith(tuple(NOT_RETIRED))
            for node in ast.walk(tree_of(path))
            for name in bound_names(node)
            if RETIRED.fullmatch(name.strip("_").lower())
        }
    )


def bound_names(node: ast.AST) -> list[str]:
    """What a node gives a name to."""
    match node:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.arg(arg=name):
            return [name]
        case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
            return [name]
    return []


def copies() -> list[str]:
    """Pairs of functions with COPIED statements in a row of one shape: equal but for variables and constants."""
    places: dict[tuple[str, ...], dict[str, None]] = {}
    for path in files():
        for name, function in functions_of(tree_of(path)):
            shapes = [shape_of(statement) for statement in statements_of(function)]
            for i in range(len(shapes) - COPIED + 1):
                places.setdefault(tuple(shapes[i : i + COPIED]), {})[f"{place_of(path)}:{name}"] = None
    pairs = {pair for where in places.values() for pair in combinations(where, 2)}
    return sorted(" ~ ".join(pair) for pair in pairs)


def functions_of(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef]]:
    """Functions and methods by name; those inside of others belong to these."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from ((f"{node.name}.{own.name}", own) for own in node.body if isinstance(own, ast.FunctionDef))


def statements_of(node: ast.AST) -> Iterator[ast.stmt]:
    """In order, those inside of others too; not words, nor imports."""
    for field in ("body", "orelse", "handlers", "finalbody"):
        for inner in getattr(node, field, []):
            words = isinstance(inner, ast.Expr) and isinstance(inner.value, ast.Constant)
            if isinstance(inner, ast.stmt) and not words and not isinstance(inner, ast.Import | ast.ImportFrom):
                yield inner
            yield from statements_of(inner)


def shape_of(statement: ast.stmt) -> str:
    """Its own line, without what stands inside; functions and attributes keep their names."""
    words, called = [type(statement).__name__], set[int]()
    for _, value in ast.iter_fields(statement):
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, ast.AST) and not isinstance(part, ast.stmt | ast.ExceptHandler):
                for node in ast.walk(part):  # a call before its function
                    if isinstance(node, ast.Call):
                        called.add(id(node.func))
                    words.append(word_of(node, id(node) in called))
    return " ".join(words)


def word_of(node: ast.AST, called: bool) -> str:
    if isinstance(node, ast.Name):
        return node.id if called else "name"
    return node.attr if isinstance(node, ast.Attribute) else type(node).__name__


def is_participle(word: str) -> bool:
    return (word.endswith("ed") and "_" not in word and word not in NO_PARTICIPLE) or bool(PARTICIPLES.fullmatch(word))


@dataclass(frozen=True)
class Way:
    """The files of all functions of the source that were called, in order."""

    files: tuple[str, ...]

    @property
    def different(self) -> list[str]:
        return sorted(set(self.files))

    @property
    def switches(self) -> int:
        parts = [name.split("/")[0] for name in self.files]
        return sum(a != b for a, b in pairwise(parts))


def follow(call: Callable[[], Any]) -> Way:
    """Run a call under the profiler."""
    found: list[str] = []

    def enter(frame: FrameType, event: str, _: Any) -> None:
        path = frame.f_code.co_filename
        if event == "call" and frame.f_code.co_flags & inspect.CO_OPTIMIZED and path.startswith(str(SOURCE)):
            found.append(place_of(Path(path)))  # a function, not an import

    sys.setprofile(enter)
    try:
        call()
    finally:
        sys.setprofile(None)
    return Way(tuple(found))


def s4d_pass() -> Callable[[], Any]:
    """One forward pass of S4D(64), after a first one."""
    import torch

    from resolvent.layers import S4D

    layer, x = S4D(64), torch.randn(4, 128, 64)
    layer(x)
    return lambda: layer(x)


def pgd_step() -> Callable[[], Any]:
    """One step of adversarial training of a small S4 on a CPU, ten steps of PGD, after two."""
    import torch

    from resolvent.attacks import Draws, Threat
    from resolvent.models import build_model
    from resolvent.models.presets import robustness
    from resolvent.training import pgd_at
    from resolvent.training.step.batch import Batch

    model = build_model(replace(robustness("s4", "mnist"), layers=2, d_model=32)).train()
    x, y = torch.rand(16, 64, 1), torch.randint(0, 10, (16,))
    objective = pgd_at(Threat("linf", 0.1, (0, 1)), steps=10)

    def step() -> None:
        objective(model, Batch(x, y, None, Draws(0, torch.arange(16)))).value.backward()

    step()
    step()
    return step


def run_train() -> Callable[[], Any]:
    """`resolvent run train --data f.npz --layer s5 --objective trades`, one epoch."""
    import numpy as np

    from resolvent import cli

    place, rng = tempfile.mkdtemp(), np.random.default_rng(0)
    np.savez(f"{place}/f.npz", x=rng.random((60, 16, 2), np.float32), y=rng.integers(0, 2, 60))
    words = f"run train --data {place}/f.npz --layer s5 --objective trades --eps 0.1 --epochs 1 --no-report"
    return lambda: cli.main([*words.split(), "--out", f"{place}/out"])


def traced_rows() -> list[Row]:
    """A file counts once; a switch is a call of a function in another first-level folder than the call before."""
    ways = {call: follow(call()) for call in (s4d_pass, pgd_step, run_train)}
    return [
        Row("S4D forward: files", len(ways[s4d_pass].different), 10),
        Row("S4D forward: switches between parts", ways[s4d_pass].switches, 10),
        Row("PGD-AT step of S4 on a CPU: files", len(ways[pgd_step].different), 18),
        Row("PGD-AT step of S4 on a CPU: switches between parts", ways[pgd_step].switches, 38),
        Row("`run train`: files", len(ways[run_train].different), 180),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--trace", action="store_true", help="also run three pieces of work and count files")
    measured = rows() + (traced_rows() if parser.parse_args().trace else [])
    for row in measured:
        print(f"{'ok  ' if row.ok else 'OVER'} {row.value:6d} (at most {row.most})  {row.what}  {row.where}")
    return 0 if all(row.ok for row in measured) else 1


if __name__ == "__main__":
    sys.exit(main())
