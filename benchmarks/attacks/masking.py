"""What the MNIST rows of Qi et al. 2024 measure: text and released code, three seeds, attack by attack.

    python -m benchmarks.attacks.masking out/masking --epochs 30 --workers 3 --until 570 --commit COMMIT

Trains S4, DSS and S5 on sequential MNIST (bf16; everything is measured in float32) and attacks the last checkpoint by
each attack alone and by AutoAttack. Killed or stopped at --until seconds, the same command goes on. One JSON a cell.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.about import command
from benchmarks.attacks.released_attack import ReleasedPGD, ReleasedPGDAT
from resolvent.attacks import Threat
from resolvent.attacks.apgd.attack import APGD
from resolvent.attacks.autoattack.evaluate import EvaluationSettings, evaluate
from resolvent.attacks.draws import Draws
from resolvent.attacks.fgsm import FGSM
from resolvent.attacks.objective.objective import cross_entropy
from resolvent.attacks.pgd import PGD
from resolvent.attacks.square.attack import Square
from resolvent.experiments.cell import TaskChoice
from resolvent.experiments.provenance import provenance
from resolvent.experiments.tasks import open_task
from resolvent.experiments.training_run import finite
from resolvent.models import build_model, count_parameters, load_model, save_model
from resolvent.models.presets import robustness
from resolvent.training import FitSettings, Probe, fit, pgd_at, standard, trades
from resolvent.training.step.adversarial import Inner
from resolvent.training.step.batch import criterion

EPS, STEP, BETA = 0.3, 0.04, 1.0


@dataclass(frozen=True)
class Cell:
    """Structure, GELU (the text) or none (the code), attack of training and measurement, objective, seed."""

    structure: str
    activation: str
    attack: str
    kind: str
    seed: int
    ads: str | None = None
    shift: bool = False

    @property
    def name(self) -> str:
        scaled = "" if self.ads is None else f"+{self.ads}" + ("+shift" if self.shift else "")
        return f"{self.structure}{scaled}-{self.activation}-{self.attack}-{self.kind}-seed{self.seed}"


def cells() -> list[Cell]:
    """In the order of what they are worth."""
    text = [Cell("s4", "gelu", "usual", kind, 0) for kind in ("pgd-at", "trades")]
    code = Cell("s4", "none", "released", "pgd-at", 0)
    first = [replace(c, seed=s) for s in (0, 1, 5) for c in (text[0], code, text[1])]
    mixed = [Cell("s4", "gelu", "released", "pgd-at", seed) for seed in (0, 1, 5)]
    mixed += [Cell("s4", "none", "usual", kind, 0) for kind in ("pgd-at", "trades")]
    plain = [Cell(s, "gelu", "usual", "standard", seed) for s in ("s4", "dss", "s5") for seed in (0, 1, 5)]
    dss = [Cell("dss", "gelu", "usual", kind, 5) for kind in ("pgd-at", "trades")]
    scaled = [replace(c, ads="relu") for c in dss]
    return first + mixed + dss + scaled + plain


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("out", type=Path)
    options.add_argument("--epochs", type=int, default=30)
    options.add_argument("--workers", type=int, default=3)
    options.add_argument("--until", type=float, default=570, help="seconds after which everything stops")
    options.add_argument("--commit", required=True)
    options.add_argument("--device", default="cuda")
    options.add_argument("--only", nargs="*", default=[""], help="cells whose name holds one of these")
    options.add_argument("--samples", type=int, default=1000, help="test images under attack")
    options.add_argument("--train", type=int, default=None, help="training images, for a trial")
    options.add_argument("--worker", type=int, default=None)
    options.add_argument("--examine", default=None, help="only attack this checkpoint (best, last) of what was trained")
    options.add_argument("--few", action="store_true", help="with --examine: the quicker attacks alone, for a CPU")
    asked = options.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    if asked.examine is not None:
        task = open_task(TaskChoice("mnist"))
        for cell in cells():
            if any(part in cell.name for part in asked.only) and not (asked.out / f"{cell.name}.json").exists():
                examined(cell, task, asked, kept(asked.out / cell.name, asked.examine))
        return
    if asked.worker is not None:
        work(asked)
        return
    for stale in asked.out.glob("*.held"):
        stale.unlink()
    began = time.monotonic()
    call = [sys.executable, "-m", "benchmarks.attacks.masking", *sys.argv[1:]]
    workers = [subprocess.Popen([*call, "--worker", str(i)]) for i in range(asked.workers)]
    while any(p.poll() is None for p in workers) and time.monotonic() - began < asked.until:
        time.sleep(0.5)
    for process in workers:
        process.kill()
        process.wait()
    done = sorted(p.stem for p in asked.out.glob("*.json"))
    print(f"{time.monotonic() - began:.0f} s; {len(done)} of {len(cells())} cells are done")


def work(asked: argparse.Namespace) -> None:
    """Cells that nobody else holds, one after another."""
    torch.set_num_threads(4)
    choice = TaskChoice("mnist", samples=asked.train)
    task = open_task(choice)
    for cell in cells():
        if not any(part in cell.name for part in asked.only) or (asked.out / f"{cell.name}.json").exists():
            continue
        try:
            os.close(os.open(asked.out / f"{cell.name}.held", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            continue
        measured(cell, task, asked)


def measured(cell: Cell, task: Any, asked: argparse.Namespace) -> None:
    began, device = time.perf_counter(), torch.device(asked.device)
    threat = Threat("linf", EPS, (0, 1))
    torch.manual_seed(cell.seed)
    config = robustness(cell.structure, "mnist", ads=cell.ads, shift=cell.shift, activation=cell.activation)  # type: ignore[arg-type]
    model = build_model(config).to(device)
    usual = PGD(10, STEP, objective=criterion)
    probe = Probe(threat, ReleasedPGD(10, STEP) if cell.attack == "released" else usual)
    settings = FitSettings(
        epochs=asked.epochs, batch_size=256, lr=1e-3, weight_decay=2e-4, groups=False, precision="bf16",
        seed=cell.seed, evaluate_every=10, track_test=True, track_seen=1024, probe=probe,
        choose="clean" if cell.kind == "standard" else "robust",
    )  # fmt: skip
    history = fit(model, task, objective(cell, threat), settings, asked.out / cell.name, save=save_model)
    trained = {"rows": list(history.rows), "summary": history.summary, "checkpoint": "last"}
    examined(cell, task, asked, trained | {"training_seconds": round(time.perf_counter() - began, 1)})


def kept(folder: Path, checkpoint: str) -> dict[str, Any]:
    """What a run that was stopped has left."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    summary = folder / "summary.json"
    record = json.loads(summary.read_text(encoding="utf-8")) if summary.exists() else None
    return {"rows": rows, "summary": record, "checkpoint": checkpoint}


