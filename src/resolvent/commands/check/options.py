"""`resolvent check`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

EFFORT = tyro.conf.create_mutex_group(required=False)


@dataclass(frozen=True)
class Check:
    """Measure what must hold for every layer and print a table of layers x properties.

    Exit status: 0 every property holds, 1 one fails, 2 bad usage.
    """

    layer: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """One of the library's layers; all of them when left out."""
    module: Annotated[str | None, tyro.conf.arg(metavar="MODULE:CLASS")] = None
    """A layer of your own: package.module:Class or path/to/file.py:Class."""
    kwargs: str = "{}"
    """Arguments of that class as JSON, e.g. '{"d_model": 8}'."""
    dtype: Literal["float64", "float32", "bfloat16"] = "float64"
    """The dtype of inputs; parameters stay in float32 for bfloat16."""
    device: str = "cpu"
    """Where to check, e.g. cuda."""
    seed: int = 0
    """The seed of random inputs and parameters."""
    fast: Annotated[bool, EFFORT] = False
    """Costly properties on each layer's first case only (the default)."""
    full: Annotated[bool, EFFORT] = False
    """Every case compiled, by the compiler's own backend, and 100,000 steps of streaming: half an hour."""
    json: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Also write all results to this file."""

    page: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Check all layers, draw spectra and responses of every initialisation, and write report.html to this folder."""

    def execute(self) -> int:
        if self.page is not None:
            from resolvent.commands.check.page import write

            return write(self.page, self.seed)
        from resolvent.commands.check.layers import run

        return run(self)
