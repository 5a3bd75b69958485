"""`resolvent attack`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import tyro

from resolvent.commands.new_data import FileOptions, NewFile, SampleOptions, Samples
from resolvent.commands.run.train_options import option


@dataclass(frozen=True)
class Attack:
    """Attack a model with a list of attacks; print its accuracy (real outputs: its error) after each, and all flags.

    Exit status: 0 done, 2 bad usage, 130 stopped by Ctrl-C.
    """

    RARE: ClassVar[dict[str, tuple[str, ...]]] = {
        "sizes": ("eps_raw", "bounds", "bounds_raw", "tolerance"),
        "tokens": ("substitutions", "beam", "embedding"),
        "over time": ("time_steps", "band", "rate"),
        "how it runs": ("checkpoint", "batch_size", "seed", "limit"),
    }

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """The folder of a training run or a saved model, or your own class: path/to/file.py:Class, package.module:Class."""
    checkpoint: Literal["best", "last", "best_by_test"] = "best"
    """Which weights of a training run."""
    preset: str = "standard"
    """standard, qi2024, plus, rand, fast, or decision (uses the model's answers only)."""
    norm: Literal["linf", "l2", "l1"] = "linf"
    """How the size of a perturbation is measured."""
    eps: Annotated[tuple[str, ...] | None, option("SIZE ...")] = None
    """The largest size in the units of the model (deviations, if the run was scaled); 8/255 when left out.
    Several sizes make a curve; 0.1,0.1,0.5 is one size with a value for each channel."""
    eps_raw: Annotated[tuple[str, ...] | None, option("SIZE ...")] = None
    """The same in the units of the file that the run was trained on, e.g. 0.5,0.5,2."""
    bounds: Annotated[tuple[str, str] | None, option("LOW HIGH")] = None
    """The valid range of an input value, or of each channel (0,0,-1 1,1,1); that of the task when left out."""
    bounds_raw: Annotated[tuple[str, str] | None, option("LOW HIGH")] = None
    """The same in the units of the file that the run was trained on."""
    tolerance: Annotated[float | None, option("ERROR")] = None
    """Of a model with real outputs: the error (root mean square over a sample's outputs) that may not be exceeded."""
    substitutions: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """For token models: replace at most this many tokens of a sample by others."""
    beam: int = 1
    """--substitutions: sequences that are kept at a time; 1 is greedy."""
    embedding: Annotated[bool, tyro.conf.arg(help_behavior_hint="")] = False
    """For token models: attack the embeddings as real numbers, with --norm and --eps; no token is replaced."""
    time_steps: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """At most this many time steps of a sample may change, each within --eps."""
    band: Annotated[tuple[float, float] | None, option("LOW HIGH")] = None
    """The perturbation contains only frequencies from LOW to HIGH: cycles per step, at most 0.5 (hertz with --rate)."""
    rate: Annotated[float | None, option("HERTZ")] = None
    """Samples per second of the data: --band is then in hertz."""
    limit: Annotated[float | None, option("SECONDS")] = None
    """Start no batch after this many seconds, and print what is undecided; with --out the same command resumes."""
    batch_size: int = 256
    """At most this many samples pass through the model at once."""
    seed: int = 0
    """Where random numbers start."""
    kwargs: str = "{}"
    """Arguments of that class as JSON."""
    weights: Annotated[Path | None, option("FILE")] = None
    """Weights of that class: .safetensors, or a file that torch reads without running code."""
    device: str = "cpu"
    """Where the model runs, e.g. cuda."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER")] = None
    """A folder that keeps every finished batch and record.json: a stopped attack resumes from there."""
    on: Samples = field(default_factory=SampleOptions)
    new: NewFile = field(default_factory=FileOptions)

    def execute(self) -> int:
        from resolvent.commands.attack.execute import run

        return run(self)