def examined(cell: Cell, task: Any, asked: argparse.Namespace, trained: dict[str, Any]) -> None:
    """The record of a trained cell, attack by attack."""
    began, device = time.perf_counter(), torch.device(asked.device)
    threat = Threat("linf", EPS, (0, 1))
    model = load_model(asked.out / cell.name / "checkpoint" / trained["checkpoint"]).to(device).eval()
    record: dict[str, Any] = {
        "format": 1, "kind": "masking", "cell": asdict(cell), "epochs": asked.epochs, "commit": asked.commit,
        "command": command(), "versions": provenance(device),
        "parameters": count_parameters(model), "threat": str(threat), **trained,
    }  # fmt: skip
    x, y = task.test.x[: asked.samples].to(device), task.test.y[: asked.samples].to(device)
    record["alone"] = alone(model, x, y, threat, cell, few=asked.few)
    record["larger"] = [] if asked.few else larger(model, x, y)
    record["along"] = along(model, x, y, threat)
    record["autoattack"] = cascade(model, x, y, threat, cell.seed)
    record["seconds"] = round(time.perf_counter() - began, 1)
    part = asked.out / f"{cell.name}.part"
    part.write_text(json.dumps(finite(record), indent=1) + "\n", encoding="utf-8")
    part.rename(asked.out / f"{cell.name}.json")
    values = {name: row["accuracy"] for name, row in record["alone"].items()}
    print(cell.name, record["seconds"], values, record["autoattack"]["accuracy"], flush=True)


def objective(cell: Cell, threat: Threat) -> Any:
    if cell.kind == "standard":
        return standard
    if cell.kind == "trades":
        return trades(threat, BETA, steps=10, step_size=STEP)
    return ReleasedPGDAT(Inner(threat, 10, STEP)) if cell.attack == "released" else pgd_at(threat, step_size=STEP)


