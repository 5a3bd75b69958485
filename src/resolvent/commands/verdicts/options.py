"""`resolvent verdicts`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import tyro


@dataclass(frozen=True)
class Verdicts:
    """Judge every claim of the papers by finished runs: reproduced, partly, not reproduced, not run.

    $ resolvent verdicts runs
    $ resolvent verdicts benchmarks/results/evidence --paper qi2024
    $ resolvent verdicts runs --save benchmarks/results/evidence --commit 8613852

    Exit status: 0 judged, whatever the verdicts; 2 bad usage.
    """

    runs: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[RUNS ...]")] = ("runs",)
    """Folders that `resolvent run` wrote, or folders of saved evidence."""
    paper: Literal["all", "qi2024", "yu2024", "honarpisheh2025", "massai2025"] = "all"
    """Only the claims of this paper."""
    judged: Annotated[bool, tyro.conf.arg(help_behavior_hint="")] = False
    """Leave out the claims that have not been run."""
    save: Annotated[str | None, tyro.conf.arg(metavar="FOLDER")] = None
    """Write the numbers of each finished run as one small file to commit; needs --commit."""
    commit: Annotated[str, tyro.conf.arg(metavar="COMMIT")] = ""
    """With --save: the commit that ran."""
    markdown: Annotated[str | None, tyro.conf.arg(metavar="FILE")] = None
    """Also write the page with every claim, its verdict, its files and commands."""

    def execute(self) -> int:
        from resolvent.commands.verdicts.execute import run

        return run(self)
