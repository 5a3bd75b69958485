"""`resolvent demo`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Demo:
    """Train, attack, certify and analyse ten models on the embedded digits; write a page.

    It is `resolvent run quickstart` with a folder of its own: called again, it resumes where it stopped.

    Exit status: 0 the page is written, 1 a run diverged, 2 a package is missing.
    """

    out: Path = Path("out/demo")
    """The folder for the runs and report.html."""

    def execute(self) -> int:
        from resolvent.commands.run import cells as run_cells
        from resolvent.commands.run.options import Run

        return run_cells.run(Run("quickstart", out=str(self.out), workers=2), page=self.out)
