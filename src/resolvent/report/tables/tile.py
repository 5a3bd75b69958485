"""The numbers at the head of a page: each of one checkpoint of one run, with its data."""

from __future__ import annotations

from resolvent.report.runs import Record
from resolvent.report.tables.column import Column, columns_of, standard_error

Found = tuple[float, str, Column]  # value, run, what


def tiles(good: list[Record]) -> list[dict[str, str]]:
    """The best clean accuracy, the best under attack, the best certified: of the checkpoints chosen by validation."""
    right = [r for r in good if r["task"].get("classes", 0) is not None]  # a regression has no accuracy
    held = [(share, _name(r), column) for r in right for column, share in columns_of(r) if column.place == "best"]
    found = []
    for kind, words in WORDS.items():
        best = _best([each for each in held if each[2].kind == kind])
        if best is not None:
            name = f"{words.format(best[2].name)}: {best[1]} ({best[2].terms})"
            found.append({"name": name, "value": f"{100 * best[0]:.1f} %", "error": _error(best)})
    sizes = sorted({r["training"]["parameters"] for r in good if r["training"].get("parameters")})
    if sizes:
        most = f"to {sizes[-1]:,}" if len(sizes) > 1 else ""
        found.append({"name": "parameters of a model", "value": f"{sizes[0]:,}", "error": most})
    return found


WORDS = {"clean": "best clean accuracy", "autoattack": "best accuracy under {}", "certified": "best certified accuracy"}


def _best(held: list[Found]) -> Found | None:
    """For certificates, at the largest radius with half of the samples certified, else at the smallest."""
    if held and held[0][2].kind == "certified":
        sure = [each for each in held if each[0] >= 0.5]
        radius = max(each[2].eps or 0 for each in sure) if sure else min(each[2].eps or 0 for each in held)
        held = [each for each in held if each[2].eps == radius]
    return max(held, key=lambda each: each[0], default=None)


def _error(found: Found) -> str:
    share, _, column = found
    own = standard_error(share, column.samples)
    return "" if own is None else f"± {100 * own:.1f}"


def _name(record: Record) -> str:
    return " ".join(record["cell"]["tags"])
