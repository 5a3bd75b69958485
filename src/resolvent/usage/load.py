"""Load a user's class: `package.module:Class` or `path/to/file.py:Class`."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from resolvent.usage.error import UsageError
from resolvent.usage.numbers import nearest


def load_class(target: str) -> type:
    """The class behind `package.module:Class` or `path/to/file.py:Class`."""
    where, colon, name = target.rpartition(":")
    if not colon or not where or not name:
        raise UsageError(f"expected package.module:Class or path/to/file.py:Class, got {target!r}.")
    module = _from_file(Path(where)) if where.endswith(".py") else _from_name(where)
    found = getattr(module, name, None)
    if not isinstance(found, type):
        classes = [n for n, v in vars(module).items() if isinstance(v, type)]
        raise UsageError(f"{where} has no class {name!r}; {suggestion(name, classes)}")
    return found


def parse_kwargs(text: str) -> dict[str, Any]:
    """Constructor arguments from a JSON object."""
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as wrong:
        raise UsageError(f"--kwargs is not JSON ({wrong}); write e.g. '{{\"d_model\": 8}}'.") from None
    if not isinstance(given, dict):
        raise UsageError(f"--kwargs must be a JSON object such as '{{\"d_model\": 8}}', got {type(given).__name__}.")
    return given


def make(target: str, kwargs: str) -> Any:
    """An instance of the class behind `target`; a failing constructor is a user error."""
    kind, given = load_class(target), parse_kwargs(kwargs)
    return build(kind, given)


def build(kind: type, given: dict[str, Any]) -> Any:
    try:
        return kind(**given)
    except (Exception, SystemExit) as wrong:
        message = f"{type(wrong).__name__}: {wrong}"
        raise UsageError(f"{kind.__name__}(**{given}) failed with {message}; see --kwargs.") from wrong


def suggestion(name: str, known: list[str]) -> str:
    """The nearest known names, or all of them."""
    near = nearest(name, known)
    return f"did you mean {' or '.join(near)}?" if near else f"it has {', '.join(sorted(known)) or 'none'}."


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UsageError(f"there is no file {str(path)!r}; give the path from the current folder.")
    return _import(str(path), lambda: _execute(path))


def _execute(path: Path) -> ModuleType:
    name = _private_name(path)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # torch.compile, pickle and dataclasses look up a class's module by name
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _private_name(path: Path) -> str:
    """A unique module name per file: a user's torch.py must not replace torch."""
    digest = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]
    return f"_resolvent_loaded_{digest}_{re.sub(r'[^0-9A-Za-z_]', '_', path.stem)}"


def _from_name(name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)  # last, so that local files do not shadow installed packages
        importlib.invalidate_caches()
    return _import(name, lambda: importlib.import_module(name))


def _import(name: str, run: Callable[[], ModuleType]) -> ModuleType:
    try:
        return run()
    except (Exception, SystemExit) as wrong:
        raise UsageError(f"importing {name} failed with {type(wrong).__name__}: {wrong}") from wrong
