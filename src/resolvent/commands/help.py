"""--help on one screen: common options in full, rarer ones by name and group; --help-all has every option in full.

A class of options declares its rare ones: RARE = {title: names of fields}.
"""

from __future__ import annotations

import contextlib
import textwrap
from dataclasses import MISSING, Field, field, fields, is_dataclass, make_dataclass
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import tyro

ALL = "--help-all"
WIDTH = 98


def show_help(kind: type, prog: str, config: tuple[Any, ...]) -> None:
    """Print the one-screen help."""
    rare = rare_groups(kind)
    with contextlib.suppress(SystemExit):  # it prints, then stops
        tyro.cli(without_rare(kind), prog=prog, args=["--help"], config=config)
    if not rare:
        return
    print(f"More options; {prog} {ALL} explains them:")
    room = 2 + max(len(title) for title, _ in rare)
    for title, flags in rare:
        lines = textwrap.wrap(" ".join(flags), WIDTH - room, break_on_hyphens=False)
        print(f"  {title:<{room}}" + f"\n{' ' * (room + 2)}".join(lines))


def rare_groups(kind: type) -> list[tuple[str, list[str]]]:
    """Titles and flags of the options that --help omits; nested groups after the command's own."""
    own = {one.name: one for one in fields(kind)}
    found = [(title, [_flag(own[name]) for name in names]) for title, names in getattr(kind, "RARE", {}).items()]
    for inner in _hints(kind).values():
        if is_dataclass(_bare(inner)):
            found += rare_groups(_bare(inner))
    return found


def without_rare(kind: type) -> type:
    """The same options with the rare ones hidden from --help."""
    hidden = {name for names in getattr(kind, "RARE", {}).values() for name in names}
    made: list[tuple[str, Any, Any]] = []
    for one in fields(kind):
        hint = _hints(kind)[one.name]
        if one.name in hidden:
            made.append((one.name, Annotated[hint, tyro.conf.Suppress], _default(one)))
        elif is_dataclass(_bare(hint)):
            inner = without_rare(_bare(hint))
            inner.__doc__ = " "  # the title is enough
            marks = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
            made.append((one.name, Annotated[(inner, *marks)] if marks else inner, field(default_factory=inner)))
    short = make_dataclass(kind.__name__, made, bases=(kind,), frozen=True)
    short.__doc__ = kind.__doc__
    return short


def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _bare(hint: Any) -> Any:
    return get_args(hint)[0] if get_origin(hint) is Annotated else hint


def _default(one: Field[Any]) -> Any:
    if one.default_factory is not MISSING:
        return field(default_factory=one.default_factory)
    return field(default=one.default)


def _flag(one: Field[Any]) -> str:
    name = one.name.replace("_", "-")
    return f"--no-{name}" if one.default is True else f"--{name}"
