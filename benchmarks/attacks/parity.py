"""Each attack of AutoAttack beside pyautoattack's: accuracy under it alone, and the mean loss that APGD-CE reaches.

    python -m benchmarks.attacks.parity                                  1,000 samples; benchmarks/results/parity.json
    python -m benchmarks.attacks.parity --samples 100 --only fab-t --out /tmp/parity.json

A small convolutional classifier of 10 x 10 images, trained on PGD examples, under Linf and L2. Both sides run with the
settings of AutoAttack's standard list, Square with 1,000 of its 5,000 queries. APGD starts at random and Square is a
random search, so each side is averaged over seeds: more are added until the standard error of the difference is below
0.2 points. The peer's Square draws one window for its whole batch, which moves all samples together; batches of 50 with
a seed each keep that spread small.

Required: as published, at most 0.5 points apart; as it is by default, where FAB also tries the nearest wrong point cut
off at eps and Square's windows reach every edge, no weaker than that; the mean loss of APGD-CE no lower than the peer's
beyond twice its standard error. Exit status 1 otherwise. Peer: pip install pyautoattack.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from statistics import fmean, variance
from typing import Any

import torch
from pyautoattack import AutoAttack
from torch import Tensor, nn

from benchmarks.about import RESULTS, about, processor
from benchmarks.attacks.__main__ import NAMES
from benchmarks.attacks.models import images, network, trained
from resolvent.attacks import APGD, Draws, Threat, cross_entropy
from resolvent.attacks.autoattack.presets import standard
from resolvent.attacks.fab.attack import FAB
from resolvent.attacks.result import Attack
from resolvent.attacks.square.attack import Square

SIZE, WIDTH, TRAINING = 10, 4, 200
EPS = {"linf": 0.1, "l2": 0.75}
POINTS = 0.5  # how far two accuracies may be apart
ERROR = 0.2  # the largest standard error of their difference
FEWEST, MOST = 4, 24  # seeds
QUERIES, BATCH = 1000, 50  # of Square, and of the peer's alone
RANDOM = ("apgd-ce", "apgd-t", "square")  # FAB-T starts at x and draws nothing

Side = Callable[[int], float]  # seed -> a number, in points for accuracies


@dataclass(frozen=True)
class Field:
    """One model under one threat."""

    net: nn.Module
    x: Tensor
    y: Tensor
    threat: Threat

    def accuracy(self, x_adv: Tensor) -> float:
        """In points."""
        with torch.no_grad():
            return 100 * float((self.net(x_adv).argmax(1) == self.y).double().mean())

    def loss(self, x_adv: Tensor) -> float:
        with torch.no_grad():
            return float(cross_entropy(self.net(x_adv), self.y).double().mean())

    def ours(self, attack: Attack) -> Callable[[int], Tensor]:
        """seed -> perturbed samples."""
        return lambda seed: attack(self.net, self.x, self.y, self.threat, draws=Draws.of(self.x, seed)).x_adv

    def theirs(self, name: str) -> Callable[[int], Tensor]:
        """The same from the peer's own list of attacks."""
        kit = AutoAttack(self.net, norm=NAMES[self.threat.norm], eps=float(self.threat.eps), seed=0)
        kit.apgd.loss, kit.fab.targeted, kit.square.n_queries = "ce", True, QUERIES
        one = {"apgd-ce": kit.apgd, "apgd-t": kit.apgd_targeted, "fab-t": kit.fab, "square": kit.square}[name]

        def run(seed: int) -> Tensor:
            parts = []
            size = BATCH if name == "square" else len(self.x)
            for i, (x, y) in enumerate(zip(self.x.split(size), self.y.split(size), strict=True)):
                one.seed = 1000 * seed + i
                parts.append(one.perturb(x, y))
            return torch.cat(parts)

        return run

    def highest(self, seed: int) -> Tensor:
        """The peer's points of highest cross-entropy; here it does not set its seed by itself."""
        torch.manual_seed(seed)
        kit = AutoAttack(self.net, norm=NAMES[self.threat.norm], eps=float(self.threat.eps), seed=seed)
        kit.apgd.loss = "ce"
        best: Tensor = kit.apgd.perturb(self.x, self.y, best_loss=True)
        return best


def field(norm: str, samples: int) -> Field:
    threat = Threat(norm, EPS[norm], bounds=(0.0, 1.0))  # type: ignore[arg-type]
    net = trained(lambda: network(SIZE, WIDTH), threat, TRAINING, 3e-3, SIZE)
    return Field(net, *images(samples, 5, SIZE), threat)


