"""Cells on a Ray cluster of two nodes of which one is killed: the same records as of one machine?

    python -m benchmarks.nodes                      # 24 cells; writes benchmarks/results/nodes.json
    python -m benchmarks.nodes --cells 6 --epochs 2 --out out/nodes.json

Both nodes are on this machine and listen to it alone, one CPU each. When a quarter of the cells has its record and the
second node is in the midst of one that has stored something, its raylet and all its workers get SIGKILL, as in a power
cut. All records and weights are then compared, byte by byte, with those of a run without Ray; a record's times, and the
digest that covers them, are left out.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.about import RESULTS, about, processor

HERE = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
TRAIN = ("train", "--layer", "lru", "--width", "8", "--layers", "1", "--objective", "pgd-at", "--eps", "0.05")
STILL = 600.0  # seconds without a new epoch or record after which a run is given up, however busy the machine is
Files = dict[str, bytes]
Killed = tuple[Path, int, list[bytes]]


@dataclass
class Run:
    """`resolvent run`, started: where its results and its words go, and when something new was last seen there."""

    process: subprocess.Popen[bytes]
    out: Path
    log: Path
    sizes: list[int] = field(default_factory=list)
    moved: float = field(default_factory=time.monotonic)

    def goes_on(self) -> bool:
        """Whether the process lives; an error once it has been still for too long."""
        sizes = [path.stat().st_size for path in sorted(self.out.glob("*/*/*/metrics.jsonl"))]
        sizes += [len(list(self.out.glob("*/*/*/record.json")))]
        if sizes != self.sizes:
            self.sizes, self.moved = sizes, time.monotonic()
        if time.monotonic() - self.moved > STILL:
            raise RuntimeError(f"nothing new in {STILL:g} s; the run said: {self.log.read_text(encoding='utf-8')}")
        return self.process.poll() is None

    def expect_end(self) -> str:
        while self.goes_on():
            time.sleep(0.2)
        said = self.log.read_text(encoding="utf-8")
        if self.process.returncode:
            raise RuntimeError(f"status {self.process.returncode}: {said}")
        return said


def main(words: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cells", type=int, default=24)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--out", type=Path, default=RESULTS / "nodes.json")
    given = parser.parse_args(words)
    os.environ |= HERE | {"OMP_NUM_THREADS": "1"}  # before Ray is imported
    with tempfile.TemporaryDirectory(prefix="resolvent-nodes-") as scratch:
        found = measure(Path(scratch), given.cells, given.epochs)
    record = about(processor(1)) | found
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=1))
    return record


def measure(folder: Path, cells: int, epochs: int) -> dict[str, Any]:
    """Run the cells without Ray and on two nodes, one of which is killed, and compare."""
    import ray

    words = (*TRAIN, "--epochs", str(epochs), "--seeds", *map(str, range(cells)), "--no-report")
    alone, spread = folder / "alone", folder / "spread"
    with start(alone, *words) as run:
        run.expect_end()
    with two_nodes() as (at, victim), start(spread, *words, "--on", f"ray://{at}") as run:
        hit, done, rows = kill_midway(run, victim, cells)
        said = run.expect_end()
    ours, theirs = read_files(alone), read_files(spread)
    records = [name for name in ours if name.endswith("record.json")]
    return {
        "ray": ray.__version__,
        "run": "resolvent run " + " ".join(words),
        "cells": cells,
        "nodes": 2,
        "killed": "raylet and workers of one node, SIGKILL",
        "records when killed": done,
        "cell when killed": hit.relative_to(spread).as_posix(),
        "epochs stored when killed": len(rows),
        "of these not trained again": sum(a == b for a, b in zip(rows, read_rows(hit), strict=False)),
        "message": [line for line in said.splitlines() if line.startswith(("Ray has", "node "))],
        "records of cells": sum(_is_cell(name) for name in theirs),
        "of these identical but for times": sum(ours.get(name) == theirs[name] for name in theirs if _is_cell(name)),
        "records with those of attacks": len(records),
        "all identical but for times": sum(ours[name] == theirs.get(name) for name in records),
        "weights identical": sum(ours[name] == theirs.get(name) for name in ours if name.endswith(".safetensors")),
        "weights": len([name for name in ours if name.endswith(".safetensors")]),
        "files on one side alone": sorted(set(ours) ^ set(theirs)),
    }


@contextmanager
def two_nodes() -> Iterator[tuple[str, int]]:
    """A cluster's address and the process of its second node."""
    from ray.cluster_utils import Cluster

    own = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
    cluster = Cluster(initialize_head=True, head_node_args=own | {"include_dashboard": False})
    try:
        second = cluster.add_node(wait=True, **own)
        yield cluster.address, second.all_processes["raylet"][0].process.pid
    finally:
        cluster.shutdown()


def kill_midway(run: Run, raylet: int, cells: int) -> Killed:
    """Kill a node in the midst of a cell; that cell, the number of records then, and the epochs that it had stored."""
    while run.goes_on():
        done = len(list(run.out.glob("*/*/*/record.json")))
        at = _find_work(run.out, raylet)
        if at is not None and done >= cells // 4 and read_rows(at):
            for pid in (raylet, *_children(raylet)):
                os.kill(pid, signal.SIGKILL)
            return at, done, read_rows(at)
        time.sleep(0.02)
    raise RuntimeError(f"the second node was never in the midst of a cell: {run.log.read_text(encoding='utf-8')}")


def _find_work(out: Path, raylet: int) -> Path | None:
    """The cell that a process of this node is at."""
    workers = _children(raylet)
    for lock in out.glob("*/*/*/.lock"):
        try:
            if json.loads(lock.read_text(encoding="utf-8")).get("pid") in workers:
                return lock.parent
        except (OSError, ValueError):  # given back, or in the making
            continue
    return None


def _children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(word) for task in found.parents[1].iterdir() for word in (task / "children").read_text().split()]


def read_rows(run: Path) -> list[bytes]:
    """A line for each epoch that the run has stored; it tells the seconds that the epoch took."""
    try:
        return (run / "metrics.jsonl").read_bytes().splitlines()
    except FileNotFoundError:
        return []


def read_files(out: Path) -> Files:
    """Records without their times, and weights, by their names."""
    found = {p.relative_to(out).as_posix(): p for p in out.rglob("*") if p.is_file() and _compared(p)}
    return {name: _timeless(path) if path.suffix == ".json" else path.read_bytes() for name, path in found.items()}


def _is_cell(name: str) -> bool:
    """Whether this is the record of a cell, recipe/cell/seed/record.json, rather than of something found in it."""
    return name.endswith("/record.json") and name.count("/") == 3


def _compared(path: Path) -> bool:
    return path.name == "record.json" or (path.suffix == ".safetensors" and path.name == "model.safetensors")


def _timeless(path: Path) -> bytes:
    held = json.loads(path.read_bytes())
    return json.dumps({name: value for name, value in held.items() if name not in ("times", "digest")}).encode()


@contextmanager
def start(out: Path, *words: str) -> Iterator[Run]:
    log = out.with_suffix(".log")
    command = [sys.executable, "-m", "resolvent", "run", *words, "--out", str(out)]
    with log.open("wb") as said:
        process = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT)
    try:
        yield Run(process, out, log)
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(60)


if __name__ == "__main__":
    main()
