"""CPU benchmarks: ours beside the peers, each in a fresh process, two threads, ratios within one run.

    python -m benchmarks.cpu                     everything; writes benchmarks/results/cpu.json
    python -m benchmarks.cpu --only s4d,step     rows whose name holds one of the words

Run it alone: another busy core distorts small times tenfold. A contender of ours whose values disagree with the float64
reference stops the run before any speed is printed. Peers: pip install -e '.[bench]'.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parents[1] / "results"
THREADS = "2"
LARGEST_ERROR = 1e-4  # float32 against float64, relative to the largest value
OURS = "resolvent"
ROUNDS = 3  # fresh processes of each contender where a millisecond more or less decides


@dataclass(frozen=True)
class Row:
    """One line of the table: a shape, who competes, and what ours must reach against the fastest peer."""

    name: str
    shape: tuple[Any, ...]
    contenders: dict[str, str]  # shown name -> function in contenders.py
    faster: float  # how many times faster than the fastest peer, forward and with backward
    memory: float | None = None  # at most this share of the extra memory of the leanest peer
    floor: float | None = None  # at most this many times the copy of the same bytes

    @property
    def short(self) -> bool:
        return self.floor is not None or len(self.shape) == 2


def scans() -> list[Row]:
    peers = {OURS: "selective_ours", "torch loop": "selective_torch", "mambapy": "selective_mambapy"}
    with_hf = {**peers, "transformers": "selective_transformers"}
    rows = [
        Row("selective scan", (4, 512, 128, 16), peers, 3, memory=1 / 2),
        Row("selective scan", (4, 2048, 128, 16), with_hf, 6, memory=1 / 3),
    ]
    for l in (1024, 8192):
        real = {OURS: "scan_ours", "mambapy": "scan_mambapy", "s5-pytorch": "scan_s5_pytorch", "copy": "scan_copy"}
        pair = {OURS: "scan_ours", "s5-pytorch": "scan_s5_pytorch", "copy": "scan_copy"}
        rows.append(Row("linear scan, real", (8, l, 64, "float32"), real, 8, floor=2))
        rows.append(Row("linear scan, complex", (8, l, 64, "complex64"), pair, 8, floor=3))
    return rows


def layers() -> list[Row]:
    rows = []
    for shape, times, share in (((16, 784, 128, 64), 4, None), ((4, 8192, 64, 64), 6, 1 / 3)):
        s4d = {OURS: "s4d_ours", "kernel + FFT, eager": "s4d_eager"}
        s5 = {OURS: "s5_ours", f"{OURS}, no halves": "s5_ours_full", "s5-pytorch": "s5_pytorch"}
        lru = {OURS: "lru_ours", "neural-ssm": "lru_neural_ssm"}
        rows.append(Row("S4D layer", shape, s4d, times, memory=share))
        rows.append(Row("S5 layer", shape, s5, 2))
        rows.append(Row("LRU layer", shape, lru, 2))
    return rows


def steps() -> list[Row]:
    rows = []
    for batch in (1, 64):
        rows.append(Row("S6 step", (batch, 128), {OURS: "step_s6_ours", "mambapy": "step_s6_mambapy"}, 1.5))
        rows.append(Row("S4D step", (batch, 128), {OURS: "step_s4d_ours", "eager": "step_s4d_eager"}, 1.5))
        s5 = {OURS: "step_s5_ours", "eager": "step_s5_eager", "s5-pytorch": "step_s5_pytorch"}
        rows.append(Row("S5 step", (batch, 128), s5, 1.5))
    return rows


@dataclass
class Result:
    forward_ms: float
    backward_ms: float | None = None
    extra_mb: float | None = None
    error: float | None = None
    note: str = ""


@dataclass
class Outcome:
    row: Row
    results: dict[str, Result] = field(default_factory=dict)

    def peers(self) -> list[Result]:
        return [r for name, r in self.results.items() if not name.startswith(OURS) and name != "copy" and not r.note]

    def ratio(self, value: Callable[[Result], float | None]) -> float | None:
        ours = value(self.results[OURS])
        others = [v for r in self.peers() if (v := value(r)) is not None]
        return min(others) / ours if ours and others else None

    def met(self) -> dict[str, bool]:
        """Which of the row's targets ours reached."""
        row, ours = self.row, self.results[OURS]
        out = {}
        ratios = {"forward": self.ratio(lambda r: r.forward_ms), "backward": self.ratio(lambda r: r.backward_ms)}
        out.update({name: ratio >= row.faster for name, ratio in ratios.items() if ratio is not None})
        lean = self.ratio(lambda r: r.extra_mb)
        if row.memory is not None and lean is not None:
            out["memory"] = lean >= 1 / row.memory
        copy = self.results.get("copy")
        if row.floor is not None and copy is not None:
            out["floor"] = ours.forward_ms <= row.floor * copy.forward_ms
        return out


