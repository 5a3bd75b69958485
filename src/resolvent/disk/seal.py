"""JSON that reveals damage: the last key of an object is a digest of the rest in canonical form.

    {"accuracy": 0.625, "digest": "sha256:..."}

The digest may also cover what a file belongs to (`of`: a configuration, a path), which is not written: a valid file
of another run, put in the place of this one, is then rejected. An object without a digest is from an older version
and is accepted.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

DIGEST = "digest"
DEEPEST = 200  # levels of nesting: files of ours have fewer than twenty
_SEAL = re.compile(r"sha256:[0-9a-f]{64}")


class Damaged(ValueError):
    """A file is not what was written; the message says why."""


def fingerprint(value: Any, of: str = "") -> str:
    """sha256 of a value's canonical JSON (sorted keys, fixed spacing), and of `of` if given."""
    text = json.dumps(value, sort_keys=True)
    return hashlib.sha256((f"{of}\n{text}" if of else text).encode()).hexdigest()


def seal(value: dict[str, Any], of: str = "") -> dict[str, Any]:
    """The same object as read back from JSON, with its digest as the last key."""
    rest: dict[str, Any] = json.loads(json.dumps({key: item for key, item in value.items() if key != DIGEST}))
    return rest | {DIGEST: f"sha256:{fingerprint(rest, of)}"}


def unseal(held: dict[str, Any], of: str = "") -> dict[str, Any]:
    """The object without its digest; raises Damaged if they do not match."""
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
    """Whether it has a digest: older versions wrote none."""
    return DIGEST in held


def parse(text: str | bytes) -> dict[str, Any]:
    """A JSON object including its digest; Damaged if it is not one, or implausible."""
    try:
        held = json.loads(text)
        _require_flat(held)
    except RecursionError:
        raise Damaged("it is nested too deeply") from None
    except ValueError as wrong:  # from JSON, UTF-8, or a number with thousands of digits
        raise wrong if isinstance(wrong, Damaged) else Damaged(str(wrong)) from wrong
    if not isinstance(held, dict):
        raise Damaged(f"it should hold a JSON object, it holds {type(held).__name__}")
    return held


def _require_flat(held: Any) -> None:
    """Refuse deep nesting, checked without recursion: later readers may recurse."""
    level = [held] if isinstance(held, dict | list) else []
    for _ in range(DEEPEST):
        inside = [item for each in level for item in (each.values() if isinstance(each, dict) else each)]
        level = [item for item in inside if isinstance(item, dict | list)]
        if not level:
            return
    raise Damaged(f"it is nested more than {DEEPEST} levels deep")