def alone(model: nn.Module, x: Tensor, y: Tensor, threat: Threat, cell: Cell, few: bool) -> dict[str, Any]:
    """Accuracy under each attack by itself, on every sample; `last` is that of the last iterate, right or wrong."""
    attacks: dict[str, Any] = {
        "fgsm": FGSM(),
        "released PGD-10": ReleasedPGD(10, STEP),
        "PGD-10, last iterate": PGD(10, STEP, keep="last"),
        "PGD-10": PGD(10, STEP),
        "PGD-10, 10 restarts": PGD(10, STEP, restarts=10),
        "PGD-100": PGD(100, 0.01),
        "PGD-100, 5 restarts": PGD(100, 0.01, restarts=5),
        "APGD-CE": APGD(cross_entropy),
    }
    if few:
        attacks = {
            name: attacks[name] for name in ("fgsm", "released PGD-10", "PGD-10, last iterate", "PGD-10", "APGD-CE")
        }
    elif cell.seed == 0 and cell.kind != "standard":
        attacks["Square, 2000 queries"] = Square(n_queries=2000, stretch=False)
    found = {"clean": {"accuracy": accuracy(model, x, y), "n": len(x)}}
    for name, attack in attacks.items():
        began, wrong, loss = time.perf_counter(), 0, 0.0
        for i, (a, b) in enumerate(zip(x.split(1000), y.split(1000), strict=True)):
            result = attack(model, a, b, threat, draws=Draws.of(a, cell.seed, 1000 * i))
            wrong += int(result.success.sum())
            loss += float(result.loss.sum())
        seconds = round(time.perf_counter() - began, 2)
        found[name] = {"accuracy": 1 - wrong / len(x), "n": len(x), "loss": loss / len(x), "seconds": seconds}
    return found


def larger(model: nn.Module, x: Tensor, y: Tensor) -> list[dict[str, float]]:
    """APGD-CE at other sizes: an accuracy that does not fall to chance as eps grows tells of masked gradients."""
    x, y = x[:500], y[:500]
    rows = []
    for eps in (0.05, 0.1, 0.2, 0.4, 0.5):
        result = APGD(cross_entropy)(model, x, y, Threat("linf", eps, (0, 1)), draws=Draws.of(x))
        rows.append({"eps": eps, "accuracy": 1 - int(result.success.sum()) / len(x)})
    return rows


@torch.no_grad()
def along(model: nn.Module, x: Tensor, y: Tensor, threat: Threat) -> dict[str, Any]:
    """Mean loss and accuracy at x + s (x' - x): x' by one gradient step, by PGD-10's last iterate, random signs."""
    x, y = x[:500], y[:500]
    draws = Draws.of(x)
    signs = threat.project(x + EPS * draws.sign(3, 0, x.shape[1:], x.dtype), x)
    ends = {
        "fgsm": FGSM()(model, x, y, threat, draws=draws).x_adv,
        "PGD-10": PGD(10, STEP, keep="last")(model, x, y, threat, draws=draws).x_adv,
        "released PGD-10": ReleasedPGD(10, STEP)(model, x, y, threat, draws=draws).x_adv,
        "APGD-CE": APGD(cross_entropy)(model, x, y, threat, draws=draws).x_adv,
        "random signs": signs,
    }
    shares = [round(0.1 * i, 1) for i in range(13)]
    found: dict[str, Any] = {"share": shares}
    for name, end in ends.items():
        outputs = [model((x + s * (end - x)).clamp(0, 1)) for s in shares]
        found[name] = {
            "loss": [round(float(criterion(o, y).mean()), 5) for o in outputs],
            "accuracy": [round(float((o.argmax(-1) == y).double().mean()), 4) for o in outputs],
        }
    return found


def cascade(model: nn.Module, x: Tensor, y: Tensor, threat: Threat, seed: int) -> dict[str, Any]:
    """AutoAttack's released list; each attack meets what those before it have left."""
    record = evaluate(model, (x, y), threat, "standard", settings=EvaluationSettings(seed, 1000, probe=64)).to_dict()
    del record["records"]
    return record


@torch.no_grad()
def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    return float(torch.cat([model(a).argmax(-1) for a in x.split(1000)]).eq(y).double().mean())


if __name__ == "__main__":
    main()
