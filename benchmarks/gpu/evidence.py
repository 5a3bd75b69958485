"""What one GPU has to show, in order of value, by one command that may be cut short and goes on where it was.

    python -m benchmarks.gpu.evidence                           # all that is left, to out/evidence
    python -m benchmarks.gpu.evidence --limit 540 --out DIR     # for so many seconds; call again to go on
    python -m benchmarks.gpu.evidence --only tests              # one part

    tests       tests/gpu on all cores but two: tests.txt names each test as it begins and ends (`outcomes`)
    composed    benchmarks.composed at its first shape, and compiled
    long        the same at its second shape
    rows        the rows of benchmarks.gpu whose kernels were rewritten after they were measured

A part runs until it ends, or its time or that of the whole is up; it is then ended, and keeps what it wrote. Tests that
have ended and rows that are there are not run again at the same commit, nor is a part that came to its end. What each
printed is in its .log. The exit status is 0 where all parts came to their end and found nothing wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.about import HERE, RESULTS, measured_commit
from benchmarks.gpu.outcomes import ENDS, read

LAYERS = ("S4D", "DSS", "EMA", "S5", "LRU", "S6", "RGLRU", "Mamba", "S4", "L2RU")  # nn.GRU alone takes minutes
CHANGED = ("step, dss", "step, s5", "step, mamba", "step, mega", "(16, 16384, 128)", "(256, 784, 128)",
           "(8, 4096, 64)", "(1, 65536, 256)", "selective scan")  # fmt: skip
LEAST = 20.0  # seconds without which no part begins
GRACE = 10.0  # for one that is told to end


class Part(NamedTuple):
    name: str
    seconds: float  # at most, in one go
    command: Callable[[Path, str], list[str]]


def main() -> int:
    started, settings = time.monotonic(), _settings()
    out, commit = settings.out, measured_commit(settings.commit)
    out.mkdir(parents=True, exist_ok=True)
    state = _load(out, commit)
    for part in PARTS:
        left = settings.limit - (time.monotonic() - started)
        if part.name in state["parts"] or part.name not in settings.only:
            continue
        if left < LEAST:
            break
        began = time.monotonic()
        code = _run(part.command(out, commit), out / f"{part.name}.log", min(left, part.seconds))
        print(f"{part.name}: {time.monotonic() - began:.0f} s, {_say(code)}", flush=True)
        if code is not None:
            state["parts"][part.name] = code
        (out / "state.json").write_text(json.dumps(state, indent=1) + "\n", encoding="utf-8")
    return _report(out, state, settings.only)


def _settings() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [part.name for part in PARTS]
    parser.add_argument("--only", nargs="*", default=names, choices=names, help="these parts")
    parser.add_argument("--limit", type=float, default=1500, help="seconds for all of it")
    parser.add_argument("--commit", default="", help="of the measured tree, where git cannot tell")
    parser.add_argument("--out", type=Path, default=Path("out") / "evidence", help="folder of all that is written")
    return parser.parse_args()


def _load(out: Path, commit: str) -> dict[str, Any]:
    """Which parts came to their end at this commit, and with which exit status; of another one nothing is kept."""
    place = out / "state.json"
    if place.exists():
        found: dict[str, Any] = json.loads(place.read_text(encoding="utf-8"))
        if found["commit"] == commit:
            return found
    for name in ("tests.txt", "done.txt"):
        (out / name).unlink(missing_ok=True)
    made: dict[str, Any] = {"commit": commit, "parts": {}}
    place.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")  # first: a part may be cut short
    return made


def _run(command: list[str], log: Path, seconds: float) -> int | None:
    """The exit status of the command; None where its time was up, and it was ended with all that it had started."""
    with log.open("a", encoding="utf-8") as file:
        running = subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, cwd=HERE.parent, start_new_session=True
        )
        for patience, last in ((seconds, signal.SIGINT), (GRACE, signal.SIGKILL)):
            try:
                code = running.wait(patience)
            except subprocess.TimeoutExpired:
                os.killpg(running.pid, last)
            else:
                return code if last is signal.SIGINT else None
        running.wait()
    return None


def _say(code: int | None) -> str:
    return "its time was up" if code is None else f"exit status {code}"


def _report(out: Path, state: dict[str, Any], wanted: list[str]) -> int:
    tests = out / "tests.txt"
    if tests.exists():
        last = {name: outcome for outcome, name in read(tests)}
        failed = sorted({name for outcome, name in read(tests) if outcome == "failed"})
        counts = {kind: sum(outcome == kind for outcome in last.values()) for kind in (*ENDS, "began")}
        print(", ".join(f"{count} {kind}" for kind, count in counts.items()))
        print("\n".join([f"failed {name}" for name in failed]))
        print("\n".join([f"under way {name}" for name, outcome in last.items() if outcome == "began"]))
    left = [name for name in wanted if name not in state["parts"]]
    print(f"left: {', '.join(left)}; the same command goes on" if left else "nothing is left")
    return 1 if left or any(state["parts"][name] for name in wanted) else 0


# -- the parts ---------------------------------------------------------------------------------------------------------


def _tests(out: Path, commit: str) -> list[str]:
    known, done = out / "tests.txt", out / "done.txt"
    if known.exists():
        shutil.copyfile(known, done)  # workers that are started later read the same
    workers = max(1, (os.cpu_count() or 3) - 2)
    return [
        sys.executable, "-m", "pytest", "tests/gpu", "-m", "slow or not slow",
        "-n", str(workers), "--dist", "worksteal",
        "-p", "benchmarks.gpu.outcomes", "--outcomes", str(known.resolve()), "--done", str(done.resolve()),
        "-rf", "--tb=short",
    ]  # fmt: skip


def _composed(file: str, shape: str, *more: str) -> Callable[[Path, str], list[str]]:
    def command(out: Path, commit: str) -> list[str]:
        place = str((out / file).resolve())
        made = [sys.executable, "-m", "benchmarks.composed", "--shape", shape, "--only", *LAYERS, "--turns", "3"]
        return [*made, "--commit", commit, "--out", place, *more]

    return command


def _rows(out: Path, commit: str) -> list[str]:
    """Into a copy of the record, whose other rows stay."""
    record = out / "gpu_rows.json"
    if not record.exists():
        shutil.copyfile(RESULTS / record.name, record)
    made = [sys.executable, "-m", "benchmarks.gpu", "--skip-eager", "--skip-peers", "--keep", "--only", *CHANGED]
    return [*made, "--commit", commit, "--out", str(record.resolve())]


PARTS = (
    Part("tests", 530, _tests),
    Part("composed", 420, _composed("composed_gpu.json", "0", "--limit", "240")),
    Part("long", 240, _composed("composed_long_gpu.json", "1", "--limit", "120", "--no-compile")),
    Part("rows", 300, _rows),
)

if __name__ == "__main__":
    sys.exit(main())
