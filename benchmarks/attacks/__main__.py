"""AutoAttack standard, ours beside pyautoattack: same model, same samples, same batch size, one run.

    python -m benchmarks.attacks                      every case; benchmarks/results/attacks.json
    python -m benchmarks.attacks --subjects s4,s5     only some models
    python -m benchmarks.attacks --subjects cnn --threads 1 --out /tmp/attacks.json

Each contender runs in a process of its own, so that neither finds memory or threads as the other has left them, and on
two samples before its clock starts: what a process pays once, compiled code being loaded for one, is not counted. They
take turns of a second, the other one standing still, since the speed of a machine that others use as well changes by
half within minutes: "seconds" are those of a contender's own turns, those after each attack are of all cores.

The models (attack_models.py) read images of 15 x 15, a convolutional network as they are and state-space models pixel
by pixel; each is trained here for some seconds, plainly or on PGD examples. What AutoAttack leaves of a plain one is
little; of the other many samples stand, and those cost the full budget of every attack.

Of a foreign network all that an attack can save is what it does around the forward passes, and targets that it runs
side by side: the passes themselves are the same in number. A state-space model of this library has tables that depend
on its parameters alone, made once for a whole attack (`frozen()`); who calls it as a plain module, as the peer does,
has them made in every pass. The accuracies of both contenders after every attack are printed beside the times: a
speed-up of an attack that finds less is none. Run it alone. Peer: pip install pyautoattack.
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
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.about import RESULTS, about, processor
from benchmarks.attacks.models import SUBJECTS, Subject, images, trained
from resolvent.attacks import Threat
from resolvent.attacks.autoattack.evaluate import EvaluationSettings, evaluate
from resolvent.attacks.autoattack.presets import standard
from resolvent.attacks.square.attack import Square

TARGET = 2.0
TURN = 1.0  # seconds
READY = "ready"
POINTS = 0.01  # our accuracy may not be above the peer's by more than this
NAMES = {"linf": "Linf", "l2": "L2"}


@dataclass(frozen=True)
class Outcome:
    """One contender: seconds of all cores, in all and after each attack, accuracies; seconds of its own turns."""

    cpu_seconds: float
    table: dict[str, float]
    clock: dict[str, float]
    forwards: int
    seconds: float = 0.0

    @property
    def accuracy(self) -> float:
        return list(self.table.values())[-1]


class Clock:
    """Seconds of all cores since it was made, and at the end of each attack: none while the process stands still."""

    def __init__(self) -> None:
        self.start, self.ticks = time.process_time(), dict[str, float]()

    def tick(self, name: str) -> None:
        self.ticks[name] = round(self.spent(), 2)

    def spent(self) -> float:
        return time.process_time() - self.start


class Counted(nn.Module):
    """Counts samples that pass through."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.passed = inner, 0

    def forward(self, x: Tensor) -> Tensor:
        self.passed += x.shape[0]
        logits: Tensor = self.inner(x)
        return logits


def ours(net: nn.Module, x: Tensor, y: Tensor, threat: Threat, queries: int, batch_size: int) -> Outcome:
    counted, clock = Counted(net), Clock()
    attacks = tuple(replace(a, n_queries=queries) if isinstance(a, Square) else a for a in standard(threat.norm))
    settings = EvaluationSettings(batch_size=batch_size, probe=0)
    seen = evaluate(counted, (x, y), threat, attacks, settings=settings, listener=lambda name, *_: clock.tick(name))
    return Outcome(clock.spent(), seen.result.table, clock.ticks, counted.passed)