def run_one(function: str, shape: list[Any]) -> None:
    """The child process: one contender, its memory first, then its error, then times. Prints JSON."""
    import torch

    torch.set_num_threads(int(THREADS))
    from benchmarks.cpu import contenders
    from resolvent.timing.measure import median_ms, peak_extra_mb

    build = getattr(contenders, function)
    small = [getattr(torch, s) if isinstance(s, str) else s for s in shape]
    full = list(small)
    if len(small) > 2:
        small[1] = min(256, small[1])  # several blocks: every part of the work is loaded before memory is measured
    warm = build(*small)  # compiles and loads what needs it, so that memory is that of the work alone
    (warm.backward or warm.forward)()
    work = build(*full)
    out: dict[str, float | None] = {}
    if len(full) > 2:  # first of all: later work would find memory that earlier work has left
        out["extra_mb"] = peak_extra_mb(work.backward or work.forward)
    out["error"] = work.error() if work.error else None
    with torch.no_grad():
        out["forward_ms"] = median_ms(work.forward)
    out["backward_ms"] = median_ms(work.backward) if work.backward else None
    print(json.dumps(out))


def measured(function: str, shape: tuple[Any, ...]) -> Result:
    env = dict(os.environ, OMP_NUM_THREADS=THREADS, MKL_NUM_THREADS=THREADS, NUMBA_NUM_THREADS=THREADS)
    call = [sys.executable, "-m", "benchmarks.cpu", "--one", function, "--shape", json.dumps(shape)]
    done = subprocess.run(call, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return Result(float("nan"), note=last)
    return Result(**json.loads(done.stdout.strip().splitlines()[-1]))


def rounds(row: Row) -> dict[str, Result]:
    """Everybody in turn, short work ROUNDS times: a slow moment of the machine hits one round, not one contender."""
    found: dict[str, list[Result]] = {name: [] for name in row.contenders}
    for _ in range(ROUNDS if row.short else 1):
        for name, function in row.contenders.items():
            if not any(result.note for result in found[name]):
                found[name].append(measured(function, row.shape))
    return {name: median(results) for name, results in found.items()}


def median(results: list[Result]) -> Result:
    """Number by number; the worst error; a failure stands for all."""
    failed = [r for r in results if r.note]
    if failed:
        return failed[0]
    fields = {key: [vars(r)[key] for r in results] for key in ("forward_ms", "backward_ms", "extra_mb")}
    errors = [r.error for r in results if r.error is not None]
    middle = {key: None if None in values else statistics.median(values) for key, values in fields.items()}
    return Result(**middle, error=max(errors) if errors else None)  # type: ignore[arg-type]


def competed(row: Row) -> Outcome:
    outcome = Outcome(row)
    for name, result in rounds(row).items():
        if name.startswith(OURS) and result.note:
            raise SystemExit(f"{row.name} {row.shape}: ours failed: {result.note}")
        if result.error is not None and not result.error <= LARGEST_ERROR:
            raise SystemExit(f"{row.name} {row.shape}: ours is wrong by {result.error:.1e}; no speed is reported.")
        outcome.results[name] = result
    return outcome


def shown(value: float | None, digits: int = 2) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def print_outcome(outcome: Outcome) -> None:
    row = outcome.row
    print(f"\n{row.name} {row.shape}")
    for name, r in outcome.results.items():
        line = f"  {name:<22} {shown(r.forward_ms, 3):>10} ms forward {shown(r.backward_ms, 3):>10} ms with backward"
        print(line + f" {shown(r.extra_mb, 0):>6} MB  {r.note}")
    ratios = [outcome.ratio(lambda r: r.forward_ms), outcome.ratio(lambda r: r.backward_ms)]
    said = ", ".join(f"{what} {'met' if ok else 'MISSED'}" for what, ok in outcome.met().items())
    best = " / ".join(shown(x) for x in ratios if x)
    print(f"  faster than the fastest peer: {best} (target {row.faster}): {said}", flush=True)


def record(outcomes: list[Outcome], seconds: float) -> dict[str, Any]:
    from benchmarks.about import about, processor

    return {
        **about(processor(THREADS)),
        "seconds": round(seconds),
        "rows": [
            {
                "name": o.row.name,
                "shape": o.row.shape,
                "target": o.row.faster,
                "results": {name: vars(r) for name, r in o.results.items()},
                "faster_forward": o.ratio(lambda r: r.forward_ms),
                "faster_backward": o.ratio(lambda r: r.backward_ms),
                "met": o.met(),
            }
            for o in outcomes
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="comma-separated words; rows whose name holds one of them")
    parser.add_argument("--out", type=Path, default=RESULTS / "cpu.json", help="the record of a full run")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--shape", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        run_one(args.one, json.loads(args.shape))
        return
    words = [w.strip().lower() for w in args.only.split(",") if w.strip()]
    rows = [r for r in scans() + layers() + steps() if not words or any(w in r.name.lower() for w in words)]
    if not rows:
        raise SystemExit(f"no row's name holds any of {words}; leave --only out to see them all")
    start, outcomes = time.perf_counter(), []
    for row in rows:
        outcomes.append(competed(row))
        print_outcome(outcomes[-1])
    if not words:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(record(outcomes, time.perf_counter() - start), indent=1) + "\n")
        print(f"\nrecord: {args.out}")


if __name__ == "__main__":
    main()
