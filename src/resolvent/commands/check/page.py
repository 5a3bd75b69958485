"""`resolvent check --page`: check every layer, gather spectra and impulse responses, write the page."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from resolvent import __version__, report
from resolvent.commands.check.layers import check_all
from resolvent.commands.check.spectra import panels, spectra
from resolvent.conformance.runner import Settings
from resolvent.conformance.table import show
from resolvent.report.page import write_page
from resolvent.report.record import Record
from resolvent.usage.destination import require_writable


def write(out: Path, seed: int = 0) -> int:
    """Write the page and tell where it is; 1 when a property fails."""
    report.require_packages()
    for name in ("record.json", "report.html"):
        require_writable(out / name, "--page")
    console = Console()
    checked = check_all(Settings(seed=seed), console)
    show(checked, console)
    with console.status("drawing spectra and impulse responses"):
        created = datetime.now(UTC).strftime("%d %B %Y, %H:%M UTC")
        record = Record(__version__, created, checked.to_json(), spectra(seed), panels(seed))
        page = write_page(record, out)
    console.print(f"The report is at {page.resolve()}", soft_wrap=True, highlight=False)
    return 0 if checked.ok else 1