def peer(net: nn.Module, x: Tensor, y: Tensor, threat: Threat, queries: int, batch_size: int) -> Outcome:
    from pyautoattack import AutoAttack

    counted = Counted(net)
    attack = AutoAttack(counted, norm=NAMES[threat.norm], eps=float(threat.eps), seed=0)
    attack.square.n_queries = queries
    attack.verbose = True
    clock = Clock()
    heard = hear_peer(attack, clock)
    x_adv, _ = attack.run_standard_evaluation(x, y, batch_size=batch_size)
    spent, passed = clock.spent(), counted.passed
    with torch.no_grad():
        final = float((net(x_adv).argmax(1) == y).double().mean())
    return Outcome(spent, {**heard, "all": final}, clock.ticks, passed)


CONTENDERS: dict[str, Callable[..., Outcome]] = {"resolvent": ours, "pyautoattack": peer}


def hear_peer(attack: Any, clock: Any) -> dict[str, float]:
    """The accuracies that the peer only writes to its log."""
    record: dict[str, float] = {}

    class Ear:
        def debug(self, text: str, *_: Any) -> None:
            words = text.split()
            if text.startswith("initial accuracy"):
                record["clean"] = float(words[2].rstrip("%")) / 100
            if text.startswith("robust accuracy after"):
                name = words[3].rstrip(":").lower()
                record[name] = float(words[4].rstrip("%")) / 100
                clock.tick(name)

        info = warning = debug

    attack.logger = Ear()
    return record


@dataclass(frozen=True)
class Case:
    """A model, how it was trained, the norm, and how much is asked of it."""

    model: str
    norm: str
    robust: bool
    samples: int
    queries: int = 5000

    @property
    def subject(self) -> Subject:
        return SUBJECTS[self.model]

    @property
    def threat(self) -> Threat:
        return Threat(self.norm, self.subject.eps[self.norm], bounds=(0.0, 1.0))  # type: ignore[arg-type]

    @property
    def training(self) -> str:
        return "pgd" if self.robust else "plain"

    @property
    def net(self) -> nn.Module:
        return trained(self.subject.make, self.threat if self.robust else None, self.subject.steps, self.subject.rate)

    def __str__(self) -> str:
        return f"{self.model}, {self.norm}, {self.training}"


# Sequence models are asked for fewer samples: a pass through one costs the peer twenty times as much.
CASES = (
    *(Case("cnn", norm, robust, 128) for norm in ("linf", "l2") for robust in (False, True)),
    Case("s4", "linf", False, 64),
    Case("s4", "linf", True, 64),
    Case("s4", "l2", True, 64),
    Case("s5", "linf", True, 64),
)


def run_one(name: str, case: Case, weights: Path, args: argparse.Namespace) -> None:
    """The child process: one contender on one model, ready before it is told to start; prints its outcome as JSON."""
    net = case.subject.make()
    net.load_state_dict(torch.load(weights, weights_only=True))
    x, y = images(case.samples, 5)
    CONTENDERS[name](net.eval(), x[:2], y[:2], case.threat, 20, args.batch_size)
    print(READY, flush=True)
    sys.stdin.readline()
    print(json.dumps(vars(CONTENDERS[name](net, x, y, case.threat, case.queries, args.batch_size))))


class Runner:
    """A contender in a process of its own, which stands still but for its turns."""

    def __init__(self, name: str, case: Case, weights: Path, args: argparse.Namespace) -> None:
        options = [f"--batch-size={args.batch_size}", f"--threads={args.threads}"]
        which = ["--one", name, "--case", json.dumps(asdict(case)), "--weights", str(weights)]
        env = dict(os.environ, OMP_NUM_THREADS=str(args.threads), MKL_NUM_THREADS=str(args.threads))
        call = [sys.executable, "-m", "benchmarks.attacks", *which, *options]
        self.name, self.seconds, pipe = name, 0.0, subprocess.PIPE
        self.process = subprocess.Popen(call, env=env, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        assert self.process.stdout is not None
        while (line := self.process.stdout.readline()) and line.strip() != READY:
            pass
        self.process.send_signal(signal.SIGSTOP)
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def turn(self) -> bool:
        """One turn; False when it is done."""
        start = time.perf_counter()
        self.process.send_signal(signal.SIGCONT)
        try:
            self.process.wait(TURN)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGSTOP)
        self.seconds += time.perf_counter() - start
        return self.process.poll() is None

    def outcome(self) -> Outcome:
        values, wrong = self.process.communicate()
        if self.process.returncode:
            raise SystemExit(f"{self.name} failed: {(wrong.strip().splitlines() or ['no message'])[-1]}")
        return Outcome(**json.loads(values.strip().splitlines()[-1]) | {"seconds": self.seconds})


