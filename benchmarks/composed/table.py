"""What benchmarks/composed prints: a line for each contender, and what was to be reached, met or missed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.composed.modules import ATTENTION, NAIVE, Contender

NEAR_ATTENTION = 1.2  # times as long as attention that S4D may take
FIRST_CALL = 10.0  # seconds


def line(row: dict[str, Any]) -> str:
    """One contender, as far as it is measured."""
    if "refused" in row:
        return f"{row['name']}: {row['refused']}"
    first, calls = row.get("first_call"), row["calls"]["step"]
    parts = [f"{row['name']}: {calls['torch']} calls of torch a step"]
    parts += [f"{calls['kernels']} kernels, {calls['busy_ms']} ms"] if "kernels" in calls else []
    parts += [f"compiled in {first['wall_s']} s ({first['cpu_s']} CPU s, nodes {first['nodes']})"] if first else []
    parts += [f"not compiled: {row['compile_failed']}"] if "compile_failed" in row else []
    parts += [f"one streaming step {row['stream_ms']} ms"] if row.get("stream_ms") is not None else []
    return ", ".join(parts)


def shape_table(part: dict[str, Any]) -> str:
    rows = [f"\n{tuple(part['shape'])}, autocast {part['autocast']}: training step / forward, ms"]
    for row in part["rows"]:
        eager, compiled = row.get("eager"), row.get("compiled")
        times = [f"{t['step_ms']:9.2f} / {t['forward_ms']:.2f}" if t else "-" for t in (eager, compiled)]
        rows.append(f"  {row['name']:10} eager {times[0]:20} compiled {times[1]:20} {row.get('peak_gb') or '-'} GB")
    return "\n".join(rows)


def judge(part: dict[str, Any], device: str, known: Sequence[Contender]) -> list[str]:
    """Each aim of the table, met or missed; those of memory and of streams are a GPU's."""
    found = {row["name"]: row for row in part["rows"] if "eager" in row}
    lines = []
    for contender in known:
        row = found.get(contender.name)
        if row is None or not contender.ours:
            continue
        ms = row["eager"]["step_ms"]
        aims = []
        if NAIVE in found:
            ratio = found[NAIVE]["eager"]["step_ms"] / ms
            aims.append((f"{ratio:.2f}x as quick as the {NAIVE}, of {contender.at_least}", ratio >= contender.at_least))
        if contender.name == "S4D" and ATTENTION in found and device == "cuda":
            ratio = ms / found[ATTENTION]["eager"]["step_ms"]
            aims.append((f"{ratio:.2f} times as long as attention, of {NEAR_ATTENTION}", ratio <= NEAR_ATTENTION))
        if "compiled" in row:
            ratio = row["compiled"]["step_ms"] / ms
            aims.append((f"compiled takes {ratio:.2f} of uncompiled", ratio <= 1.02))
            first = row["first_call"]["wall_s"]
            aims.append((f"first compiled call {first} s of {FIRST_CALL}", first <= FIRST_CALL))
        if device == "cuda" and NAIVE in found:
            aims.append(
                (f"{row['peak_gb']} GB of {found[NAIVE]['peak_gb']}", row["peak_gb"] <= found[NAIVE]["peak_gb"])
            )
        if device == "cuda" and contender.step_ms is not None and row.get("stream_ms") is not None:
            aims.append(
                (f"streaming step {row['stream_ms']} ms of {contender.step_ms}", row["stream_ms"] <= contender.step_ms)
            )
        lines += [f"{tuple(part['shape'])} {contender.name}: {what}: {'met' if ok else 'missed'}" for what, ok in aims]
    return lines
