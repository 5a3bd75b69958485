"""The adversarial training step among the rows of benchmarks/gpu: ours, the eager version, and peers' scans in it.

One step is PGD-10 on one batch, the loss, its gradients and AdamW: b = 256, l = 1024, d = 128, four blocks of the study
of deep SSMs under adversarial training; S4 and S4D at l = 16,384 as well. Ours runs in bf16 under autocast, the eager
version in float32. A peer's scan takes the place of the eager one. Values, input and parameter gradients are compared
with our modules in float64: every contender's on a smaller batch, ours on the timed one too (`gpu_step_check`).
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.eager import Eager
from benchmarks.gpu import peers
from benchmarks.gpu.case import EAGER, OURS, Cost, Running, Timing
from benchmarks.gpu.step_check import LIMIT, attacked, distance, full_size, gradients, learnt, recorded
from resolvent.attacks import Draws, Threat
from resolvent.models import build_model
from resolvent.models.config import AdSConfig, MegaConfig, ModelConfig, ResidualConfig
from resolvent.models.layer_config import S4DConfig, S5Config
from resolvent.models.presets import robustness
from resolvent.training import pgd_at
from resolvent.training.objective import Objective
from resolvent.training.step.batch import Batch

STEPS = 10
QUOTED = {
    "s4d": "eager FFT 234 ms", "s4": "eager FFT 234 ms", "dss": "eager FFT 234 ms", "s5": "eager tree scan 500 ms",
    "mamba": "mamba_ssm CUDA, autocast 689 ms", "mega": "eager float32 1332 ms",
}  # fmt: skip
KINDS = ("s4d", "s4", "dss", "s4 gelu", "s4 ads", "s5", "mamba", "mega")
SLOW = ("mamba", "mega")  # in float64: compared on one short sample, and a few rows of the timed batch


@dataclass(frozen=True)
class Size:
    b: int = 256
    l: int = 1024
    d: int = 128
    blocks: int = 4


FAR = Size(16, 16384)  # as many steps in all
DIGITS = Size(256, 784, 128, 2)  # sequential MNIST: a length that no slice divides
GOAL = {
    "s4d": 18.0, "s4": 18.0, "dss": 18.0, "s4 gelu": 21.0, "s4 ads": 22.0, "s5": 15.0, "mamba": 120.0, "mega": 185.0,
}  # fmt: skip
GOALS_ELSEWHERE = {("s4d", FAR): 24.0, ("s4", FAR): 30.0, ("s4 gelu", DIGITS): 9.0}


@dataclass(frozen=True)
class Trainer:
    """One contender: a model with the parameters of ours, trained in bf16 under autocast or as it is."""

    name: str
    make: Callable[[nn.Module], nn.Module]
    half: bool = False
    ahead: bool = False


@dataclass
class StepCase:
    kind: str
    size: Size
    device: torch.device
    kept: dict[str, Any] = field(default_factory=dict)  # the model, and the truth, once made

    @property
    def name(self) -> str:
        s = self.size
        return f"PGD-{STEPS} step, {self.kind}, (b, l, d) = ({s.b}, {s.l}, {s.d}), {s.blocks} blocks"

    @property
    def timings(self) -> Sequence[Timing]:
        least, usual = costs(self.kind.split()[0], self.size), "" if self.size in (FAR, DIGITS) else self.kind
        goal = GOAL.get(usual, GOALS_ELSEWHERE.get((self.kind, self.size)))
        return [Timing("step", "step", least, goal, QUOTED.get(usual, ""), self.size.b)]

    @property
    def contenders(self) -> Sequence[Trainer]:
        ours = Trainer(OURS, lambda model: model, self.device.type == "cuda", ahead=True)
        return [ours, Trainer(EAGER, Eager), *_with_peers(self.kind)]

    def errors(self, contender: Trainer) -> dict[str, float]:
        """Of a smaller batch, and for ours of the timed one, of its pass and of its recorded step."""
        found = self._sampled(contender)
        if contender.name != OURS:
            return found
        batch, precision = self._batch(self.size.b, self.size.l), functools.partial(self._precision, contender)
        found |= full_size(self._model(), batch, precision, self.kind not in SLOW)
        model, objective = copy.deepcopy(self._model()), self._objective()
        self._step(contender, model, objective)
        return found | recorded(model, batch, objective, precision)

    def _sampled(self, contender: Trainer) -> dict[str, float]:
        """Of logits, input and parameter gradients; for ours inside `frozen()` as well."""
        model, batch, want = self._model(), self._sample(), self._truth()
        with self._precision(contender):
            got = gradients(contender.make(model), batch.x, batch.y)
        found = {key: distance(got[key], want[key]) for key in ("logits", "x")}
        found["parameters"] = distance(learnt(got), learnt(want))
        if contender.name == OURS:
            with self._precision(contender):
                found["x, frozen"] = distance(attacked(model, batch), want["x"])
        return found

    def limit(self, error: str) -> float:
        return LIMIT

    def running(self, contender: Trainer, timing: Timing) -> Running:
        """A copy of the model each time: what one contender learns or records is no other's."""
        model = contender.make(copy.deepcopy(self._model()))
        warm = contender.name == OURS
        work = functools.partial(self._step, contender, model, self._objective())
        return Running(work, self.device, warm=warm, by_host=True)

    def once(self, contender: Trainer) -> None:
        self._sampled(contender)
        self._step(contender, contender.make(copy.deepcopy(self._model())), self._objective())()

    def clear(self) -> None:
        self.kept.clear()

    def kernels(self) -> list[str]:
        """Those of one of our steps, by the time that they take."""
        work = self._step(self.contenders[0], copy.deepcopy(self._model()), self._objective())
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
            work()
            torch.cuda.synchronize()
        rows = sorted(seen.key_averages(), key=lambda e: -e.self_device_time_total)
        named = [(e.self_device_time_total, e.count, e.key[:90]) for e in rows[:25]]
        named.append((sum(e.self_device_time_total for e in rows[25:]), sum(e.count for e in rows[25:]), "all others"))
        return [f"{took / 1e3:9.3f} ms {count:6d} x {name}" for took, count, name in named]

    def _step(self, contender: Trainer, model: nn.Module, objective: Objective) -> Callable[[], object]:
        batch = self._batch(self.size.b, self.size.l)
        fused = True if self.device.type == "cuda" else None  # as `fit` has it
        optimiser = torch.optim.AdamW(model.parameters(), 1e-3, fused=fused)

        def step() -> None:
            optimiser.zero_grad(set_to_none=True)
            with self._precision(contender):
                loss = objective(model, batch)
            loss.value.backward()
            optimiser.step()

        if contender.name == OURS:
            for _ in range(3):  # the second one records, the third one replays
                step()
        return step

    def _objective(self) -> Objective:
        """A recording belongs to one of these and to one model."""
        return pgd_at(Threat("linf", 8 / 255, (0, 1)), steps=STEPS)

    def _precision(self, contender: Trainer) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=contender.half)

    def _model(self) -> nn.Module:
        if "model" not in self.kept:
            torch.manual_seed(0)
            self.kept["model"] = build_model(config(self.kind, self.size)).to(self.device)
        return self.kept["model"]

    def _truth(self) -> dict[str, Tensor]:
        if "truth" not in self.kept:
            batch = self._sample()
            self.kept["truth"] = gradients(copy.deepcopy(self._model()).double(), batch.x.double(), batch.y)
        return self.kept["truth"]

    def _sample(self) -> Batch:
        return self._batch(1, min(257, self.size.l)) if self.kind in SLOW else self._batch(8, self.size.l)

    def _batch(self, rows: int, length: int) -> Batch:
        g = torch.Generator().manual_seed(1)
        x, y = torch.rand(rows, length, 3, generator=g), torch.randint(0, 10, (rows,), generator=g)
        return Batch(x.to(self.device), y.to(self.device), None, Draws(0, torch.arange(rows, device=self.device)))


