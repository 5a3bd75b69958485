"""Hostile use counted, in as many calls as it takes: each goes on where the record stands.

    python tests/hostile/record.py kills 1000 --out benchmarks/results/hostile.json
    python tests/hostile/record.py files 5000 --seconds 600 --out benchmarks/results/hostile.json
    python tests/hostile/record.py options 5000 --out benchmarks/results/hostile.json

Of each part the record tells how many cases were tried, how they ended, which were wrong, and on which commits.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]
from files import Files  # noqa: E402
from kills import Kills  # noqa: E402
from options import Options  # noqa: E402

from benchmarks.about import measured_commit, processor  # noqa: E402

PARTS = {"files": Files, "options": Options, "kills": Kills}
EVERY = 10.0  # seconds between writes


def gather(part: str, count: int, held: dict[str, Any], limit: float, keep: Any) -> None:
    """Cases of `part` after those that `held` counts, until there are `count` of them; `keep(held)` every so often."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        made: Any = PARTS[part](Path(folder))
        began = last = time.perf_counter()
        before, outcomes, wrong = held["seconds"], Counter(held["outcomes"]), list(held["wrong"])
        while held["count"] < count and last - began < limit:
            if part == "kills":
                held["count"] += made.trial(held["next"], count - held["count"])
            else:
                made.case(held["next"])
                held["count"] += 1
            held["next"] += 1
            now = time.perf_counter()
            if now - last > EVERY or held["count"] >= count or now - began >= limit:
                last = now
                held["outcomes"] = dict(sorted((outcomes + made.outcomes).items()))
                held["wrong"] = wrong + made.wrong
                held["seconds"] = round(before + now - began, 1)
                keep(held)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("part", choices=PARTS)
    options.add_argument("count", type=int)
    options.add_argument("--seconds", type=float, default=float("inf"))
    options.add_argument("--out", type=Path, required=True)
    chosen = options.parse_args()
    torch.set_num_threads(1)
    out = chosen.out.absolute()
    record: dict[str, Any] = json.loads(out.read_text()) if out.is_file() else {"device": processor(1), "parts": {}}
    fresh = {"count": 0, "next": 0, "outcomes": {}, "wrong": [], "seconds": 0.0, "commits": []}
    held = record["parts"].setdefault(chosen.part, fresh)
    commit = measured_commit()
    held["commits"] += [commit] * (commit not in held["commits"])

    def keep(held: dict[str, Any]) -> None:
        held["date"] = time.strftime("%Y-%m-%d")
        whole = out.with_name(f"{out.name}.{os.getpid()}.part")
        whole.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        whole.replace(out)

    gather(chosen.part, chosen.count, held, chosen.seconds, keep)
    print(f"{chosen.part}: {held['count']} of {chosen.count}, {len(held['wrong'])} wrong, {held['seconds']:.0f} s")
    return 1 if held["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
