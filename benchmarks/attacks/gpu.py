"""AutoAttack `standard` on one GPU beside pyautoattack's, on a model that is not ours: seconds and accuracies.

    python -m benchmarks.attacks.gpu                               # to benchmarks/results/attacks_gpu.json
    python -m benchmarks.attacks.gpu --device cpu --tiny           # tries the program out; its times mean nothing

All contenders run in one process, one after the other, and then again: each is given its best turn. What is told is the
time on the clock, with the device waited for after every attack. A third contender is ours inside of
`without_recording()`. Forward passes of ours are the queries that it counts per sample, those of the peer the samples
that pass through the model. A speed-up of an attack that finds less is none. Peer: pip install pyautoattack.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.about import RESULTS, about, accelerator, placed
from benchmarks.attacks.__main__ import NAMES, POINTS, Case, Counted, Outcome, hear_peer
from benchmarks.attacks.models import images
from resolvent.attacks.autoattack.evaluate import EvaluationSettings, evaluate
from resolvent.attacks.autoattack.presets import standard
from resolvent.attacks.square.attack import Square
from resolvent.layers import without_recording

RECORD = RESULTS / "attacks_gpu.json"
TARGET = 3.0
TURNS = 2
WARM = 16  # samples of a first, short run of each contender
CASES = (Case("cnn", "linf", True, 1000), Case("cnn", "l2", True, 1000))
TINY = (Case("cnn", "linf", True, 12, 60),)


class Clock:
    """Seconds on the wall since it was made; the device is waited for."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.ticks = device, dict[str, float]()
        self.start = self._now()

    def tick(self, name: str) -> None:
        self.ticks[name] = round(self.spent(), 3)

    def spent(self) -> float:
        return self._now() - self.start

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()


@dataclass(frozen=True)
class Scene:
    """A model on the device with its samples, and how many pass through it at once."""

    net: nn.Module
    x: Tensor
    y: Tensor
    case: Case
    batch_size: int

    def shorten(self) -> Scene:
        return replace(self, x=self.x[:WARM], y=self.y[:WARM], case=replace(self.case, queries=40))


def ours(scene: Scene, context: Callable[[], AbstractContextManager[Any]] = nullcontext) -> Outcome:
    case, clock = scene.case, Clock(scene.x.device)
    attacks = tuple(replace(a, n_queries=case.queries) if isinstance(a, Square) else a for a in standard(case.norm))  # type: ignore[arg-type]
    settings = EvaluationSettings(batch_size=scene.batch_size, probe=0)
    with context():
        seen = evaluate(
            scene.net, (scene.x, scene.y), case.threat, attacks, settings=settings,
            listener=lambda name, *_: clock.tick(name),
        )  # fmt: skip
    spent = clock.spent()
    return Outcome(spent, seen.result.table, clock.ticks, int(seen.result.queries.sum()), spent)


def plain(scene: Scene) -> Outcome:
    return ours(scene, without_recording)


def peer(scene: Scene) -> Outcome:
    from pyautoattack import AutoAttack

    case, counted, device = scene.case, Counted(scene.net), scene.x.device
    attack = AutoAttack(counted, norm=NAMES[case.norm], eps=float(case.threat.eps), seed=0, device=device)
    attack.square.n_queries = case.queries
    attack.verbose = True
    clock = Clock(device)
    heard = hear_peer(attack, clock)
    x_adv, _ = attack.run_standard_evaluation(scene.x, scene.y, batch_size=scene.batch_size)
    spent, passed = clock.spent(), counted.passed
    with torch.no_grad():
        final = float((scene.net(x_adv).argmax(1) == scene.y).double().mean())
    return Outcome(spent, {**heard, "all": final}, clock.ticks, passed, spent)


CONTENDERS: dict[str, Callable[[Scene], Outcome]] = {"resolvent": ours, "pyautoattack": peer, "unrecorded": plain}


def compete(case: Case, args: argparse.Namespace) -> dict[str, Any]:
    """All contenders on one model, by turns."""
    device = torch.device(args.device)
    x, y = (t.to(device) for t in images(case.samples, 5))
    scene = Scene(case.net.to(device).eval(), x, y, case, args.batch_size)
    chosen = {name: CONTENDERS[name] for name in args.contenders.split(",")}
    for run in chosen.values():
        run(scene.shorten())  # libraries load, kernels are compiled
    turns: dict[str, list[Outcome]] = {name: [] for name in chosen}
    for _ in range(args.turns):
        for name, run in chosen.items():
            turns[name].append(run(scene))
    found = {name: min(own, key=lambda outcome: outcome.seconds) for name, own in turns.items()}
    faster = found["pyautoattack"].seconds / found["resolvent"].seconds
    sound = found["resolvent"].accuracy <= found["pyautoattack"].accuracy + POINTS
    for name, outcome in found.items():
        table = "  ".join(f"{k} {100 * v:.2f} % {outcome.clock.get(k, 0):.2f} s" for k, v in outcome.table.items())
        print(f"{case!s:<18}{name:<14}{outcome.seconds:8.2f} s {outcome.forwards:>12,} forward passes   {table}")
    verdict = "as strong" if sound else "WEAKER than the peer"
    print(f"{case!s:<18}{faster:.2f} times faster (target {TARGET:g}); {verdict}\n", flush=True)
    results = {name: {"turns": [o.seconds for o in turns[name]], **_describe(own)} for name, own in found.items()}
    return {
        "model": case.model, "norm": case.norm, "training": case.training, "eps": case.subject.eps[case.norm],
        "samples": case.samples, "queries": case.queries, "faster": faster, "met": faster >= TARGET and sound,
        "results": results,
    }  # fmt: skip


def _describe(outcome: Outcome) -> dict[str, Any]:
    kept = {name: value for name, value in vars(outcome).items() if name != "cpu_seconds"}
    return {**kept, "accuracy": outcome.accuracy}


def main() -> int:
    args = _settings()
    start = time.perf_counter()
    cases = [case for case in (TINY if args.tiny else CASES) if case.norm in args.norms.split(",")]
    rows = [compete(case, args) for case in cases]
    hidden = ("out", "commit")
    record = {
        **about(accelerator(args.device), args.commit),
        "seconds": round(time.perf_counter() - start),
        "settings": {k: v for k, v in vars(args).items() if k not in hidden},
        "target": TARGET,
        "rows": rows,
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(f"record: {args.out}")
    return 0


def _settings() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--batch-size", type=int, default=1000, help="of all contenders")
    parser.add_argument("--norms", default="linf,l2")
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--contenders", default=",".join(CONTENDERS), help="resolvent and pyautoattack at least")
    parser.add_argument("--tiny", action="store_true", help="a dozen samples and few queries")
    parser.add_argument("--commit", default="", help="of the measured tree, where git cannot tell")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    args.out = placed(parser, args.out, RECORD, args.device, args.tiny)
    return args


if __name__ == "__main__":
    raise SystemExit(main())