def published(attack: Attack) -> Attack:
    return replace(attack, upstream=True) if isinstance(attack, FAB | Square) else attack


@dataclass
class Comparison:
    """Numbers of both sides, one for each seed."""

    ours: list[float]
    theirs: list[float]

    @property
    def apart(self) -> float:
        return fmean(self.ours) - fmean(self.theirs)

    @property
    def error(self) -> float:
        """Standard error of the difference."""
        sides = (self.ours, self.theirs)
        return float(sum(variance(v) / len(v) if len(v) > 1 else 0.0 for v in sides) ** 0.5)

    def as_dict(self) -> dict[str, Any]:
        return {
            "ours": round(fmean(self.ours), 3),
            "pyautoattack": round(fmean(self.theirs), 3),
            "apart": round(self.apart, 3),
            "standard_error": round(self.error, 3),
            "seeds": len(self.ours),
            "by_seed": {name: [round(v, 3) for v in values] for name, values in vars(self).items()},
        }


def compared(ours: Side, theirs: Side, chance: bool, error: float = ERROR) -> Comparison:
    """One seed after the other on both sides, until the difference is known well enough."""
    found = Comparison([], [])
    for seed in count():
        found.ours.append(ours(seed))
        found.theirs.append(theirs(seed))
        enough = seed + 1 >= FEWEST and found.error < error
        if not chance or enough or seed + 1 == MOST:
            break
    return found


def row(place: Field, attack: Attack) -> dict[str, Any]:
    """One attack: as published on both sides, then ours as it is by default against the same numbers."""
    name, theirs = attack.name, place.theirs(attack.name)
    plain = published(attack)
    found = compared(
        lambda seed: place.accuracy(place.ours(plain)(seed)),
        lambda seed: place.accuracy(theirs(seed)),
        name in RANDOM,
    )
    met = abs(found.apart) <= POINTS and found.error < ERROR
    record = {"norm": place.threat.norm, "attack": name, **found.as_dict()}
    if plain != attack:
        default = [place.accuracy(place.ours(attack)(seed)) for seed in range(len(found.ours))]
        own = Comparison(default, found.theirs)
        record["default"] = {"ours": round(fmean(default), 3), "apart": round(own.apart, 3)}
        met = met and own.apart <= POINTS
    return record | {"met": met}


def loss_row(place: Field) -> dict[str, Any]:
    """Mean cross-entropy at the points of highest loss."""
    attack = APGD(stop=False)
    found = compared(
        lambda seed: place.loss(place.ours(attack)(seed)), lambda seed: place.loss(place.highest(seed)), True, 5e-3
    )
    met = found.apart >= -2 * found.error
    return {"norm": place.threat.norm, "attack": "apgd-ce, mean loss", **found.as_dict(), "met": met}


def rows_of(norm: str, samples: int, only: str) -> list[dict[str, Any]]:
    place = field(norm, samples)
    rows = []
    for attack in standard(place.threat.norm):
        attack = replace(attack, n_queries=QUERIES) if isinstance(attack, Square) else attack
        if not only or attack.name in only.split(","):
            rows.append(say(row(place, attack)))
    return rows if only else [*rows, say(loss_row(place))]


def say(row: dict[str, Any]) -> dict[str, Any]:
    default = f"; by default {row['default']['ours']:.2f}" if "default" in row else ""
    print(
        f"{row['norm']:<5}{row['attack']:<20}ours {row['ours']:.3f}  pyautoattack {row['pyautoattack']:.3f}  "
        f"apart {row['apart']:+.3f} (standard error {row['standard_error']:.3f}, {row['seeds']} seeds){default}"
        f"  {'met' if row['met'] else 'MISSED'}",
        flush=True,
    )
    return row


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--norms", default="linf,l2")
    parser.add_argument("--only", default="", help="names of attacks, e.g. apgd-t,square")
    parser.add_argument("--out", type=Path, default=RESULTS / "parity.json")
    return parser.parse_args()


def main() -> None:
    args, start = parsed(), time.perf_counter()
    torch.set_num_threads(1)
    rows = [found for norm in args.norms.split(",") for found in rows_of(norm, args.samples, args.only)]
    record = {
        **about(processor(1)),
        "seconds": round(time.perf_counter() - start),
        "samples": args.samples,
        "eps": EPS,
        "queries": QUERIES,
        "required": {"points": POINTS, "standard_error": ERROR},
        "rows": rows,
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(record, indent=1) + "\n")
    print(f"record: {args.out}")
    sys.exit(not all(found["met"] for found in rows))


if __name__ == "__main__":
    main()
