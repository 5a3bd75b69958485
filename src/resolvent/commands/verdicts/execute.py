"""`resolvent verdicts`: claims of the papers, judged by finished runs."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from resolvent.commands.verdicts.options import Verdicts
from resolvent.disk import write_text
from resolvent.report.claim import claims
from resolvent.report.evidence import read_evidence, save_evidence
from resolvent.report.runs import Record, read_runs
from resolvent.report.verdict import Verdict, judge
from resolvent.report.verdict_page import counts, markdown
from resolvent.usage.error import UsageError

WIDE = 200  # width of a table in a file
STYLES = {"reproduced": "green", "partly": "yellow", "not reproduced": "red", "not run": "dim"}


def run(request: Verdicts) -> int:
    """Print the table; write the requested files. User errors are UsageErrors."""
    console = Console(highlight=False)
    console = console if console.is_terminal else Console(highlight=False, width=WIDE)
    if request.save is not None and not request.commit:
        raise UsageError("--save needs --commit, the commit that ran: each number must be traced to one.")
    folders = [Path(folder) for folder in request.runs]
    try:
        evidence = read_evidence(folders)
        if request.save is not None:
            written = save_evidence(read_runs(folders), Path(request.save), request.commit, _size)
            console.print(f"{len(written)} files in {request.save}")
    except (ValueError, OSError) as wrong:
        raise UsageError(str(wrong)) from wrong
    found = judge(claims(), evidence)
    if request.markdown is not None:
        write_text(Path(request.markdown), markdown(found))
    shown = [
        v for v in found if request.paper in ("all", v.claim.paper) and not (request.judged and v.outcome == "not run")
    ]
    console.print(_table(shown))
    console.print(counts(found if request.paper == "all" else [v for v in found if v.claim.paper == request.paper]))
    return 0


def _size(record: Record) -> str:
    """The --size option of a run of a recipe's small size."""
    from resolvent.experiments.recipe import size_of

    cell = record["cell"]
    return " --size small" if size_of(cell["recipe"], cell["tags"]) == "small" else ""


def _table(found: list[Verdict]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("verdict", "seeds", "where", "claim", "published", "ours"):
        table.add_column(name, overflow="fold")
    for v in found:
        style = STYLES[v.outcome]
        ours = v.ours or f"{v.claim.command} ({v.claim.cost})"  # or how to run it
        cells = (f"{v.claim.paper}, {v.claim.place}", v.claim.says, v.claim.published, ours)
        table.add_row(Text(v.outcome, style), str(v.seeds or ""), *map(Text, cells))
    return table
