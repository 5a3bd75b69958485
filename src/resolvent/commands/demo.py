"""`resolvent demo`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Demo:
    """Check every layer, draw spectra and kernels of every initialisation, and write one HTML page.

    Exit status: 0 the page is written and every property holds, 1 a property fails, 2 a package is missing.
    """

    out: Path = Path("out/demo")
    """The folder for report.html and record.json."""
    seed: int = 0
    """Where random inputs and parameters start."""

    def execute(self) -> int:
        from resolvent import demo

        return demo.run(self.out, self.seed)
