"""Settings as frozen dataclasses: choices are checked and the nearest name suggested; stored as JSON."""

from __future__ import annotations

import functools
import types
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from resolvent.usage.numbers import check_choice


class Settings:
    """Abstract parent of every settings dataclass: a field typed Literal[...] is checked when the value is made."""

    def __post_init__(self) -> None:
        kind: Any = type(self)
        for name, hint in _hints(kind).items():
            choices = _choices(hint)
            value = getattr(self, name)
            if choices and value not in choices and not _other_type_fits(hint, value):
                check_choice(kind.__name__, name, value, choices)


def choices_of(kind: Any, name: str) -> tuple[Any, ...]:
    """The allowed values of a field typed Literal[...]."""
    return _choices(_hints(kind)[name])


def to_dict(settings: Any) -> Any:
    """Plain values for JSON; every settings object carries its class's name under "class"."""
    if is_dataclass(settings):
        own = {f.name: to_dict(getattr(settings, f.name)) for f in fields(settings)}
        return {"class": type(settings).__name__} | own
    if isinstance(settings, tuple | list):
        return [to_dict(item) for item in settings]
    return settings


def from_dict(data: Any, hint: Any) -> Any:
    """The inverse of `to_dict`: `hint` is the dataclass, or the union of dataclasses, that is expected."""
    if isinstance(data, list):
        return tuple(from_dict(item, _item(hint)) for item in data)
    if not isinstance(data, dict):
        return data
    kinds: dict[str, Any] = {kind.__name__: kind for kind in _members(hint) if isinstance(kind, type)}
    check_choice("settings", "class", data.get("class"), kinds)
    kind = kinds[data["class"]]
    values = {name: value for name, value in data.items() if name != "class"}
    _check_fields(kind, values)
    hints = _hints(kind)
    return kind(**{name: from_dict(value, hints[name]) for name, value in values.items()})


def _check_fields(kind: type, values: dict[str, Any]) -> None:
    known = [f.name for f in fields(kind)]
    for name in values:
        check_choice(kind.__name__, "a field", name, known)
    needed = [f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING]
    missing = [name for name in needed if name not in values]
    if missing:
        names = ", ".join(map(repr, missing))
        raise ValueError(f"{kind.__name__}: the fields {names} have no default and are missing; add them.")


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    return {f.name: get_type_hints(kind)[f.name] for f in fields(kind)}


def _members(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _item(hint: Any) -> Any:
    """The item type of a tuple[X, ...]."""
    return next((get_args(member)[0] for member in _members(hint) if get_origin(member) is tuple), Any)


def _choices(hint: Any) -> tuple[Any, ...]:
    return tuple(c for member in _members(hint) if get_origin(member) is Literal for c in get_args(member))


def _other_type_fits(hint: Any, value: Any) -> bool:
    kinds = tuple(m for m in _members(hint) if isinstance(m, type))
    return isinstance(value, kinds) and not isinstance(value, str)
