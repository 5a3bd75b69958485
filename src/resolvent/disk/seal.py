"""JSON that shows its own damage: the last key of an object is a digest over the rest, in one spelling of it.

    {"accuracy": 0.625, "digest": "sha256:..."}

The digest may also cover what a file belongs to (`of`: a configuration, a place), which is not written: a sound file
of another run, put in the place of this one, does not pass. An object without a digest is of an older version and is
believed as it is.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

DIGEST = "digest"
DEEPEST = 200  # levels of nesting: no file of ours has twenty
_SEAL = re.compile(r"sha256:[0-9a-f]{64}")


class Damaged(ValueError):
    """What was read is not what was written; the message says how that shows."""


def fingerprint(value: Any, of: str = "") -> str:
    """sha256 over a value's JSON in one spelling (sorted keys, no spaces to choose), and over `of` where it is told."""
    text = json.dumps(value, sort_keys=True)
    return hashlib.sha256((f"{of}\n{text}" if of else text).encode()).hexdigest()


def seal(value: dict[str, Any], of: str = "") -> dict[str, Any]:
    """The same object as it will be read, with its digest as the last key."""
    rest: dict[str, Any] = json.loads(json.dumps({key: item for key, item in value.items() if key != DIGEST}))
    return rest | {DIGEST: f"sha256:{fingerprint(rest, of)}"}


def unseal(held: dict[str, Any], of: str = "") -> dict[str, Any]:
    """The object without its digest; Damaged where the two do not fit."""
    rest = {key: value for key, value in held.items() if key != DIGEST}
    if DIGEST not in held:
        last = next(reversed(held.values()), None)
        if isinstance(last, str) and _SEAL.fullmatch(last):
            raise Damaged(f"its digest stands under {next(reversed(held))!r}")
        return rest
    if held[DIGEST] != f"sha256:{fingerprint(rest, of)}":
        raise Damaged("its digest is not that of its content")
    return rest


def is_sealed(held: dict[str, Any]) -> bool:
    """Whether it carries a digest: older versions wrote none."""
    return DIGEST in held


def parse(text: str | bytes) -> dict[str, Any]:
    """A JSON object as it stands, digest included; Damaged where it is none, or one that nobody would write."""
    try:
        held = json.loads(text)
        _require_flat(held)
    except RecursionError:
        raise Damaged("it is nested too deeply") from None
    except ValueError as wrong:  # of JSON, of UTF-8, or a number of thousands of digits
        raise wrong if isinstance(wrong, Damaged) else Damaged(str(wrong)) from wrong
    if not isinstance(held, dict):
        raise Damaged(f"it should hold a JSON object, it holds {type(held).__name__}")
    return held


def _require_flat(held: Any) -> None:
    """Level by level, not by recursion: whoever reads on may recurse."""
    level = [held] if isinstance(held, dict | list) else []
    for _ in range(DEEPEST):
        inside = [item for each in level for item in (each.values() if isinstance(each, dict) else each)]
        level = [item for item in inside if isinstance(item, dict | list)]
        if not level:
            return
    raise Damaged(f"it is nested more than {DEEPEST} levels deep")
