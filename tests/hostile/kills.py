"""Runs and attacks killed by SIGKILL, at a chosen file operation or at a random moment, and started again until they
are done: the record is that of one that nobody disturbed.

    python tests/hostile/kills.py COUNT [SEED [SECONDS]]   one line of JSON at the end

A copy of this process (fork) does the work and is killed: nothing is cleaned up after it, as nothing is after a kill.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from scene import Scene, call, fork, timeless

OPERATIONS = ("replace", "link", "fsync", "unlink", "mkdir", "open")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def doomed(work: Callable[[], int], at: int) -> Callable[[], int]:
    """The work, killed before (at even) or after (at odd) its file operation number at // 2."""
    count = 0

    def watched(operation: Callable[..., Any]) -> Callable[..., Any]:
        def step(*given: Any, **named: Any) -> Any:
            nonlocal count
            count += 1
            if count == at // 2 and not at % 2:
                die()
            done = operation(*given, **named)
            if count == at // 2 and at % 2:
                die()
            return done

        return step

    def run() -> int:
        for name in OPERATIONS:
            setattr(os, name, watched(getattr(os, name)))
        return work()

    return run


def hurried(work: Callable[[], int], seconds: float) -> Callable[[], int]:
    """The work, killed after so many seconds."""

    def run() -> int:
        timer = threading.Timer(seconds, die)
        timer.daemon = True
        timer.start()
        return work()

    return run


class Kills:
    def __init__(self, folder: Path) -> None:
        self.scene = Scene(folder)
        assert self.scene.train().status == 0  # here: what is compiled, every copy has
        self.scene.keep()
        self.want = timeless(self.scene.place())
        self.model = folder / "model"
        shutil.copytree(self.scene.place() / "checkpoint" / "best", self.model)
        assert self._attack() == 0
        self.found = timeless(folder / "attack")
        self.wrong: list[str] = []
        self.outcomes: Counter[str] = Counter()

    def trial(self, number: int, most: int) -> int:
        """One run or attack, killed up to `most` times on its way; how often it was."""
        chance, kills = random.Random(number), 0
        attack = chance.random() < 0.4
        out = self.scene.folder / "attack" if attack else self.scene.runs
        work = self._attack if attack else self._train
        shutil.rmtree(out, ignore_errors=True)
        while True:
            spared = kills >= most or kills >= 12
            ended = fork(work if spared else self._fate(work, chance))
            if ended != -signal.SIGKILL:
                break
            kills += 1
            self.outcomes["attack killed" if attack else "run killed"] += 1
        message = f"trial {number}: {'attack' if attack else 'run'} after {kills} kills"
        if ended:
            self.wrong.append(f"{message}: status {ended}")
        elif timeless(out if attack else self.scene.place()) != (self.found if attack else self.want):
            self.wrong.append(f"{message}: another record")
        left = [str(p.relative_to(out)) for p in out.rglob(".*")]
        if left:
            self.wrong.append(f"{message}: left {left}")
        return kills

    def _fate(self, work: Callable[[], int], chance: random.Random) -> Callable[[], int]:
        if chance.random() < 0.7:
            return doomed(work, chance.randint(2, 120))
        return hurried(work, chance.uniform(0.0, 0.6))

    def _train(self) -> int:
        return int(self.scene.train().status)

    def _attack(self) -> int:
        out = str(self.scene.folder / "attack")
        return int(call("attack", str(self.model), "--data", str(self.scene.data), "--preset", "fast", "--samples", "8",
                        "--batch-size", "4", "--eps", "0.1", "--out", out).status)  # fmt: skip


def run(count: int, seed: int = 0, limit: float = 1e9) -> dict[str, object]:
    """As many kills as `limit` seconds allow, at most `count`; the last trial is finished in any case."""
    with tempfile.TemporaryDirectory() as folder:
        began, made, number, done = time.perf_counter(), Kills(Path(folder)), seed * 100_000, 0
        while done < count and time.perf_counter() - began < limit:
            done += made.trial(number, count - done)
            number += 1
        return {"what": "kills", "seed": seed, "kills": done, "trials": number - seed * 100_000,
                "outcomes": dict(made.outcomes), "wrong": made.wrong,
                "seconds": round(time.perf_counter() - began, 1)}  # fmt: skip


if __name__ == "__main__":
    import torch

    torch.set_num_threads(1)
    print(json.dumps(run(*map(int, sys.argv[1:]))))