def config(kind: str, size: Size) -> ModelConfig:
    first, *more = kind.split()
    found = robustness("s4" if first == "s4d" else first)  # type: ignore[arg-type]
    if first == "s4d":
        found = replace(found, block=ResidualConfig(S4DConfig(64), "linear", "none", final_activation="none"))
    if first == "s5":  # conjugate halves: 64 complex states
        found = replace(found, block=ResidualConfig(S5Config(128), "none", "none"))
    if "gelu" in more:
        found = robustness(first, activation="gelu")  # type: ignore[arg-type]
    if "ads" in more:  # a smooth gate: bf16 rounds across the kinks of a ReLU, whose gradient then cannot be compared
        found = replace(found, ads=AdSConfig("sigmoid", False))
    if isinstance(found.block, MegaConfig):
        found = replace(found, block=replace(found.block, max_length=size.l))
    return replace(found, d_model=size.d, layers=size.blocks)


def _with_peers(kind: str) -> list[Trainer]:
    """The eager model with a peer's scan in place of its own."""
    made = {
        "s5": [(peers.ACCELERATED_COMPLEX, False), (peers.S5_PYTORCH, False)],
        "mamba": [(peers.MAMBA_SSM, True), (peers.MAMBAPY_SELECTIVE, True)],
    }
    found = [(peer, peer.found(), half) for peer, half in made.get(kind, [])]
    return [
        Trainer(f"eager with {peer.name}", functools.partial(Eager, scan=scan), half, peer.triton)
        for peer, scan, half in found
        if not isinstance(scan, str)
    ]


