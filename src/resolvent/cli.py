"""The command line. Each command is a dataclass of `resolvent.commands`; this file only picks one and runs it."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import tyro

from resolvent.commands.analyse import Analyse
from resolvent.commands.attack import Attack
from resolvent.commands.bench import Bench
from resolvent.commands.certify import Certify
from resolvent.commands.check import Check
from resolvent.commands.demo import Demo
from resolvent.commands.list import List
from resolvent.commands.report import Report
from resolvent.commands.run import Run

EXIT_CODES = "Exit status: 0 all well, 1 a property fails, 2 the command was called wrongly or lacks a package."

Command = List | Run | Report | Check | Attack | Certify | Analyse | Bench | Demo


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
        return command.execute()
    except UsageError as wrong:
        print(f"resolvent {type(command).__name__.lower()}: {wrong}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("resolvent: stopped.", file=sys.stderr)
        return 130
