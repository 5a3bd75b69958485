"""What every record says of itself: where, when, on which tree and by which command it was measured."""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
UNKNOWN = "unknown"


def about(device: str, commit: str = "") -> dict[str, Any]:
    """The head of a record; `commit` names the measured tree where git cannot tell."""
    return {
        "device": device,
        "date": time.strftime("%Y-%m-%d"),
        "commit": measured_commit(commit),
        "command": command(),
        "torch": torch.__version__,
    }


def processor(threads: int) -> str:
    """This machine's, and how much of it was used."""
    return f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, {threads} threads"


def accelerator(device: str) -> str:
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else device


def measured_commit(named: str = "") -> str:
    """Of the measured tree, as it was named or as git tells; "+" where the source had been changed since."""
    here = HERE.parent
    hash_ = _git(here, "rev-parse", "--short", "HEAD")
    changed = _git(here, "status", "--porcelain", "--", "src", "benchmarks/*.py", "benchmarks/*/*.py") if hash_ else ""
    return named or (hash_ and hash_ + "+" * bool(changed)) or UNKNOWN


def placed(parser: argparse.ArgumentParser, out: Path | None, results: Path, device: str, tiny: bool) -> Path:
    """Where a run's record goes: `out`, or the committed one, which a trial and a run without a GPU never touch."""
    if device.startswith("cuda") and not torch.cuda.is_available():
        parser.error(f"expected a GPU for --device {device}, and torch sees none; --device cpu --tiny tries this out")
    return out or (results if device.startswith("cuda") and not tiny else Path("out") / results.name)


def command() -> str:
    """As it was typed: `python -m benchmarks.gpu --tiny`."""
    place = Path(sys.argv[0]).resolve()
    parts = place.relative_to(HERE).with_suffix("").parts if place.is_relative_to(HERE) else (place.stem,)
    module = ".".join(("benchmarks", *(part for part in parts if part != "__main__")))
    return f"python -m {module} " + " ".join(f'"{word}"' if " " in word else word for word in sys.argv[1:])


def _git(folder: Path, *words: str) -> str:
    try:
        return subprocess.run(["git", *words], capture_output=True, text=True, cwd=folder, check=False).stdout.strip()
    except FileNotFoundError:  # a machine without git
        return ""
