"""One layer at one shape: what is measured, and the measurement in a fresh process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Case:
    """A layer by name and its input shape; threads None: torch's default."""

    layer: str
    batch: int = 8
    length: int = 1024
    d_model: int = 64
    d_state: int | None = None
    device: str = "cpu"
    threads: int | None = None


@dataclass(frozen=True)
class Figures:
    """Milliseconds of a forward pass, of one with its backward pass, and of one step; additional megabytes."""

    forward_ms: float
    backward_ms: float
    step_ms: float | None
    extra_mb: float


@dataclass(frozen=True)
class Outcome:
    """A layer and its plain version; `error` is their largest difference relative to the largest value.

    floor_ms  time to read x and write y once at copy speed: a lower bound of the forward pass
    """

    case: Case
    ours: Figures
    plain: Figures
    error: float
    floor_ms: float

    @property
    def of_copy(self) -> float:
        """The forward pass's speed as a share of the copy's."""
        return self.floor_ms / self.ours.forward_ms

    @property
    def faster(self) -> tuple[float, float]:
        """How many times faster than the plain version: forward, and with backward."""
        return self.plain.forward_ms / self.ours.forward_ms, self.plain.backward_ms / self.ours.backward_ms

    def as_dict(self) -> dict[str, object]:
        forward, backward = self.faster
        return asdict(self) | {"of_copy": self.of_copy, "faster_forward": forward, "faster_backward": backward}


def measure_case(case: Case) -> Outcome:
    """Ours and the plain version, each in its own process: memory left by one would help the other."""
    ours, plain = (_child(case, way) for way in ("ours", "plain"))
    figures = [Figures(**held["figures"]) for held in (ours, plain)]
    return Outcome(case, figures[0], figures[1], ours["error"], ours["floor_ms"])


def _child(case: Case, way: str) -> dict[str, Any]:
    environment = dict(os.environ)
    if case.threads is not None:
        names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
        environment |= dict.fromkeys(names, str(case.threads))
    call = [sys.executable, "-m", "resolvent.timing.work", json.dumps(asdict(case)), way]
    done = subprocess.run(call, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it said nothing."])[-1]
        raise RuntimeError(f"{case.layer}, {way}: {last}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found
