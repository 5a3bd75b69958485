"""The table of benchmarks/gpu, from its record."""

from __future__ import annotations

from typing import Any

from benchmarks.gpu.case import EAGER, Ceilings

Row = dict[str, Any]
HEAD = "| work | ours | rate | of floor | target | others in this run | memory, GB | quoted, not of this run |"


def describe(ceilings: Ceilings) -> str:
    return (
        f"copy {ceilings.bytes_per_s * 1e-12:.2f} TB/s, bf16 products {ceilings.flops_per_s * 1e-12:.0f} TFLOP/s, "
        f"exponentials {ceilings.exponentials_per_s * 1e-12:.2f} T/s"
    )


def table(record: dict[str, Any]) -> str:
    """Markdown: one row for each number, and a line for each peer that is not there."""
    lines = [HEAD, "|" + "---|" * (HEAD.count("|") - 1), *(line(row) for row in record["rows"]), ""]
    absent = {name: peer["absent"] for name, peer in record["peers"].items() if "absent" in peer}
    lines += [f"peer {name}: not there ({why})" for name, why in absent.items()]
    commits = dict.fromkeys(row["commit"] for row in record["rows"])
    lines += [f"rows of several commits: {', '.join(commits)}"] if len(commits) > 1 else []
    return "\n".join(lines)


def line(row: Row) -> str:
    name = f"{row['case']}: {row['timing']}"
    if "refused" in row:
        return f"| {name} | refused: {row['refused']} |" + " |" * 6
    cells = (name, _ms(row["ms"]), row["rate"], f"{row['of_floor']:.0%} ({_ms(row['floor_ms'])})", _target(row),
             "; ".join(_other(*item) for item in row["others"].items()), _memory(row), row["quoted"])  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _ms(ms: float) -> str:
    return f"{ms:.3f} ms" if ms < 10 else f"{ms:.1f} ms"


def _target(row: Row) -> str:
    if row["target_ms"] is None:
        return ""
    goal = f"{row['target_of']} {_ms(row['target_ms'])}" if row["target_of"] else f"{row['target_ms']:g} ms"
    return f"{goal} {'met' if row['met'] else 'missed'}"


def _other(name: str, other: dict[str, Any]) -> str:
    if "why" in other:
        return f"{name}: none ({other['why']})"
    wrong = f", its {other['wrong']} differ" if "wrong" in other else ""
    return f"{name} {_ms(other['ms'])} ({other['ratio']:.2f}x{wrong})"


def _memory(row: Row) -> str:
    """Ours, and the eager version's where there is one."""
    if row["peak_gb"] is None:
        return ""
    eager = row["others"].get(EAGER, {}).get("peak_gb")
    return f"{row['peak_gb']:.2f}" + ("" if eager is None else f" (eager {eager:.2f})")