def competed(case: Case, args: argparse.Namespace) -> dict[str, Any]:
    """Both contenders on one model, a second each by turns: a drift of the machine's speed meets both."""
    with tempfile.TemporaryDirectory() as folder:
        weights = Path(folder) / "net.pt"
        torch.save(case.net.state_dict(), weights)
        runners = [Runner(name, case, weights, args) for name in CONTENDERS]
        waiting = list(runners)
        while waiting:
            waiting = [runner for runner in waiting if runner.turn()]
        found = {runner.name: runner.outcome() for runner in runners}
    faster = found["pyautoattack"].seconds / found["resolvent"].seconds
    cpu = found["pyautoattack"].cpu_seconds / found["resolvent"].cpu_seconds
    sound = found["resolvent"].accuracy <= found["pyautoattack"].accuracy + POINTS
    for name, outcome in found.items():
        table = "  ".join(f"{k} {100 * v:.2f} % {outcome.clock.get(k, 0):.1f} s" for k, v in outcome.table.items())
        print(f"{case!s:<18}{name:<14}{outcome.seconds:8.1f} s {outcome.forwards:>12,} forward passes   {table}")
    verdict = "as strong" if sound else "WEAKER than the peer"
    said = f"{faster:.2f} times faster on the clock, {cpu:.2f} in CPU time (target {TARGET:g}); {verdict}"
    print(f"{case!s:<18}{said}\n", flush=True)
    return {
        "model": case.model,
        "norm": case.norm,
        "training": case.training,
        "eps": case.subject.eps[case.norm],
        "samples": case.samples,
        "queries": case.queries,
        "faster": faster,
        "faster_cpu": cpu,
        "met": faster >= TARGET and sound,
        "results": {name: vars(outcome) for name, outcome in found.items()},
    }


def record(rows: list[dict[str, Any]], args: argparse.Namespace, seconds: float) -> dict[str, Any]:
    hidden = ("out", "one", "case", "weights")
    return {
        **about(processor(args.threads)),
        "seconds": round(seconds),
        "settings": {k: v for k, v in vars(args).items() if k not in hidden},
        "target": TARGET,
        "rows": rows,
    }


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--subjects", default=",".join(SUBJECTS), help="which models")
    parser.add_argument("--samples", type=int, help="in every case alike; otherwise as the case has it")
    parser.add_argument("--queries", type=int, help="of Square, likewise")
    parser.add_argument("--batch-size", type=int, default=256, help="of both; the peer's own default is 250")
    parser.add_argument("--norms", default="linf,l2")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of both; all cores unless told")
    parser.add_argument("--out", type=Path, default=RESULTS / "attacks.json")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--weights", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def chosen(args: argparse.Namespace) -> list[Case]:
    record = {name: getattr(args, name) for name in ("samples", "queries") if getattr(args, name) is not None}
    models, norms = args.subjects.split(","), args.norms.split(",")
    return [replace(case, **record) for case in CASES if case.model in models and case.norm in norms]


def main() -> None:
    args = parsed()
    torch.set_num_threads(args.threads)
    if args.one:
        run_one(args.one, Case(**json.loads(args.case)), args.weights, args)
        return
    start = time.perf_counter()
    rows = [competed(case, args) for case in chosen(args)]
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(record(rows, args, time.perf_counter() - start), indent=1) + "\n")
    print(f"record: {args.out}")


if __name__ == "__main__":
    main()
