"""Docstrings on the reference: arguments that stand in columns become a list, indented formulas stay as they are.

    eps     how far
    bounds  the range of values,
            which perturbations keep
"""

from __future__ import annotations

import re
from typing import Any

import griffe

ROW = re.compile(r"^(?P<names>[A-Za-z_.*][\w.*, ]*?) {2,}(?P<text>\S.*)$")


class Columns(griffe.Extension):
    """Rewrites the docstring of every object once."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = listed(obj.docstring.value)


def listed(text: str) -> str:
    """Rows `name  text` with their continuation lines as items of a list."""
    made: list[str] = []
    inside = False
    for line in text.split("\n"):
        row = ROW.match(line)
        if row is not None:
            made += ([] if inside or not made or not made[-1] else [""]) + [f"- `{row['names']}`: {row['text']}"]
            inside = True
        elif inside and line.startswith("    ") and line.strip():
            made[-1] += " " + line.strip()
        else:
            made += ([""] if inside and line.strip() else []) + [line]
            inside = False
    return "\n".join(made)