def costs(kind: str, s: Size) -> tuple[Cost, ...]:
    """What docs/notes/gpu_step.md and docs/notes/gpu_forms.md count: eleven passes forward and back through all blocks.

    One activation is (d, b, l) in bf16. S4, S4D, DSS: half a square product for each channel and direction, or where
    that is less one of blocks of 512 steps with states of 128 numbers between them, six activations moved in each,
    kernel gradients once; products and memory one after the other. S5: x in and y out of a scan fused with its
    products, four activations for skip and norm in each direction. Mamba: the exponentials of its scan; 67 activations
    for the rest. Mega: scores passed over eleven times under their products, both moving averages, 134 activations for
    the rest.
    """
    act, n = 2.0 * s.d * s.b * s.l, float(s.blocks)
    passes = n * (STEPS + 1)
    square = 2.0 * s.d * s.b * s.l * s.l
    if kind == "s5":
        scan = Cost(4 * act, 4 * 2.0 * 128 * s.d * s.b * s.l, times=passes)
        return scan, Cost(8 * act, times=passes)
    if kind == "mamba":
        wide = 2 * act
        scan = Cost(11 * wide, 0.0, (3 * 16 + 4) * wide / 2, passes)
        return scan, Cost(67 * act, times=passes)
    if kind == "mega":
        scores = Cost(11 * 2.0 * s.b * s.l * s.l, 3 * 2.0 * s.b * s.l * s.l * (64 + 256), times=passes)
        return scores, Cost(4 * act, 2 * square, times=passes), Cost(134 * act, times=passes)
    products = Cost(flops=2.0 * s.d * s.b * s.l * min(s.l / 2, 512 / 2 + 2 * 128), times=2 * passes + n)
    return products, Cost(6 * act, times=2 * passes), Cost(4 * act, times=n)


def cases(device: torch.device, tiny: bool) -> list[StepCase]:
    size = Size(2, 32, 16, 1) if tiny else Size()
    kinds = ("s4d", "s5", "mamba", "mega") if tiny else KINDS
    found = [StepCase(kind, size, device) for kind in kinds]
    more = (("s4d", FAR), ("s4", FAR), ("s4 gelu", DIGITS))
    return found if tiny else [*found, *(StepCase(kind, other, device) for kind, other in more)]
