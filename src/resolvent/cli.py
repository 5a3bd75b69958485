"""The command line: check | list | demo | attack. Heavy imports stay inside the commands, so that --help is quick."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

EXIT_CODES = "Exit status: 0 all well, 1 a property fails, 2 the command was called wrongly or lacks a package."
PACE = tyro.conf.create_mutex_group(required=False)


@dataclass(frozen=True)
class Check:
    """Measure what must hold for every layer and print a table of layers x properties.

    Exit status: 0 every property holds, 1 one fails, 2 bad usage.
    """

    layer: str | None = None
    """One of the library's layers; all of them when left out."""
    module: str | None = None
    """Somebody else's layer: package.module:Class or path/to/file.py:Class."""
    kwargs: str = "{}"
    """Arguments of that class as JSON, e.g. '{"d_model": 8}'."""
    dtype: Literal["float64", "float32", "bfloat16"] = "float64"
    """What inputs come in; parameters stay in float32 for bfloat16."""
    seed: int = 0
    """Where random inputs and parameters start."""
    fast: Annotated[bool, PACE] = False
    """Costly properties on each layer's first case only (the default)."""
    full: Annotated[bool, PACE] = False
    """Every case compiled, by the compiler's own backend, and 100,000 steps of streaming: half an hour."""
    json: Path | None = None
    """Also write all results to this file."""


@dataclass(frozen=True)
class List:
    """Name the layers, initialisations and presets that this version has."""


@dataclass(frozen=True)
class Demo:
    """Check every layer, draw spectra and kernels of every initialisation, and write one HTML page.

    Exit status: 0 the page is written and every property holds, 1 a property fails, 2 a package is missing.
    """

    out: Path = Path("out/demo")
    """The folder for report.html and record.json."""
    seed: int = 0
    """Where random inputs and parameters start."""


@dataclass(frozen=True)
class Attack:
    """Attack a classifier with a list of attacks and print its accuracy after each, with everything that casts doubt.

    Exit status: 0 done, 2 bad usage.
    """

    run: Annotated[str, tyro.conf.Positional]
    """The folder of a saved model, or somebody else's package.module:Class (path/to/file.py:Class)."""
    preset: str = "standard"
    """standard, qi2024, plus, rand or fast."""
    norm: Literal["linf", "l2", "l1"] = "linf"
    """How the size of a perturbation is measured."""
    eps: str = "8/255"
    """The largest size, a number or a fraction."""
    bounds: tuple[float, float] | None = None
    """The valid range of an input value; that of the task when left out."""
    data: str = "digits"
    """A task by name (its test split), or a .safetensors or .npz file with x and y."""
    samples: int | None = None
    """Only the first so many."""
    batch_size: int = 256
    """At most so many samples pass through the model at once."""
    seed: int = 0
    """Where random numbers start."""
    kwargs: str = "{}"
    """Arguments of that class as JSON."""
    device: str = "cpu"
    """Where the model runs, e.g. cuda."""
    out: Path | None = None
    """A folder that keeps every finished batch and record.json: a stopped attack goes on from there."""


Command = Check | List | Demo | Attack


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    given = list(sys.argv[1:] if argv is None else argv)
    if given in (["--version"], ["-V"]):
        from resolvent import __version__

        print(f"resolvent {__version__}")
        return 0
    try:
        command = tyro.cli(
            Command,
            prog="resolvent",
            description=f"State-space sequence models that stay steady. --version tells the version. {EXIT_CODES}",
            args=given or ["--help"],
            config=(tyro.conf.FlagCreatePairsOff, tyro.conf.OmitSubcommandPrefixes),
        )
    except SystemExit as stop:
        return int(stop.code or 0)
    return _guarded(command)


def _guarded(command: Command) -> int:
    """What the user can mend comes as one line, not as a traceback."""
    from resolvent.conformance.load import UsageError

    try:
        return _run(command)
    except UsageError as wrong:
        print(f"resolvent {type(command).__name__.lower()}: {wrong}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("resolvent: stopped.", file=sys.stderr)
        return 130


def _run(command: Command) -> int:
    if isinstance(command, Check):
        from resolvent.conformance import command as check

        return check.run(command)
    if isinstance(command, Demo):
        from resolvent import demo

        return demo.run(command.out, command.seed)
    if isinstance(command, Attack):
        from resolvent import assess

        return assess.run(command)
    from resolvent import catalogue

    return catalogue.run()
